"""Runs the workflow in a subprocess, in a copy of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
TINY = "tests/config/tiny.yaml"
PARTS = (
    *("Snakefile", "config.yaml", "rules", "envs", "profiles", "resources", "notebooks"),
    *("workflow_scripts", "tests"),
)


def copy_checkout(folder: Path) -> Path:
    """Copy the files that the workflow needs to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / part)
    return folder


def _environment() -> dict[str, str]:
    """The environment without pytest's variables."""
    return {name: setting for name, setting in os.environ.items() if not name.startswith("PYTEST")}


def snakemake(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
    """Run Snakemake in ``folder``. ``stdout`` contains all output."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=folder,
        env=_environment(),
        text=True,
        timeout=7200,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def flatminima(*arguments: str, folder: Path, **environment) -> subprocess.CompletedProcess:
    """Run the command ``flatminima`` of the clone in ``folder``, or of ``PYTHONPATH``."""
    environment = {"PYTHONPATH": f"{folder}/workflow_scripts", "COLUMNS": "160", **environment}
    return subprocess.run(
        [sys.executable, "-m", "flatminima", *arguments],
        cwd=folder,
        env=_environment() | environment,
        text=True,
        capture_output=True,
        timeout=300,
    )


@cache
def _planner() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.planner"],
        cwd=ROOT,
        env=_environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def dry_run(*arguments: str, folder: Path, described: bool = False) -> subprocess.CompletedProcess:
    """A dry run in ``folder``, in half the time of a new process (see ``tests/planner.py``)."""
    planner = _planner()
    planner.stdin.write(json.dumps([str(folder), arguments, described]) + "\n")
    planner.stdin.flush()
    exit_status, output = json.loads(planner.stdout.readline())
    return subprocess.CompletedProcess(arguments, exit_status, stdout=output)


def described(*arguments: str, folder: Path) -> dict[str, list[dict]]:
    """All ``rules``, and the ``jobs`` that Snakemake plans, as it has understood them."""
    run = dry_run("--quiet", "all", *arguments, folder=folder, described=True)
    assert run.returncode == 0, run.stdout[-3000:]
    return json.loads(next(line for line in run.stdout.splitlines() if line[:2] == '{"'))


@cache
def declared_rules() -> dict[str, dict]:
    """The declarations of each rule, by name, with the tiny suite in the configuration."""
    plan = described("--configfile", TINY, "--forceall", folder=ROOT)
    return {rule["name"]: rule for rule in plan["rules"]}


def rule_names() -> set[str]:
    """Names of rules in the documentation: their own names, or that of their script."""
    rules = declared_rules()
    return rules.keys() | {Path(rule["script"]).stem for rule in rules.values() if rule["script"]}


def planned(*arguments: str, folder: Path) -> dict[str, int]:
    """Number of jobs that a dry run plans, by rule. Empty if there is nothing to do."""
    run = dry_run("--quiet", "host", "--dry-run", *arguments, folder=folder)
    assert run.returncode == 0, run.stdout[-3000:]
    if "Nothing to be done" in run.stdout:
        return {}
    table = run.stdout.split("Job stats:", 1)[1].split("\n\n", 1)[0]
    jobs = dict(re.findall(r"^(\w[\w-]*) +(\d+)$", table, flags=re.MULTILINE))
    jobs.pop("total")
    return {rule: int(count) for rule, count in jobs.items()}


def tiny_checkout(tmp_path_factory) -> Path:
    """A checkout in which the complete tiny suite was built with two cores. Do not change it.

    It is built once for all workers of a test run. The first worker builds it, others wait.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with FileLock(folder / "tiny.lock"):
        if not (folder / "tiny").exists():
            copy_checkout(folder / "tiny-unfinished")
            run = snakemake("--cores", "2", "--configfile", TINY, folder=folder / "tiny-unfinished")
            assert run.returncode == 0, run.stdout[-5000:]
            (folder / "tiny-unfinished").rename(folder / "tiny")
    return folder / "tiny"
