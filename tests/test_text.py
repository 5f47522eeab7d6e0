"""The embedded text: what is taken, and that validation never occurs in training."""

import json

import pytest

from workflow_scripts import fix_batches, train_tokenizer
from workflow_scripts.lib.text import (
    collect,
    read_documents,
    shared_documents,
    up_to,
    without,
    write_documents,
)
from workflow_scripts.lib.tokens import file_sha256, read_tokens

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


def test_up_to_and_without():
    assert list(up_to(["aa", "bb", "cc"], 3)) == ["aa", "bb"]
    assert list(without(["a", "b", "a"], {"a"})) == ["b"]
