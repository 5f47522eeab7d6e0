"""The hash that decides what runs again covers the code and nothing but the code."""

import ast
from pathlib import Path

import pytest

from workflow_scripts.lib import code_hash

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "workflow_scripts").glob("[a-z]*.py"))


def imports_of(path: Path) -> set[Path]:
    """An independent walk: modules of this project that a file imports, directly or not."""
    seen: set[Path] = set()
    pending = [path]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in ast.walk(ast.parse(current.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{current}: relative imports are not followed"
                names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                if name.split(".")[0] == "workflow_scripts":
                    for file in (
                        ROOT / (name.replace(".", "/") + ".py"),
                        ROOT / name.replace(".", "/") / "__init__.py",
                    ):
                        if file.exists():
                            pending.append(file)
    return seen


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_hash_covers_every_import(script):
    path = ROOT / "workflow_scripts" / f"{script}.py"
    assert imports_of(path) <= set(code_hash.code_files(path))


def covers(script: str, module: str) -> bool:
    files = code_hash.code_files(ROOT / "workflow_scripts" / f"{script}.py")
    return ROOT / "workflow_scripts" / "lib" / f"{module}.py" in files


def test_what_each_stage_depends_on():
    assert covers("probe_checkpoints", "quantizers") and covers("train_fork", "quantizers")
    assert not covers("pretrain_suite", "quantizers")
    assert not covers("pretrain_suite", "config") and not covers("pretrain_suite", "planning")
    assert not covers("probe_checkpoints", "training")
    assert not covers("measure_kurtosis", "quantizers")
    assert not covers("tabulate_audit", "figure_audit")


def hash_of(folder: Path, text: str, name: str = "module.py") -> str:
    (folder / name).write_text(text)
    code_hash._parse.cache_clear()
    return code_hash.code_hash(name)


CODE = '"""What it does."""\n\n\ndef double(x):\n    """Twice."""\n    return 2 * x\n'


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(code_hash, "ROOT", tmp_path)
    yield tmp_path
    code_hash._parse.cache_clear()


@pytest.mark.parametrize(
    "same",
    [
        CODE + "\n# A comment.\n",
        CODE.replace("Twice.", "Two times."),
        CODE.replace('"""What it does."""', '"""Another."""'),
        CODE.replace("2 * x", "2  *  x  # here"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(root, same):
    assert hash_of(root, CODE) == hash_of(root, same)


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("2 * x", "3 * x"),
        CODE + "\nY = 1\n",
        CODE.replace("return 2 * x", 'print("""Twice."""); return 2 * x'),
    ],
)
def test_code_counts(root, other):
    assert hash_of(root, CODE) != hash_of(root, other)


def test_an_imported_module_counts(root):
    library = root / "workflow_scripts" / "lib"
    library.mkdir(parents=True)
    user = "from workflow_scripts.lib import deep\n"
    (library / "deep.py").write_text("X = 1\n")
    before = hash_of(root, user)
    (library / "deep.py").write_text("X = 2\n")
    assert hash_of(root, user) != before


def test_cells_of_a_notebook_count(root):
    def notebook(code: str) -> str:
        return (
            '{"cells": [{"cell_type": "code", "source": ["%matplotlib inline\\n", "'
            + code
            + '"]}, {"cell_type": "markdown", "source": ["text"]}]}'
        )

    first = hash_of(root, notebook("x = 1"), "tour.ipynb")
    assert hash_of(root, notebook("x = 1").replace("text", "prose"), "tour.ipynb") == first
    assert hash_of(root, notebook("x = 2"), "tour.ipynb") != first
