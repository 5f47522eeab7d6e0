"""The embedded text: what is taken from packages, and that nothing leaks over the split."""

import importlib
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatminima.text.corpus import (
    Document,
    deduplicate,
    describe,
    package_documents,
    package_root,
    split,
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


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package ``toy_corpus_package`` 1.2 with all that can go wrong in one."""
    root = tmp_path / "toy_corpus_package"
    (root / "tests").mkdir(parents=True)
    (root / "sub").mkdir()
    (root / "__init__.py").write_text('raise RuntimeError("a package must not be imported")\n')
    (root / "b.py").write_text(MODULE)
    (root / "a.py").write_text('"""First file."""\n')
    (root / "sub" / "c.py").write_text('"""Sub text, 日本語."""\n', encoding="utf-8")
    (root / "tests" / "test_a.py").write_text('"""Never taken."""\n')
    (root / "broken.py").write_text('"""Never taken."""\ndef f(:\n')
    (root / "latin.py").write_bytes('# -*- coding: latin-1 -*-\n"""Ümlaut."""\n'.encode("latin-1"))
    (root / "null.py").write_bytes(b'"""Never taken."""\n\0\n')
    (root / "surrogate.py").write_text('"""Half a character: \\ud800."""\n')
    (root / "escape.py").write_text('"""An invalid \\d escape."""\n')
    (root / "data.txt").write_text('"""Never taken."""\n')
    info = tmp_path / "toy_corpus-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-corpus\nVersion: 1.2\n")
    (info / "top_level.txt").write_text("toy_corpus_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return "toy_corpus_package"


def test_documents_of_a_package(package):
    documents = package_documents(package, min_characters=1)
    found = {d.origin.removeprefix("toy_corpus_package/"): d.text for d in documents}
    assert found == {
        "a.py::": "First file.",
        "b.py::": "Module text.",
        "b.py::Outer": "Outer text.",
        "b.py::Outer.method": "Method text:\n\ncode\n    deeper",
        "b.py::Outer.method.inner": "Inner text.",
        "b.py::conditional": "Conditional text:\nthis line\nand this one keep their indentation.",
        "escape.py::": "An invalid \\d escape.",
        "sub/c.py::": "Sub text, 日本語.",
    }  # fmt: skip
    assert package not in sys.modules


def test_documents_come_in_a_fixed_order(package):
    origins = [d.origin for d in package_documents(package, min_characters=1)]
    assert origins == [d.origin for d in package_documents(package, min_characters=1)]
    files = [origin.split("::")[0] for origin in origins]
    assert files == sorted(files)


def test_other_peoples_warnings_stay_quiet(package, recwarn):
    package_documents(package, min_characters=1)
    assert not recwarn.list


def test_short_documents_are_left_out(package):
    kept = package_documents(package, min_characters=12)
    every = package_documents(package, min_characters=1)
    assert kept == [d for d in every if len(d.text) >= 12]
    assert 0 < len(kept) < len(every)


def test_indentation_inside_a_docstring_is_kept(tmp_path, monkeypatch):
    """Cleaning twice would take the indentation of every line after the first."""
    root = tmp_path / "toy_indented"
    root.mkdir()
    (root / "__init__.py").write_text('"""\nUse it as:\n\n    f(x)\n        g(x)\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    [document] = package_documents("toy_indented", 1)
    assert document.text == "Use it as:\n\n    f(x)\n        g(x)"


def test_a_really_installed_package():
    documents = package_documents("pluggy", min_characters=200)
    assert len(documents) >= 10
    assert min(len(d.text) for d in documents) >= 200
    assert all(d.origin.startswith("pluggy/") for d in documents)
    import pluggy

    assert any(pluggy.PluginManager.__doc__.split()[0] in d.text for d in documents)


@pytest.mark.parametrize("name", ["no_such_package_here", "no_such_package_here.sub"])
def test_a_missing_package_is_named(name):
    with pytest.raises(ModuleNotFoundError, match="no_such_package_here"):
        package_documents(name, 1)


def test_a_missing_package_is_one_line():
    with pytest.raises(ModuleNotFoundError) as error:
        package_root("no_such_package_here")
    assert str(error.value) == (
        "package 'no_such_package_here' is not installed in this environment"
    )


# The manifest


def test_manifest_entry(package):
    documents = package_documents(package, min_characters=1)
    source = describe(package, documents)
    assert (source.package, source.version) == (package, "1.2")
    assert source.documents == 8
    assert source.characters == sum(len(d.text) for d in documents)
    assert source == describe(package, package_documents(package, min_characters=1))


def test_the_manifest_hash_sees_every_text_and_every_boundary(package):
    def digest(*texts):
        return describe(package, [Document("", text) for text in texts]).sha256

    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("c", "ab")}) == 4
    assert digest("ab") == digest("ab")


# Duplicates


def test_duplicates_are_equal_but_for_white_space():
    documents = [
        Document("1", "a b\nc"), Document("2", "a  b c"), Document("3", "A b c"),
        Document("4", "\n a\tb c \n"), Document("5", "abc"), Document("6", "a b\nc"),
    ]  # fmt: skip
    assert [d.origin for d in deduplicate(documents)] == ["1", "3", "5"]


# The split

DOCUMENTS = [Document(str(i), f"text {i % 90}") for i in range(100)]


@given(st.integers(0, 120), st.floats(0, 1), st.integers(0, 2**32))
def test_split_loses_nothing_and_shares_nothing(count, fraction, seed):
    documents = [Document(str(i), f"text {i}") for i in range(count)]
    training, validation = split(documents, validation_fraction=fraction, seed=seed)
    assert Counter(training + validation) == Counter(documents)
    assert not {d.text for d in training} & {d.text for d in validation}
    assert len(validation) == round(count * fraction)


def test_split_after_deduplication_shares_no_text():
    training, validation = split(deduplicate(DOCUMENTS), validation_fraction=0.3, seed=1)
    assert (len(training), len(validation)) == (63, 27)
    assert not {d.text for d in training} & {d.text for d in validation}


def test_split_depends_on_the_seed_and_on_nothing_else():
    before = list(DOCUMENTS)
    first = split(DOCUMENTS, validation_fraction=0.1, seed=1)
    assert split(tuple(DOCUMENTS), validation_fraction=0.1, seed=1) == first
    assert split(DOCUMENTS, validation_fraction=0.1, seed=2) != first
    assert before == DOCUMENTS


def test_split_shuffles():
    training, validation = split(DOCUMENTS, validation_fraction=0.1, seed=0)
    assert validation != DOCUMENTS[:10]
    assert training != [d for d in DOCUMENTS if d in training]
