"""Running the workflow in a subprocess, in a checkout of its own."""

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
    "Snakefile", "config.yaml", "rules", "envs", "profiles", "resources", "notebooks",
    "workflow_scripts", "tests",
)  # fmt: skip


def copy_checkout(folder: Path) -> Path:
    """The files that the workflow needs, copied to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / part)
    return folder


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}


def snakemake(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
    """Run Snakemake in ``folder``; what it prints is in ``stdout``."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=folder, env=_environment(), text=True, timeout=7200,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def flatminima(*arguments: str, folder: Path, **environment) -> subprocess.CompletedProcess:
    """The command ``flatminima`` in a clone, or elsewhere where ``PYTHONPATH`` says so."""
    environment = {"PYTHONPATH": f"{folder}/workflow_scripts", "COLUMNS": "160", **environment}
    return subprocess.run(
        [sys.executable, "-m", "flatminima", *arguments],
        cwd=folder, env=_environment() | environment, text=True, capture_output=True, timeout=300,
    )  # fmt: skip


@cache
def _planner() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.planner"],
        cwd=ROOT, env=_environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def dry_run(*arguments: str, folder: Path, described: bool = False) -> subprocess.CompletedProcess:
    """A dry run in ``folder``, in half the time: see ``tests/planner.py``."""
    planner = _planner()
    planner.stdin.write(json.dumps([str(folder), arguments, described]) + "\n")
    planner.stdin.flush()
    status, printed = json.loads(planner.stdout.readline())
    return subprocess.CompletedProcess(arguments, status, stdout=printed)


def described(*arguments: str, folder: Path) -> dict[str, list[dict]]:
    """What Snakemake understood of all ``rules``, and of the ``jobs`` that it plans."""
    run = dry_run("--quiet", "all", *arguments, folder=folder, described=True)
    assert run.returncode == 0, run.stdout[-3000:]
    return json.loads(next(line for line in run.stdout.splitlines() if line[:2] == '{"'))


@cache
def declared_rules() -> dict[str, dict]:
    """What each rule declares, by name, with the tiny suite in the configuration."""
    plan = described("--configfile", TINY, "--forceall", folder=ROOT)
    return {rule["name"]: rule for rule in plan["rules"]}


def rule_names() -> set[str]:
    """What pages call rules by: their own name, or their script's where there is one a suite."""
    rules = declared_rules()
    return rules.keys() | {Path(rule["script"]).stem for rule in rules.values() if rule["script"]}


def planned(*arguments: str, folder: Path) -> dict[str, int]:
    """Jobs that a dry run plans, by rule; empty where there is nothing to be done."""
    run = dry_run("--quiet", "host", "--dry-run", *arguments, folder=folder)
    assert run.returncode == 0, run.stdout[-3000:]
    if "Nothing to be done" in run.stdout:
        return {}
    table = run.stdout.split("Job stats:", 1)[1].split("\n\n", 1)[0]
    jobs = dict(re.findall(r"^(\w[\w-]*) +(\d+)$", table, flags=re.MULTILINE))
    jobs.pop("total")
    return {rule: int(count) for rule, count in jobs.items()}


def tiny_checkout(tmp_path_factory) -> Path:
    """A checkout in which all of the tiny suite was built with two cores; for reading only.

    Built once for all workers of a test run: the first that asks builds it, others wait.
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
