"""The environments of `--sdm conda`: the pins of the lock file, and all that a rule imports.

The workflow of the tests runs in one environment that has everything, where a package that
an environment lacks would never be missed. So what each rule imports is read from the code.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from flatminima.code_hash import code_files, read_source
from flatminima.files import PACKAGES as RECORDED
from tests.workflow import ROOT, declared_rules

pytestmark = pytest.mark.workflow

# Modules by the package that brings them, where that has another name.
PACKAGES = {"torch": "pytorch", "arch": "arch-py", "yaml": "pyyaml", "IPython": "ipython"}
ON_PYPI = {"pytorch": "torch", "arch-py": "arch"}
# Named and left out where they are not installed: real quantized inference in further formats.
OPTIONAL = {"torchao", "bitsandbytes"}
# Imported by functions that only measuring rules call.
NOT_CALLED = {(f"workflow_scripts/flatminima/{name}.py", "torch") for name in ("files", "hub")}
# Infrastructure that the hash of the code leaves out and every script imports.
EVERY_JOB = ("jobs", "files", "errors")
# Needed by what is imported, without being imported here.
BEHIND = {"pandas": "pyarrow"}


def imported(path: Path) -> set[str]:
    """Packages of others that a module or notebook of this project imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(read_source(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    own = {"workflow_scripts", "flatminima", "snakemake", *sys.stdlib_module_names}
    where = path.relative_to(ROOT).as_posix()
    return {PACKAGES.get(n, n) for n in names - own - OPTIONAL if (where, n) not in NOT_CALLED}


def needed(rule: dict) -> set[str]:
    """Packages of others that a rule's script and notebook need, with all that they import."""
    files = [ROOT / "workflow_scripts" / Path(rule["script"]).name]
    files += [ROOT / path for path in rule["inputs"] if path.endswith(".ipynb")]
    infrastructure = [ROOT / f"workflow_scripts/flatminima/{name}.py" for name in EVERY_JOB]
    found = set().union(*(imported(path) for path in [*code_files(*files), *infrastructure]))
    return found | {BEHIND[name] for name in found & BEHIND.keys()}


def dependencies(path: Path) -> dict[str, str]:
    """Version of each package of an environment."""
    return dict(pin.split("=") for pin in yaml.safe_load(path.read_text())["dependencies"])


ENVIRONMENTS = {path.name: dependencies(path) for path in sorted((ROOT / "envs").glob("*.yaml"))}


def test_environments_pin_what_the_lock_file_pins():
    lines = (ROOT / "envs/requirements.lock").read_text().splitlines()
    pins = dict(
        line.split(";")[0].strip().split("==") for line in lines if line and line[0] not in "# "
    )
    assert pins["torch"] == "2.13.0"
    for name, packages in ENVIRONMENTS.items():
        assert packages["python"] == "3.11"
        for package, version in packages.items():
            on_pypi = ON_PYPI.get(package, package).replace("_", "-")
            assert package == "python" or pins[on_pypi] == version, f"{name}: {package}"


def test_an_environment_has_what_its_rules_import_and_no_more():
    rules = [rule for rule in declared_rules().values() if rule["script"]]
    assert len(rules) > 40
    for name, packages in ENVIRONMENTS.items():
        users = {r["name"]: needed(r) for r in rules if Path(r["conda"]).name == name}
        lacking = {user: found - packages.keys() for user, found in users.items()}
        assert not any(lacking.values()), f"{name} lacks what is imported: {lacking}"
        # No import shows these: Jupyter for readers, kernels, Markdown and LaTeX of tables.
        unseen = {"python", "jupyter", "ipykernel", "tabulate", "jinja2", "accelerate"}
        assert packages.keys() - set().union(*users.values()) - unseen == set(), name


def test_what_is_recorded_of_a_run_comes_with_the_wheel():
    """``metadata.version`` of a package that is not there ends a probe."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = {re.split("[<>=]", name)[0] for name in project["dependencies"]}
    assert set(RECORDED) <= brought | {"tokenizers"}, "transformers brings tokenizers"


def test_the_wheel_has_every_package_and_the_audits_template(tmp_path):
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "workflow_scripts/flatminima"
    folders = {path.parent.relative_to(package.parent) for path in package.rglob("*.py")}
    names = {folder.as_posix().replace("/", ".") for folder in folders}
    assert set(setup["packages"]) == names | {"flatminima.templates"}
    templates = ROOT / setup["package-dir"]["flatminima.templates"]
    for name in setup["package-data"]["flatminima.templates"]:
        assert (templates / name).is_file()
