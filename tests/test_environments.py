"""The conda environments have the versions of the lock file and everything their rules import.

Other tests run in one environment that has all packages, so they cannot notice a package that is
missing in a conda environment. Here the imports of each rule are read from the code.
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

# Package of a module, if it has another name.
PACKAGES = {"torch": "pytorch", "arch": "arch-py", "yaml": "pyyaml", "IPython": "ipython"}
ON_PYPI = {"pytorch": "torch", "arch-py": "arch"}
# Used only if installed: real quantized inference in further formats.
OPTIONAL = {"torchao", "bitsandbytes"}
# Imported inside functions that only measuring rules call.
NOT_CALLED = {(f"workflow_scripts/flatminima/{name}.py", "torch") for name in ("files", "hub")}
# Infrastructure that every script imports, but that the code hash leaves out.
EVERY_JOB = ("jobs", "files", "errors")
# Packages that another package needs for what we do with it.
BEHIND = {"pandas": "pyarrow"}


def imported(path: Path) -> set[str]:
    """Third-party packages that a module or notebook imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(read_source(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    not_third_party = {"workflow_scripts", "flatminima", "snakemake", *sys.stdlib_module_names}
    file = path.relative_to(ROOT).as_posix()
    return {
        PACKAGES.get(name, name)
        for name in names - not_third_party - OPTIONAL
        if (file, name) not in NOT_CALLED
    }


def needed(rule: dict) -> set[str]:
    """Third-party packages of a rule's script and notebook and of all modules they import."""
    files = [ROOT / "workflow_scripts" / Path(rule["script"]).name]
    files += [ROOT / path for path in rule["inputs"] if path.endswith(".ipynb")]
    infrastructure = [ROOT / f"workflow_scripts/flatminima/{name}.py" for name in EVERY_JOB]
    packages: set[str] = set()
    for path in [*code_files(*files), *infrastructure]:
        packages |= imported(path)
    return packages | {BEHIND[name] for name in packages & BEHIND.keys()}


def dependencies(path: Path) -> dict[str, str]:
    """Version of each package of an environment."""
    return dict(pin.split("=") for pin in yaml.safe_load(path.read_text())["dependencies"])


ENVIRONMENTS = {path.name: dependencies(path) for path in sorted((ROOT / "envs").glob("*.yaml"))}


def test_environments_have_the_versions_of_the_lock_file():
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


def test_an_environment_has_the_packages_of_its_rules_and_no_others():
    rules = [rule for rule in declared_rules().values() if rule["script"]]
    assert len(rules) > 40
    for name, packages in ENVIRONMENTS.items():
        needed_by_rule = {
            rule["name"]: needed(rule) for rule in rules if Path(rule["conda"]).name == name
        }
        missing = {rule: names - packages.keys() for rule, names in needed_by_rule.items()}
        assert not any(missing.values()), f"{name} lacks packages: {missing}"
        # Never imported here: Jupyter for readers, kernels, Markdown and LaTeX of tables.
        never_imported = {"python", "jupyter", "ipykernel", "tabulate", "jinja2", "accelerate"}
        all_needed = set().union(*needed_by_rule.values())
        assert packages.keys() - all_needed - never_imported == set(), name


def test_the_wheel_depends_on_the_packages_whose_versions_are_recorded():
    """A probe records versions, and fails for a package that is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dependencies = {re.split("[<>=]", name)[0] for name in project["dependencies"]}
    assert set(RECORDED) <= dependencies | {"tokenizers"}, "transformers depends on tokenizers"


def test_the_wheel_has_every_package_and_the_audits_template(tmp_path):
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "workflow_scripts/flatminima"
    folders = {path.parent.relative_to(package.parent) for path in package.rglob("*.py")}
    names = {folder.as_posix().replace("/", ".") for folder in folders}
    assert set(setup["packages"]) == names | {"flatminima.templates"}
    templates = ROOT / setup["package-dir"]["flatminima.templates"]
    for name in setup["package-data"]["flatminima.templates"]:
        assert (templates / name).is_file()
