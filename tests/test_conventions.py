"""The files that Snakemake users, GitHub and pre-commit expect."""

import importlib
import pkgutil
import re
from pathlib import Path

import yaml

import flatminima

ROOT = Path(__file__).resolve().parents[1]


def load(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text())


def test_continuous_integration_and_hooks_run_the_commands_of_readme_and_make_lint():
    (job,) = load(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    commands = re.findall(r"^make.*", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert commands == ["make", "make test", "make test-slow"]
    assert all(command in (ROOT / "README.md").read_text() for command in commands)
    hooks = [hook for repo in load(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    for hook in hooks:
        assert hook["entry"].replace(".venv/bin/", "$(BIN)/") in lint, hook["entry"]
    usage = load(".snakemake-workflow-catalog.yml")["usage"]
    assert usage["software-stack-deployment"]["conda"] is usage["report"] is True


def test_every_module_imports():
    """An import of a name that no longer exists fails here, not when its rule runs."""
    names = [module.name for module in pkgutil.walk_packages(flatminima.__path__, "flatminima.")]
    assert len(names) > 50
    for name in names:
        importlib.import_module(name)


def test_the_wings_import_in_one_direction():
    """The paper imports neither mechanism nor tools, nor does one of these import the other."""
    package = Path(flatminima.__path__[0])
    for path in package.rglob("*.py"):
        wing = path.relative_to(package).parts[0]
        other_wings = {"mechanism", "tools"} - {wing}
        imported = re.findall(r"flatminima(?:\.| import )(mechanism|tools)\b", path.read_text())
        assert not set(imported) & other_wings or wing == "__main__.py", path
        assert not re.search(r"^\s*(?:import|from) snakemake\b", path.read_text(), flags=re.M), path
