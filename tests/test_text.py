"""The embedded text: what is taken, and that validation never occurs in training."""

import hashlib
import json

import pytest

from flatminima.text.collecting import collect, up_to
from flatminima.text.documents import read_documents, write_documents
from flatminima.text.leakage import shared_documents
from flatminima.text.sources import TextError
from flatminima.text.tokens import file_sha256, read_tokens
from workflow_scripts import fix_batches, train_tokenizer

SOURCE = {
    "text": {
        "source": "packages", "packages": ["seaborn", "tqdm"], "min_characters": 100,
        "validation_fraction": 0.2, "seed": 0,
    },
}  # fmt: skip
BATCHES = {"train": {"sequences": 32, "length": 16}, "validation": {"sequences": 8, "length": 16}}


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    manifest = collect(SOURCE, folder / "train.jsonl", folder / "validation.jsonl")
    (folder / "text.json").write_text(json.dumps(manifest))
    train_tokenizer.main(
        train=folder / "train.jsonl", vocab_size=300, tokenizer=str(folder / "tokenizer.json")
    )
    return folder, manifest


def fix(folder, out):
    outputs = {s: (out / f"{s}.safetensors", out / f"{s}.json") for s in BATCHES}
    fix_batches.main(
        texts={s: folder / f"{s}.jsonl" for s in BATCHES},
        tokenizer=str(folder / "tokenizer.json"),
        manifest=folder / "text.json",
        batches=BATCHES,
        vocabulary={},
        outputs=outputs,
    )
    return outputs


def test_the_manifest_says_what_was_taken(collected):
    folder, manifest = collected
    named = {source["package"]: source for source in manifest["packages"]}
    assert named["seaborn"]["version"] == "0.13.2"
    assert all(
        len(source["sha256"]) == 64 and source["characters"] > 0 for source in named.values()
    )
    for split in ("train", "validation"):
        count = sum(1 for _ in read_documents(folder / f"{split}.jsonl"))
        assert manifest[f"{split}_documents"] == count > 10
    assert manifest["documents"] == manifest["train_documents"] + manifest["validation_documents"]


def test_no_validation_document_occurs_in_training(collected):
    folder, _ = collected
    train = list(read_documents(folder / "train.jsonl"))
    validation = list(read_documents(folder / "validation.jsonl"))
    assert not set(train) & set(validation)
    assert shared_documents(train, validation) == 0
    assert shared_documents([*train, validation[3].replace("\n", "  ")], validation) == 1


@pytest.mark.workflow
def test_no_validation_document_of_mini_occurs_in_training(tmp_path):
    """The same on the corpus that mini is trained on."""
    packages = ["numpy", "scipy", "pandas", "matplotlib"]
    text = {**SOURCE["text"], "packages": packages, "min_characters": 200}
    paths = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    manifest = collect({"text": text}, *paths)
    assert manifest["train_documents"] > 5000
    train, validation = (set(read_documents(path)) for path in paths)
    assert len(train) == manifest["train_documents"], "no document occurs twice"
    assert not train & validation
    assert shared_documents(train, validation) == 0


def test_batches_are_the_same_file_every_time(collected, tmp_path):
    folder, _ = collected
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one, two = fix(folder, first), fix(folder, second)
    for split, (file, manifest) in one.items():
        assert file.read_bytes() == two[split][0].read_bytes()
        record = json.loads(manifest.read_text())
        assert record["sha256"] == file_sha256(file)
        assert record["tokenizer_sha256"] == file_sha256(folder / "tokenizer.json")
        shape = (BATCHES[split]["sequences"], BATCHES[split]["length"])
        assert read_tokens(file).shape == shape
        assert record["largest_id"] < record["vocab_size"] == 300


def test_a_planted_validation_document_is_refused(collected, tmp_path):
    folder, manifest = collected
    train = list(read_documents(folder / "train.jsonl"))
    planted = next(read_documents(folder / "validation.jsonl"))
    write_documents(tmp_path / "train.jsonl", [*train, planted])
    write_documents(tmp_path / "validation.jsonl", read_documents(folder / "validation.jsonl"))
    (tmp_path / "text.json").write_text(json.dumps(manifest))
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ValueError, match="1 validation documents occur in training"):
        fix(tmp_path, out)
    assert not list(out.iterdir())


def test_documents_survive_the_round_trip(tmp_path):
    texts = ["one\ntwo\u2028three", 'quotes " and \\', "", "é 漢字 \U0001f600"]
    assert write_documents(tmp_path / "t.jsonl", texts) == 4
    assert list(read_documents(tmp_path / "t.jsonl")) == texts


def test_up_to():
    assert list(up_to(["aa", "bb", "cc"], {"amount": 3})) == ["aa", "bb"]
    assert list(up_to(["aa", "bb"], {"amount": 5})) == ["aa", "bb"]
    texts = ["a", "long one", "b", "another", "a third long one", "more"]
    assert list(up_to(texts, {"amount": 2, "document_of": 5})) == texts[:4]
    assert list(up_to(texts, {"amount": 10, "longest": 7})) == texts[:6]


