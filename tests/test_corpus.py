"""The embedded text: what is taken from packages, and what two splits share."""

import importlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatminima.errors import UserError
from flatminima.text.corpus import (
    WINDOW,
    deduplicate,
    overlap,
    package_documents,
    package_versions,
    read_documents,
    shared_windows,
    split,
    tally,
    write_documents,
)
from flatminima.text.sources import collect

MODULE = '''"""Module text."""


class Outer:
    """Outer text."""

    def method(self):
        """Method text:

            code
                deeper
        """

        def inner():
            """Inner text."""


if True:
    async def conditional():
        """Conditional text:
            this line
            and this one keep their indentation.
        """


def silent():
    pass


def comment():
    x = "not a docstring"
'''


FILES = {
    "__init__.py": b'raise RuntimeError("a package must not be imported")\n',
    "b.py": MODULE.encode(),
    "a.py": b'"""First file."""\n',
    "sub/c.py": '"""Sub text, 日本語."""\n'.encode(),
    "tests/test_a.py": b'"""Never taken."""\n',
    "broken.py": b'"""Never taken."""\ndef f(:\n',
    "latin.py": '# -*- coding: latin-1 -*-\n"""Ümlaut."""\n'.encode("latin-1"),
    "null.py": b'"""Never taken."""\n\0\n',
    "surrogate.py": b'"""Half a character: \\ud800."""\n',
    "escape.py": b'"""An invalid \\d escape."""\n',
    "data.txt": b'"""Never taken."""\n',
    "../toy_corpus-1.2.dist-info/METADATA":
        b"Metadata-Version: 2.1\nName: toy-corpus\nVersion: 1.2\n",
    "../toy_corpus-1.2.dist-info/top_level.txt": b"toy_corpus_package\n",
}  # fmt: skip


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package ``toy_corpus_package`` 1.2 with all that can go wrong in one."""
    for name, content in FILES.items():
        path = tmp_path / "toy_corpus_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return "toy_corpus_package"


def test_documents_of_a_package(package):
    every = package_documents(package, min_characters=1)
    assert every == [
        "First file.", "Module text.", "Outer text.", "Method text:\n\ncode\n    deeper",
        "Inner text.", "Conditional text:\nthis line\nand this one keep their indentation.",
        "An invalid \\d escape.", "Sub text, 日本語.",
    ]  # fmt: skip
    assert package not in sys.modules
    assert package_versions([package]) == {package: "1.2"}
    kept = package_documents(package, min_characters=12)
    assert kept == [text for text in every if len(text) >= 12] and 0 < len(kept) < len(every)
    with pytest.raises(ModuleNotFoundError, match="no_such_package_here"):
        package_documents("no_such_package_here", 1)


def test_a_tally_sees_every_text_and_every_boundary():
    texts = (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["ab", "c"])
    found = [tally(t) for t in texts]
    assert len({record["sha256"] for record in found}) == 4 and found[0] == found[-1]
    assert (found[0]["documents"], found[0]["characters"]) == (2, 3)


def test_duplicates_are_equal_but_for_white_space():
    documents = ["a b\nc", "a  b c", "A b c", "\n a\tb c \n", "abc", "a b\nc"]
    assert deduplicate(documents) == ["a b\nc", "A b c", "abc"]


# The split


@given(st.integers(0, 120), st.floats(0, 1), st.integers(0, 2**32))
def test_split_loses_nothing_and_shares_nothing(count, fraction, seed):
    documents = [f"text {i}" for i in range(count)]
    training, validation = split(documents, validation_fraction=fraction, seed=seed)
    assert sorted(training + validation) == sorted(documents)
    assert len(validation) == round(count * fraction)
    assert (training, validation) == split(documents, validation_fraction=fraction, seed=seed)


# What two splits share

TEXTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(
        lambda cut: " ".join(f"w{n % 23}" for n in range(cut[0], sum(cut)))
    ),
    max_size=6,
)


def runs(texts) -> list[tuple[str, ...]]:
    """Every run of words, the slow way."""
    documents = [text.split() for text in texts]
    return [tuple(words[n : n + WINDOW]) for words in documents
            for n in range(len(words) - WINDOW + 1)]  # fmt: skip


@given(TEXTS, TEXTS)
def test_shared_runs_are_those_that_counting_them_all_finds(training, validation):
    known, wanted = set(runs(training)), runs(validation)
    found = shared_windows(iter(training), iter(validation))
    assert found["windows"] == found["windows_looked_for"] == len(wanted)
    share = 100 * sum(run in known for run in wanted) / len(wanted) if wanted else None
    assert found["in_training_pct"] == (share if share is None else round(share, 3))


def test_a_sample_stands_for_many_runs_and_is_the_same_every_time():
    words = [f"w{n}" for n in range(5000)]
    validation, training = " ".join(words), " ".join(words[: 5000 // 4])
    whole = shared_windows([training], [validation])
    part = shared_windows([training], [validation], most=1000)
    assert part["windows"] == whole["windows"] == 4988 and part["windows_looked_for"] == 1000
    assert abs(part["in_training_pct"] - whole["in_training_pct"]) < 5
    assert part == shared_windows([training], [validation], most=1000)


def test_overlap_is_recorded_and_shared_documents_refused(tmp_path):
    words = [f"w{n}" for n in range(40)]
    write_documents(tmp_path / "val.jsonl", [" ".join(words[:20])])
    write_documents(tmp_path / "train.jsonl", ["  ".join(words[4:])])
    assert overlap(tmp_path / "train.jsonl", tmp_path / "val.jsonl") == {
        "documents_shared_with_training": 0,
        "word_windows_shared_with_training": {
            "words": 13, "windows": 8, "windows_looked_for": 8, "in_training_pct": 50.0,
            "refused_above_pct": 50.0,
        },
    }  # fmt: skip
    write_documents(tmp_path / "train.jsonl", ["other", "\n".join(words[:20]), words[0].upper()])
    with pytest.raises(ValueError, match="train.jsonl: 1 validation documents occur in train"):
        overlap(tmp_path / "train.jsonl", tmp_path / "val.jsonl")


def test_a_suite_that_trains_on_more_than_half_of_its_validation_text_is_refused(tmp_path):
    words = [f"w{n}" for n in range(40)]
    write_documents(tmp_path / "val.jsonl", [" ".join(words[:20])])
    write_documents(tmp_path / "train.jsonl", [" ".join(words[3:])])
    # Five of its eight windows begin at the fourth word or later.
    with pytest.raises(UserError, match="62.5 %.*50 %"):
        overlap(tmp_path / "train.jsonl", tmp_path / "val.jsonl")


# From packages to batches

SOURCE = {
    "source": "packages", "packages": ["seaborn", "tqdm"], "min_characters": 100,
    "validation_fraction": 0.2, "seed": 0,
}  # fmt: skip


def test_text_of_packages_is_the_same_every_time(tmp_path):
    paths, written = [tmp_path / f"{split}.jsonl" for split in ("train", "validation")], []
    for _ in range(2):
        manifest = collect({"text": SOURCE}, *paths)
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]
    named = {source["package"]: source for source in manifest["packages"]}
    assert named["seaborn"]["version"] == "0.13.2"
    assert all(len(source["sha256"]) == 64 and source["characters"] for source in named.values())
    counts = [sum(1 for _ in read_documents(path)) for path in paths]
    assert counts == [manifest["train_documents"], manifest["validation_documents"]]
    assert manifest["documents"] == sum(counts) and min(counts) > 10
