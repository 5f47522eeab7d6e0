"""The hash that decides what runs again covers the code and nothing but the code."""

import ast
import json
from pathlib import Path

import pytest

from flatminima import code_hash
from tests.workflow import ROOT, copy_checkout

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
                if name.split(".")[0] == "flatminima":
                    name = f"workflow_scripts.{name}"
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


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A checkout whose files may be edited."""
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def checkout(copied, monkeypatch):
    monkeypatch.setattr(code_hash, "ROOT", copied)
    yield copied
    code_hash.read_code.cache_clear()


def hashes() -> dict[str, str]:
    code_hash.read_code.cache_clear()
    return {name: code_hash.code_hash(f"workflow_scripts/{name}.py") for name in SCRIPTS}


def users_of(module: str) -> set[str]:
    """Scripts that import a module, by the independent walk."""
    file = ROOT / "workflow_scripts" / f"{module}.py"
    return {s for s in SCRIPTS if file in imports_of(ROOT / "workflow_scripts" / f"{s}.py")}


MODULES = [
    "flatminima/quantizers",
    "flatminima/suite",
    "flatminima/claims/model",
    "probe_checkpoints",
]


@pytest.mark.parametrize("module", MODULES)
def test_an_edit_changes_the_hash_of_the_scripts_that_run_it_and_no_other(checkout, module):
    before, users = hashes(), users_of(module)
    assert users
    file = checkout / "workflow_scripts" / f"{module}.py"
    text = file.read_text()
    try:
        docstring = ast.get_docstring(ast.parse(text), clean=False)
        assert docstring
        file.write_text(text.replace(docstring, "Another docstring.") + "\n# A comment.\n")
        assert hashes() == before
        file.write_text(text + "\nANOTHER_NAME = 1\n")
        after = hashes()
        assert {name for name in SCRIPTS if after[name] != before[name]} == users
    finally:
        file.write_text(text)


def test_the_quantizer_is_part_of_probes_and_forks_and_not_of_training():
    users = users_of("flatminima/quantizers")
    assert {"probe_checkpoints", "train_fork"} <= users
    others = {"pretrain_suite", "collect_text", "train_tokenizer", "fix_batches",
              "fetch_checkpoint", "describe_checkpoints", "measure_kurtosis", "plot_audit",
              "judge_claims", "detect_phases"}  # fmt: skip
    assert others <= set(SCRIPTS)
    assert not users & others


def test_what_each_stage_does_not_depend_on():
    assert not {"pretrain_suite", "probe_checkpoints"} & users_of("flatminima/planning")
    assert not {"pretrain_suite", "probe_checkpoints"} & users_of("flatminima/config/checks")
    assert "probe_checkpoints" not in users_of("flatminima/training/loop")
    assert "tabulate_audit" not in users_of("flatminima/figures/figure_audit")


def test_nothing_is_imported_by_a_name_made_at_run_time():
    """Such an import would be invisible to the hash."""
    for path in (ROOT / "workflow_scripts").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = getattr(node, "func", None)
            name = getattr(called, "attr", getattr(called, "id", None))
            assert name not in ("import_module", "__import__", "exec", "run_path"), path


def hash_of(folder: Path, text: str, name: str = "module.py") -> str:
    (folder / name).write_text(text)
    code_hash.read_code.cache_clear()
    return code_hash.code_hash(name)


CODE = '"""What it does."""\n\n\ndef double(x):\n    """Twice."""\n    return 2 * x\n'


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(code_hash, "ROOT", tmp_path)
    yield tmp_path
    code_hash.read_code.cache_clear()


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
    library = root / "workflow_scripts" / "flatminima"
    library.mkdir(parents=True)
    user = "from flatminima import deep\n"
    (library / "deep.py").write_text("X = 1\n")
    before = hash_of(root, user)
    (library / "deep.py").write_text("X = 2\n")
    assert hash_of(root, user) != before


def test_a_module_of_a_package_and_the_package_itself_count(root):
    deep = root / "workflow_scripts" / "flatminima" / "deep"
    deep.mkdir(parents=True)
    for name in ("__init__", "inner", "other"):
        (deep / f"{name}.py").write_text("X = 1\n")
    user = "def later():\n    import flatminima.deep.inner\n"
    seen = {hash_of(root, user)}
    for name in ("__init__", "inner"):
        (deep / f"{name}.py").write_text("X = 2\n")
        seen.add(hash_of(root, user))
    assert len(seen) == 3
    (deep / "other.py").write_text("X = 2\n")
    assert hash_of(root, user) in seen


def test_modules_that_import_each_other_end(root):
    library = root / "workflow_scripts" / "flatminima"
    library.mkdir(parents=True)
    (library / "one.py").write_text("import flatminima.two\n")
    (library / "two.py").write_text("import flatminima.one\nX = 1\n")
    before = hash_of(root, "from flatminima import one\n")
    (library / "two.py").write_text("import flatminima.one\nX = 2\n")
    assert hash_of(root, "from flatminima import one\n") != before


def test_cells_of_a_notebook_and_what_they_import_count(root):
    def notebook(code: str, text: str = "text") -> str:
        cells = [
            {"cell_type": "code", "source": ["%matplotlib inline\n", "!ls\n", code]},
            {"cell_type": "markdown", "source": [text]},
        ]
        return json.dumps({"cells": cells})

    first = hash_of(root, notebook("x = 1"), "tour.ipynb")
    assert hash_of(root, notebook("x = 1  # one", "prose"), "tour.ipynb") == first
    assert hash_of(root, notebook("x = 2"), "tour.ipynb") != first
    library = root / "workflow_scripts" / "flatminima"
    library.mkdir(parents=True)
    user = notebook("from flatminima.deep import X")
    (library / "deep.py").write_text("X = 1\n")
    first = hash_of(root, user, "tour.ipynb")
    (library / "deep.py").write_text("X = 2\n")
    assert hash_of(root, user, "tour.ipynb") != first
