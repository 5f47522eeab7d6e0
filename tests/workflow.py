"""Running the workflow in a subprocess, in a checkout of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = "tests/config/tiny.yaml"
PARTS = (
    "Snakefile", "config.yaml", "rules", "envs", "profiles", "resources", "notebooks",
    "workflow_scripts", "tests",
)  # fmt: skip


def copy_checkout(folder: Path) -> Path:
    """The files that the workflow needs, copied to ``folder``."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / part)
    return folder


def snakemake(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
    """Run Snakemake in ``folder``; what it prints is in ``stdout``."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=900,
    )


def planned(*arguments: str, folder: Path = ROOT) -> dict[str, int]:
    """Jobs that a dry run plans, by rule; empty where there is nothing to be done."""
    run = snakemake("--quiet", "host", "--dry-run", *arguments, folder=folder)
    assert run.returncode == 0, run.stdout[-3000:]
    if "Nothing to be done" in run.stdout:
        return {}
    table = run.stdout.split("Job stats:", 1)[1].split("\n\n", 1)[0]
    jobs = dict(re.findall(r"^(\w[\w-]*) +(\d+)$", table, flags=re.MULTILINE))
    jobs.pop("total")
    return {rule: int(count) for rule, count in jobs.items()}