def test_two_collections_are_the_same_to_the_byte(collected, tmp_path):
    folder, manifest = collected
    assert collect(SOURCE, tmp_path / "train.jsonl", tmp_path / "validation.jsonl") == manifest
    for name in ("train.jsonl", "validation.jsonl"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_another_seed_divides_the_same_documents_otherwise(collected, tmp_path):
    folder, _ = collected
    paths = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    collect({"text": {**SOURCE["text"], "seed": 1}}, *paths)
    before = [set(read_documents(folder / path.name)) for path in paths]
    after = [set(read_documents(path)) for path in paths]
    assert set.union(*before) == set.union(*after) and before[1] != after[1]


# Text of files


@pytest.fixture
def files(tmp_path):
    """A source of local files; training repeats two validation documents."""
    held_out = [f"held out {n}" for n in range(10)]
    seen = ["seen 0", "held out 0", "held\n  out 1 ", *(f"seen {n}" for n in range(1, 9))]
    write_documents(tmp_path / "val.jsonl", held_out)
    write_documents(tmp_path / "00.jsonl", seen)
    return {
        "text": {
            "source": "files",
            "validation": [{"path": str(tmp_path / "val.jsonl")}],
            "train": [{"path": str(tmp_path / "00.jsonl")}],
        },
        "wanted": {"validation": {"amount": 40}, "train": {"amount": 48}},
    }


def test_enough_documents_are_taken_and_none_twice(files, tmp_path):
    paths = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    manifest = collect(files, *paths)
    train, validation = (list(read_documents(path)) for path in paths)
    # Of validation four of ten characters are 40, of training eight of six are 48.
    assert validation == [f"held out {n}" for n in range(4)]
    assert train == [f"seen {n}" for n in range(8)]
    assert manifest["validation_documents"] == 4 and manifest["train_documents"] == 8
    assert shared_documents(train, validation) == 0
    taken = manifest["train"]
    assert taken["taken"] == files["text"]["train"][0]["path"] and taken["commit"] is None
    assert taken["documents"] == 8 and taken["characters"] == 48
    assert taken["left_out_as_validation"] == 2 and taken["passed_over"] == []
    digest = hashlib.sha256(b"".join(text.encode() + b"\0" for text in train)).hexdigest()
    assert taken["sha256"] == digest


def test_one_file_can_be_both_splits(files, tmp_path):
    files["text"]["train"] = files["text"]["validation"]
    files["wanted"]["train"]["amount"] = 30
    paths = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    manifest = collect(files, *paths)
    assert list(read_documents(paths[0])) == ["held out 4", "held out 5", "held out 6"]
    assert manifest["train"]["left_out_as_validation"] == 4


def test_a_split_of_which_nothing_is_wanted_is_not_read(files, tmp_path):
    """A suite that trains nothing needs no training text, and none is fetched for it."""
    del files["text"]["train"], files["wanted"]["train"]
    paths = tmp_path / "train.jsonl", tmp_path / "validation.jsonl"
    manifest = collect(files, *paths)
    assert paths[0].read_bytes() == b"" and manifest["train"] == {"documents": 0}
    assert manifest["validation_documents"] == 4 and manifest["train_documents"] == 0


def test_a_broken_source_leaves_nothing_behind(files, tmp_path):
    bad = tmp_path / "00.jsonl"
    bad.write_text('{"text": "fine"}\n{"text": \n')
    paths = tmp_path / "out" / "train.jsonl", tmp_path / "out" / "validation.jsonl"
    with pytest.raises(TextError, match="00.jsonl: line 2 is not JSON"):
        collect(files, *paths)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["validation.jsonl"]


def test_the_first_source_that_can_be_had_is_taken_and_the_others_are_said(files, tmp_path):
    there = files["text"]["validation"][0]
    missing = {"path": str(tmp_path / "nowhere.jsonl")}
    files["text"]["validation"] = [missing, there, {"path": str(tmp_path / "00.jsonl")}]
    manifest = collect(files, tmp_path / "train.jsonl", tmp_path / "validation.jsonl")
    assert manifest["validation"]["taken"] == there["path"]
    assert manifest["validation"]["passed_over"] == [
        {"source": missing["path"], "reason": "no such file"}
    ]


def test_where_none_can_be_had_one_line_says_why_of_each(files, tmp_path):
    files["text"]["train"] = [{"path": f"{tmp_path}/{name}"} for name in ("a.txt", "b.jsonl")]
    (tmp_path / "b.jsonl").mkdir()
    with pytest.raises(TextError) as error:
        collect(files, tmp_path / "train.jsonl", tmp_path / "validation.jsonl")
    assert str(error.value) == (
        f"train text: none of its sources can be had: {tmp_path}/a.txt (no such file); "
        f"{tmp_path}/b.jsonl (is no file)"
    )


def test_a_document_that_repeats_in_other_white_space_is_refused(tmp_path, collected):
    folder, manifest = collected
    train = list(read_documents(folder / "train.jsonl"))
    validation = list(read_documents(folder / "validation.jsonl"))
    for name in ("text.json", "tokenizer.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    write_documents(tmp_path / "train.jsonl", [*train, "\n\n" + validation[0].replace(" ", "  ")])
    write_documents(tmp_path / "validation.jsonl", validation)
    with pytest.raises(ValueError, match="1 validation documents occur in training"):
        fix(tmp_path, tmp_path)


def test_text_that_is_too_short_for_the_batches_is_refused(tmp_path, collected):
    folder, _ = collected
    for name in ("text.json", "tokenizer.json", "validation.jsonl"):
        (tmp_path / name).write_text((folder / name).read_text())
    write_documents(tmp_path / "train.jsonl", ["a few words only"])
    with pytest.raises(ValueError, match="32 sequences of 16 need 512"):
        fix(tmp_path, tmp_path)
