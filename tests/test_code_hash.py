"""The code hash covers the code that decides numbers, and no other code."""

import ast
import json
import re
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path

import pytest

from flatminima import code_hash, tools
from tests.workflow import ROOT, copy_checkout

SCRIPTS = sorted(path.stem for path in (ROOT / "workflow_scripts").glob("[a-z]*.py"))
LIBRARY = ROOT / "workflow_scripts" / "flatminima"


@cache
def imports_of(script: str) -> set[Path]:
    """The script and all modules that it imports, without infrastructure, by ``ModuleFinder``."""
    outside = [f"flatminima.{name}" for name in code_hash.INFRASTRUCTURE]
    finder = ModuleFinder([str(LIBRARY.parent)], excludes=outside)
    finder.run_script(str(LIBRARY.parent / f"{script}.py"))
    return {Path(module.__file__) for module in finder.modules.values() if module.__file__}


def test_the_hash_covers_every_module_that_decides_and_no_other():
    for script in SCRIPTS:
        covered = set(code_hash.code_files(ROOT / "workflow_scripts" / f"{script}.py"))
        assert imports_of(script) ^ covered <= {LIBRARY / "__init__.py"}, script


def test_an_edit_reruns_the_rules_behind_it_and_an_edit_of_infrastructure_none(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(code_hash, "ROOT", copy_checkout(tmp_path / "checkout"))

    def hashes() -> set[tuple[str, str]]:
        code_hash.read_code.cache_clear()
        return {(name, code_hash.code_hash(f"workflow_scripts/{name}.py")) for name in SCRIPTS}

    for names in (code_hash.INFRASTRUCTURE, ["quantizers"], ["phases"], ["schedules"]):
        before = hashes()
        modules = {LIBRARY / f"{name}.py" for name in names}
        for module in modules:
            with open(code_hash.ROOT / module.relative_to(ROOT), "a") as file:
                file.write("\nANOTHER_NAME = 1\n")
        users = {script for script in SCRIPTS if modules & imports_of(script)}
        assert bool(users) == (names is not code_hash.INFRASTRUCTURE)
        assert {name for name, _ in hashes() - before} == users, names
    code_hash.read_code.cache_clear()


def test_training_does_not_import_probes_and_measurements_do_not_import_plans():
    """No quantizer, score or statistic decides the weights of a fork."""
    measuring = {"quantizers", "quantizer_specs", "layers", "scoring", "intervals", "kurtosis"}
    for script in ("pretrain_suite", "train_fork", "probe_checkpoints", "measure_kurtosis"):
        modules = {file.stem for file in imports_of(script)}
        assert not {"plan", "loading", "keys", "style", "tables"} & modules
        assert bool(measuring & modules) == ("train" not in script), script


def test_no_script_imports_a_module_by_a_name_computed_at_run_time():
    """The hash cannot see such an import.

    ``flatminima.tools`` imports its names lazily, for users and not for scripts.
    """
    lazy = rf"^\s*from flatminima\.tools import .*\b({'|'.join(tools.__all__)})\b"
    for path in set((ROOT / "workflow_scripts").rglob("*.py")) - {LIBRARY / "tools/__init__.py"}:
        text = path.read_text()
        assert not re.search(lazy, text, re.MULTILINE), path
        for node in ast.walk(ast.parse(text)):
            function = getattr(node, "func", None)
            name = getattr(function, "attr", getattr(function, "id", None))
            assert name not in ("import_module", "__import__", "exec", "run_path"), path


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder with an empty package instead of the repository."""
    monkeypatch.setattr(code_hash, "ROOT", tmp_path)
    (tmp_path / "workflow_scripts" / "flatminima").mkdir(parents=True)
    yield tmp_path
    code_hash.read_code.cache_clear()


def hash_of(folder: Path, text: str, name: str = "module.py") -> str:
    (folder / name).write_text(text)
    code_hash.read_code.cache_clear()
    return code_hash.code_hash(name)


CODE = '''"""What it does."""

import logging

import numpy as np
from pydantic import Field

from flatminima.jobs import log, progress as bar

logger = logging.getLogger(__name__)
elsewhere = make_logger("elsewhere")

def double(x):
    """Twice."""
    if x < 0:
        raise ValueError(f"{x} is negative")
    log("doubling")
    logger.info("doubling %s", x)
    elsewhere.info("counted")
    for _ in bar([x], "bars"):
        x += np.log(2.0) + math.log(3.0)
    return 2 * x

RATE = Field(1.0, description="a rate")
FIELD = maps.Field(1.0, description="a map")
'''
SAME = {
    "comment": ("RATE", "# A comment.\nRATE"),
    "docstring": ("Twice.", "Two times."),
    "layout": ("2 * x", "2  *  x  # here"),
    "message": ("is negative", "is below zero"),
    "log": ('log("doubling")', 'log("and now twice")'),
    "message of a logger": ('"doubling %s"', '"twice %s"'),
    "label of a bar": ('"bars"', '"numbers"'),
    "description": ("a rate", "the rate"),
}
OTHER = {
    "value": ("2 * x", "3 * x"),
    "condition": ("x < 0", "x <= 0"),
    "error": ("ValueError", "TypeError"),
    "default": ("Field(1.0", "Field(2.0"),
    "logarithm of numpy": ("np.log(2.0)", "np.log(10.0)"),
    "logarithm of another module": ("math.log(3.0)", "math.log(10.0)"),
    "method of something else": ('info("counted")', 'info("summed")'),
    "what a logger is told": ('s", x)', 's", x + 1)'),
    "field of something else": ("a map", "the map"),
    "text that is used": ("return 2 * x", 'return "Twice."'),
}


def test_code_changes_the_hash_and_texts_and_layout_do_not(root):
    for edit, (old, new) in (SAME | OTHER).items():
        assert old in CODE
        has_same_hash = hash_of(root, CODE.replace(old, new)) == hash_of(root, CODE)
        assert has_same_hash == (edit in SAME), edit


def test_imported_modules_change_the_hash_even_if_they_import_each_other(root):
    deep = root / "workflow_scripts" / "flatminima" / "deep.py"
    other = deep.with_name("other.py")
    for user in (
        "from flatminima import deep",
        "import flatminima.deep",
        "from flatminima.deep import X",
    ):
        hashes = set()
        for x, y in ((1, 1), (2, 1), (2, 2)):
            deep.write_text(f"import flatminima.other\nX = {x}\n")
            other.write_text(f"import flatminima.deep\nY = {y}\n")
            hashes.add(hash_of(root, user))
        assert len(hashes) == 3, user


def test_code_cells_of_a_notebook_change_the_hash(root):
    def hashed(code: str, text: str = "text") -> str:
        cells = [
            {"cell_type": "code", "source": ["%matplotlib inline\n", "!ls\n", code]},
            {"cell_type": "markdown", "source": [text]},
        ]
        return hash_of(root, json.dumps({"cells": cells}), "tour.ipynb")

    assert hashed("x = 1  # one", "prose") == hashed("x = 1") != hashed("x = 2")
