"""Freeze the measurements of a finished suite, with their digests and where they come from."""

import copy
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from flatminima import plan, plan_forks, plan_mechanism
from flatminima.code_hash import ROOT, code_hash
from flatminima.errors import UserError
from flatminima.files import DIGESTS_FILE, file_sha256, read_json, write_json
from flatminima.jobs import dry_run
from flatminima.suites import Suite

SUITE_FILE, PROVENANCE_FILE = "suite.yaml", "provenance.json"
# Where checkpoints came from; the measurements have their own place.
_OF_CHECKPOINTS = ("repo", "revision", "pattern", "integrity")
# Where they exist: manifests of the data, and tables that nothing else is made from.
_BESIDE = (
    "data/text.json",
    "data/train.json",
    "data/validation.json",
    "cycles.csv",
    "deployed.csv",
    "cooled.csv",
)


def measured_files(suite: Suite) -> list[str]:
    """Files, below the suite's folder, that everything of the target ``all`` is made from."""
    names = ["suite.csv", *(f"kurtosis/{steps}.csv" for steps in plan.ranges(suite))]
    stems = [f"probes/{steps}" for steps in plan.ranges(suite)]
    if "fork" in suite.section:
        stems += [f"forks/{run}" for run in plan_forks.runs(suite, "forks")]
    return names + [f"{stem}.{suffix}" for suffix in ("csv", "parquet", "json") for stem in stems]


def _mechanism_files(suite: Suite) -> dict[str, list[str]]:
    """Tables of each measurement beyond the paper that is asked for, and what figures read."""
    beside = {"factorial": ["factorial"], "replication": ["replication_runs"]}
    return {
        measure: [f"mechanism/{name}.csv" for name in (*tables, *beside.get(measure, ()))]
        for measure, tables in plan_mechanism.FINDING_TABLES.items()
        if measure in plan_mechanism.mechanism(suite)
    }


def further_files(suite: Suite) -> list[str]:
    """Further files that are frozen where they exist: tables that take no part in ``all``."""
    measured = plan_forks.fork_measurements(suite).values()
    forks = (path.removeprefix(f"{suite.root}/") for path in measured)
    tables = [name for names in _mechanism_files(suite).values() for name in names]
    return [*_BESIDE, *forks, *tables]


def frozen_section(suite: Suite, there: set[str], *, folder: str, commit: str) -> dict:
    """The suite of the frozen measurements: as it was measured, without what was not.

    ``there`` names the frozen files, ``commit`` the code that measured them.
    """
    section = copy.deepcopy(dict(suite.section))
    for key in _OF_CHECKPOINTS:
        section.pop(key, None)
    for measure, names in _mechanism_files(suite).items():
        if not set(names) <= there:
            section["mechanism"].pop(measure)
    for key, path in plan_forks.fork_measurements(suite).items():
        if key != "calibration" and path.removeprefix(f"{suite.root}/") not in there:
            section["fork"].pop(key)
    if "rivals" not in section.get("fork", {}):
        section.get("fork", {}).pop("rival_seeds", None)
    section.get("mechanism", {}).pop("second_arm", None)  # a suite of its own
    if set(section.get("mechanism", {})) <= {"batch_size"}:
        section.pop("mechanism", None)
    if section["grid"] == "discover":
        section["grid"] = {"steps": suite.steps, "last": suite.last}
    label = f"{section['label']}, frozen at {commit[:7]}"
    return section | {"label": label, "source": "published", "measurements": folder}


def publish(
    suite: Suite, results: Path, folder: Path, *, commit: str, machine: dict
) -> tuple[int, int]:
    """Write ``folder`` anew from ``results``, the suite's own; returns files and bytes.

    ``machine`` measured them. Raises ``UserError`` where the results are not whole.
    """
    measured = measured_files(suite)
    for name in measured:
        if not (results / name).is_file():
            raise UserError(f"{results / name} does not exist: suite {suite.name} is not finished")
    names = sorted({*measured, *(n for n in further_files(suite) if (results / n).is_file())})
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in names:
        (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results / name, unfinished / name)
    lines = [f"{file_sha256(unfinished / name)}  {name}\n" for name in names]
    (unfinished / DIGESTS_FILE).write_text("".join(lines), encoding="utf-8")
    section = frozen_section(suite, set(names), folder=folder.as_posix(), commit=commit)
    text = yaml.safe_dump({f"{suite.name}-published": section}, sort_keys=False)
    (unfinished / SUITE_FILE).write_text(text, encoding="utf-8")
    size = sum((unfinished / name).stat().st_size for name in names)
    record = read_json(results / next(name for name in measured if name.endswith(".json")))
    kept = {key: record[key] for key in ("python", "packages", "device", "threads", "dtype")}
    about = {"suite": suite.name, "commit": commit, "machine": machine, **kept}
    write_json(unfinished / PROVENANCE_FILE, {**about, "files": len(names), "bytes": size})
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return len(names), size


def check_current(suite: Suite, configfiles: Sequence[str], folder: Path) -> None:
    """Raise ``UserError`` unless the results are what the committed code measures.

    ``folder`` may have changes: it is what will be written.
    """
    if changed := git("diff", "--name-only", "HEAD", "--", f":!{folder}").splitlines():
        raise UserError(f"{changed[0]} has changes that are not committed")
    scripts = sorted(Path(ROOT, "workflow_scripts").glob("*.py"))
    known = {code_hash(path.relative_to(ROOT).as_posix()) for path in scripts}
    for path in (Path(suite.root, n) for n in measured_files(suite) if n.endswith(".json")):
        record = read_json(path) if path.is_file() else {}
        made = [part.get("code") for part in (record, record.get("training", {})) if part]
        if not known.issuperset(made):
            raise UserError(f"{path} was made by other code than this; run snakemake first")
    targets = [f"{suite.root}/{name}" for name in measured_files(suite)]
    code, left, said = dry_run("--", *targets, configfiles=configfiles)
    if code or left:
        jobs = f": {sum(left.values())} jobs left" if left else ""
        print("\n".join(said), file=sys.stderr)
        raise UserError(f"{suite.root} is not what this code measures{jobs}; run snakemake first")


def machine() -> dict:
    """Processor, cores and architecture of this machine; no name of it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = named[0] if named else platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": os.cpu_count(), "architecture": platform.machine()}


def git(*arguments: str) -> str:
    """What git prints; a ``UserError`` where it fails."""
    run = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise UserError(f"git {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout.strip()
