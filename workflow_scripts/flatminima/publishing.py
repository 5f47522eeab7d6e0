"""Turn a suite's finished results into frozen measurements with their origin."""

import copy
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from flatminima.code_hash import code_hash
from flatminima.errors import UserError
from flatminima.files import read_json, write_json
from flatminima.frozen import PROVENANCE_FILE, SUITE_FILE, freeze
from flatminima.jobs import jobs_left
from flatminima.planning import SuitePlan

# Where checkpoints came from; the measurements have their own place.
_OF_CHECKPOINTS = ("repo", "revision", "pattern", "keep_checkpoints", "max_on_disk", "integrity")


def processor() -> str:
    """Model name of the processor, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def machine() -> dict:
    """Processor, cores and architecture of this machine; no name of it."""
    return {"cpu": processor(), "cores": os.cpu_count(), "architecture": platform.machine()}


def git(*arguments: str) -> str:
    """What git prints; a ``UserError`` where it fails."""
    run = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise UserError(f"git {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout.strip()


def check_current(plan: SuitePlan, configfiles: Sequence[str], folder: Path) -> None:
    """Raise ``UserError`` unless the results are what the committed code measures.

    ``folder`` may have changes: it is what will be written.
    """
    if changed := git("diff", "--name-only", "HEAD", "--", f":!{folder}").splitlines():
        raise UserError(f"{changed[0]} has changes that are not committed")
    scripts = {
        "probes": "survey_revisions" if plan.streamed else "probe_checkpoints",
        "forks": "train_fork",
    }
    for name in (name for name in plan.measured if name.endswith(".json")):
        script = f"workflow_scripts/{scripts[Path(name).parts[0]]}.py"
        path = Path(plan.root, name)
        if path.is_file() and read_json(path).get("code") != code_hash(script):
            raise UserError(f"{path} was made by other code than this; run snakemake first")
    targets = [f"{plan.root}/{name}" for name in plan.measured]
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "host"]
    command += ["--configfile", *configfiles] if configfiles else []
    listed = subprocess.run([*command, "--", *targets], capture_output=True, text=True, check=False)
    if listed.returncode or (left := jobs_left(listed.stdout + listed.stderr)):
        jobs = f": {sum(left.values())} jobs left" if not listed.returncode else ""
        raise UserError(f"{plan.root} is not what this code measures{jobs}; run snakemake first")


def frozen_section(plan: SuitePlan, there: set[str], *, folder: str, commit: str) -> dict:
    """The suite of the frozen measurements: as it was measured, without what was not.

    ``there`` names the frozen files, ``commit`` the code that measured them.
    """
    section = copy.deepcopy(dict(plan.section))
    for key in _OF_CHECKPOINTS:
        section.pop(key, None)
    for part, key in plan.unmeasured_keys(there):
        section[part].pop(key)
    if "rivals" not in section.get("fork", {}):
        section.get("fork", {}).pop("rival_seeds", None)
    if set(section.get("mechanism", {})) <= {"batch_size"}:
        section.pop("mechanism", None)
    if section["grid"] == "discover":
        section["grid"] = {"steps": plan.steps, "last": plan.last}
    label = f"{section['label']}, frozen at {commit[:7]}"
    return section | {"label": label, "source": "published", "measurements": folder}


def publish(
    plan: SuitePlan, results: Path, folder: Path, *, commit: str, machine: dict
) -> tuple[int, int]:
    """Write ``folder`` anew from ``results``, the suite's own; returns files and bytes.

    ``machine`` measured them. Raises ``UserError`` where the results are not whole.
    """
    for name in plan.measured:
        if not (results / name).is_file():
            raise UserError(f"{results / name} does not exist: suite {plan.name} is not finished")
    names = {*plan.measured, *(n for n in plan.measured_beside if (results / n).is_file())}
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    size = freeze(results, names, unfinished)
    section = frozen_section(plan, names, folder=folder.as_posix(), commit=commit)
    text = yaml.safe_dump({f"{plan.name}-published": section}, sort_keys=False)
    (unfinished / SUITE_FILE).write_text(text, encoding="utf-8")
    made_by = read_json(results / next(name for name in plan.measured if name.endswith(".json")))
    write_json(
        unfinished / PROVENANCE_FILE,
        {
            "suite": plan.name,
            "commit": commit,
            "machine": machine,
            **{key: made_by[key] for key in ("python", "packages", "device", "threads", "dtype")},
            "files": len(names),
            "bytes": size,
        },
    )
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return len(names), size
