"""Running the workflow in a subprocess, in a checkout of its own.

Run as a program it prints what every rule of the workflow declares, as JSON.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

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
        cwd=folder, env=_environment(), text=True, timeout=1800,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@cache
def _planner() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.planner"],
        cwd=ROOT, env=_environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def dry_run(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
    """A dry run in ``folder``, in half the time: see ``tests/planner.py``."""
    planner = _planner()
    planner.stdin.write(json.dumps([str(folder), arguments]) + "\n")
    planner.stdin.flush()
    status, printed = json.loads(planner.stdout.readline())
    return subprocess.CompletedProcess(arguments, status, stdout=printed)


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


def base_name(rule: str) -> str:
    """Name of the script of a generated rule: ``render_notebook`` of ``render_notebook_tour``."""
    for base in ("pretrain_suite", "render_notebook", "restore_measurements"):
        if rule.startswith(f"{base}_"):
            return base
    return rule


def declared_rules(*configfiles: str) -> list[dict]:
    """What each rule declares, as Snakemake itself understood it."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.workflow", *configfiles],
        cwd=ROOT, text=True, capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    return json.loads(run.stdout.splitlines()[-1])


def _declarations(configfiles: list[Path]) -> list[dict]:
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, OutputSettings, Quietness, ResourceSettings

    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(configfiles=configfiles),
            snakefile=ROOT / "Snakefile",
        )._workflow
        return [one for rule in workflow.rules for one in _declared(rule)]


def _declared(rule) -> Iterator[dict]:
    """One rule; where a wildcard names the script, once for each of its scripts."""
    params = dict(rule.params.items())
    code = params.get("code")
    declared = {
        "name": rule.name,
        "docstring": rule.docstring,
        "message": rule.message,
        "script": rule.script and rule.script.replace("{params.draws}", params.get("draws", "")),
        "conda": rule.conda_env,
        "log": [str(path) for path in rule.log],
        "benchmark": rule.benchmark and str(rule.benchmark),
        "code": code,
        "inputs": [str(path) for path in rule.input if not callable(path)],
    }
    named = re.search(r"\{wildcards\.(\w+)\}", rule.script or "")
    if not named:
        yield declared
        return
    for value in rule.wildcard_constraints[named[1]].split("|"):
        script = rule.script.replace(named[0], value)
        log, benchmark = (re.sub(rf"\{{{named[1]}[^}}]*\}}", value, path)
                          for path in (declared["log"][0], declared["benchmark"]))  # fmt: skip
        yield declared | {
            "name": Path(script).stem, "script": script, "log": [log], "benchmark": benchmark,
            "code": code(SimpleNamespace(**{named[1]: value})),
        }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_declarations([Path(name) for name in sys.argv[1:]])))
