"""The text from packages, and the overlap of two splits."""

import importlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatminima.errors import UserError
from flatminima.text.corpus import (
    WINDOW,
    collect_packages,
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
    "../toy_corpus-1.2.dist-info/METADATA": (
        b"Metadata-Version: 2.1\nName: toy-corpus\nVersion: 1.2\n"
    ),
    "../toy_corpus-1.2.dist-info/top_level.txt": b"toy_corpus_package\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package ``toy_corpus_package`` 1.2, with files that must be left out."""
    for name, content in FILES.items():
        path = tmp_path / "toy_corpus_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return "toy_corpus_package"


def test_documents_of_a_package(package):
    docstrings = package_documents(package, min_characters=1)
    assert docstrings == [
        "First file.",
        "Module text.",
        "Outer text.",
        "Method text:\n\ncode\n    deeper",
        "Inner text.",
        "Conditional text:\nthis line\nand this one keep their indentation.",
        "An invalid \\d escape.",
        "Sub text, 日本語.",
    ]
    assert package not in sys.modules
    assert package_versions([package]) == {package: "1.2"}
    long_docstrings = package_documents(package, min_characters=12)
    assert long_docstrings == [text for text in docstrings if len(text) >= 12]
    assert 0 < len(long_docstrings) < len(docstrings)
    with pytest.raises(ModuleNotFoundError, match="no_such_package_here"):
        package_documents("no_such_package_here", 1)


def test_the_digest_of_a_tally_depends_on_texts_order_and_boundaries():
    texts = (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["ab", "c"])
    tallies = [tally(documents) for documents in texts]
    assert len({record["sha256"] for record in tallies}) == 4
    assert tallies[0] == tallies[-1]
    assert tallies[0]["documents"] == 2
    assert tallies[0]["characters"] == 3


def test_documents_that_differ_in_white_space_only_are_duplicates():
    documents = ["a b\nc", "a  b c", "A b c", "\n a\tb c \n", "abc", "a b\nc"]
    assert deduplicate(documents) == ["a b\nc", "A b c", "abc"]


# The split


@given(st.integers(0, 120), st.floats(0, 1), st.integers(0, 2**32))
def test_each_document_is_in_exactly_one_split(count, fraction, seed):
    documents = [f"text {i}" for i in range(count)]
    training, validation = split(documents, validation_fraction=fraction, seed=seed)
    assert sorted(training + validation) == sorted(documents)
    assert len(validation) == round(count * fraction)
    assert (training, validation) == split(documents, validation_fraction=fraction, seed=seed)


# Overlap of two splits

TEXTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(
        lambda cut: " ".join(f"w{n % 23}" for n in range(cut[0], sum(cut)))
    ),
    max_size=6,
)


def windows_of(texts) -> list[tuple[str, ...]]:
    """Every window of words, without hashes."""
    windows = []
    for text in texts:
        words = text.split()
        windows += [tuple(words[n : n + WINDOW]) for n in range(len(words) - WINDOW + 1)]
    return windows


@given(TEXTS, TEXTS)
def test_shared_windows_are_those_that_a_direct_count_finds(training, validation):
    in_training = set(windows_of(training))
    windows = windows_of(validation)
    counts = shared_windows(iter(training), iter(validation))
    assert counts["windows"] == counts["windows_looked_for"] == len(windows)
    if windows:
        n_shared = sum(window in in_training for window in windows)
        assert counts["in_training_pct"] == round(100 * n_shared / len(windows), 3)
    else:
        assert counts["in_training_pct"] is None


def test_a_sample_of_windows_is_close_to_all_and_the_same_every_time():
    words = [f"w{n}" for n in range(5000)]
    validation = " ".join(words)
    training = " ".join(words[: 5000 // 4])
    of_all = shared_windows([training], [validation])
    of_sample = shared_windows([training], [validation], most=1000)
    assert of_sample["windows"] == of_all["windows"] == 4988
    assert of_sample["windows_looked_for"] == 1000
    assert abs(of_sample["in_training_pct"] - of_all["in_training_pct"]) < 5
    assert of_sample == shared_windows([training], [validation], most=1000)


def test_overlap_is_recorded_and_shared_documents_refused(tmp_path):
    text_words = [f"w{n}" for n in range(40)]
    write_documents(tmp_path / "val.jsonl", [" ".join(text_words[:20])])
    write_documents(tmp_path / "train.jsonl", ["  ".join(text_words[4:])])
    assert overlap(tmp_path / "train.jsonl", tmp_path / "val.jsonl") == {
        "documents_shared_with_training": 0,
        "word_windows_shared_with_training": {
            "words": 13,
            "windows": 8,
            "windows_looked_for": 8,
            "in_training_pct": 50.0,
            "refused_above_pct": 50.0,
        },
    }
    write_documents(
        tmp_path / "train.jsonl", ["other", "\n".join(text_words[:20]), text_words[0].upper()]
    )
    with pytest.raises(ValueError, match="train.jsonl: 1 validation documents"):
        overlap(tmp_path / "train.jsonl", tmp_path / "val.jsonl")


def test_a_suite_that_trains_on_more_than_half_of_its_validation_text_is_refused(tmp_path):
    text_words = [f"w{n}" for n in range(40)]
    write_documents(tmp_path / "val.jsonl", [" ".join(text_words[:20])])
    write_documents(tmp_path / "train.jsonl", [" ".join(text_words[3:])])
    # Five of its eight windows begin at the fourth word or later.
    with pytest.raises(UserError, match="62.5 %.*50 %"):
        overlap(tmp_path / "train.jsonl", tmp_path / "val.jsonl")


# From packages to batches

SOURCE = {
    "source": "packages",
    "packages": ["seaborn", "tqdm"],
    "min_characters": 100,
    "validation_fraction": 0.2,
    "seed": 0,
}


def test_text_of_packages_is_the_same_every_time(tmp_path):
    paths = [tmp_path / f"{split}.jsonl" for split in ("train", "validation")]
    written = []
    for _ in range(2):
        manifest = collect_packages(SOURCE, *paths)
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]
    records = {record["package"]: record for record in manifest["packages"]}
    assert records["seaborn"]["version"] == "0.13.2"
    for record in records.values():
        assert len(record["sha256"]) == 64
        assert record["characters"] > 0
    counts = [sum(1 for _ in read_documents(path)) for path in paths]
    assert counts == [manifest["train_documents"], manifest["validation_documents"]]
    assert manifest["documents"] == sum(counts) and min(counts) > 10
