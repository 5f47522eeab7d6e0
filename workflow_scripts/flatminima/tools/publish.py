"""Publish the measurements of a finished suite: ``flatminima publish``, ``make publish``.

The command writes ``resources/published/{suite}/``, a folder to commit. The folder contains the
measured files, ``SHA256SUMS`` with their digests, ``suite.yaml`` (the settings of the suite, with
source published) and ``provenance.json``. rules/published.smk restores the files.
"""

import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from flatminima.config import plan_forks, plan_mechanism
from flatminima.config.suites import Suite, read_suite
from flatminima.errors import UserError
from flatminima.files import read_json, write_digests, write_json
from flatminima.jobs import dry_run

logger = logging.getLogger(__name__)

# Keys that say where checkpoints came from. The measurements have a folder of their own.
_KEYS_OF_CHECKPOINTS = {"repo", "revision", "pattern", "integrity"}
# Copied if they exist: manifests of the text, and tables that no other file is made from.
_OPTIONAL_FILES = (
    "data/text.json",
    "data/train_text.json",
    "data/validation_text.json",
    "data/train.json",
    "data/validation.json",
    "cycles.csv",
    "deployed.csv",
    "cooled.csv",
)


def publish_suite(name: str | None, configfiles: Sequence[str], measured_by: str | None) -> int:
    """Write ``resources/published/{suite}`` from ``results/{suite}``; returns exit code 0.

    ``measured_by`` is the commit that measured the results. Without it, the current commit must
    have measured them. Raises ``UserError`` if the results are incomplete or out of date.
    """
    suite = read_suite(name, configfiles)
    folder = Path("resources/published", suite.name)
    if measured_by is None:
        check_current(suite, configfiles, folder)
    commit = git("rev-parse", f"{measured_by or 'HEAD'}^{{commit}}")
    n_files, n_bytes = publish(suite, Path(suite.root), folder, commit=commit, machine=machine())
    print(f"{folder}: {n_files} files, {n_bytes / 1e6:.1f} MB, measured by {commit[:7]}")
    return 0


def measured_files(suite: Suite) -> list[str]:
    """Files from which the target ``all`` is made, as paths below the suite's folder."""
    forks = plan_forks.runs(suite, "forks") if suite.config.fork else []
    stems = [f"probes/{steps}" for steps in suite.ranges]
    stems += [f"forks/{fork}" for fork in forks]

    names = ["suite.csv"]
    names += [f"kurtosis/{steps}.csv" for steps in suite.ranges]
    for suffix in ("csv", "parquet", "json"):
        names += [f"{stem}.{suffix}" for stem in stems]
    return names


def _tables_by_key(suite: Suite) -> dict[tuple[str, str], set[str]]:
    """Tables that are not part of ``all``, by the section and key that request them."""
    tables: dict[tuple[str, str], set[str]] = {}
    for key, path in plan_forks.fork_measurements(suite).items():
        tables["fork", key] = {path.removeprefix(f"{suite.root}/")}
    for measure in plan_mechanism.measured(suite):
        names = [*plan_mechanism.TABLES[measure], *plan_mechanism.FIGURE_TABLES.get(measure, ())]
        tables["mechanism", measure] = {f"mechanism/{name}.csv" for name in names}
    return tables


def further_files(suite: Suite) -> list[str]:
    """Further files that are published if they exist."""
    names = list(_OPTIONAL_FILES)
    for tables in _tables_by_key(suite).values():
        names += tables
    return names


def published_section(suite: Suite, published: set[str], *, folder: str, commit: str) -> dict:
    """The suite's section for ``suite.yaml``, without keys whose tables are not published.

    ``published`` names the published files. ``commit`` measured them.
    """
    section = suite.config.dump(exclude=_KEYS_OF_CHECKPOINTS)
    for (part, key), tables in _tables_by_key(suite).items():
        if not tables <= published:
            section[part].pop(key, None)

    fork = section.get("fork", {})
    if "cooled.csv" not in published:
        fork.pop("cooldown_steps", None)
        if fork.get("primary", {}).get("measure") == "cooled_gap_pct":
            del fork["primary"]
    if "rivals" not in fork:
        fork.pop("rival_seeds", None)

    mechanism = section.get("mechanism", {})
    mechanism.pop("second_arm", None)  # a suite of its own
    if set(mechanism) <= {"batch_size"}:
        section.pop("mechanism", None)

    # A published suite has no checkpoints in which steps could be discovered.
    if section["grid"] == "discover":
        section["grid"] = {"steps": suite.steps, "last": suite.last}
    section["label"] = f"{section['label']}, frozen at {commit[:7]}"
    section["source"] = "published"
    section["measurements"] = folder
    return section


def publish(
    suite: Suite, results: Path, folder: Path, *, commit: str, machine: Mapping
) -> tuple[int, int]:
    """Replace ``folder`` by the measurements in ``results``; returns the number of files and bytes.

    ``commit`` is the code and ``machine`` the machine that the measurements were made with.
    Raises ``UserError`` if a measured file is missing.
    """
    measured = measured_files(suite)
    for name in measured:
        if not (results / name).is_file():
            raise UserError(f"{results / name} does not exist: suite {suite.name} is not finished")
    optional = [name for name in further_files(suite) if (results / name).is_file()]
    names = sorted({*measured, *optional})

    # The old folder is deleted only when the new one is complete.
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in names:
        (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results / name, unfinished / name)
    write_digests(unfinished, names)
    n_bytes = sum((unfinished / name).stat().st_size for name in names)

    section = published_section(suite, set(names), folder=folder.as_posix(), commit=commit)
    text = yaml.safe_dump({f"{suite.name}-published": section}, sort_keys=False)
    (unfinished / "suite.yaml").write_text(text, encoding="utf-8")

    first_record = next(name for name in measured if name.endswith(".json"))
    made_by = read_json(results / first_record)
    provenance = {"suite": suite.name, "commit": commit, "machine": machine}
    provenance |= {
        key: made_by[key] for key in ("python", "packages", "device", "threads", "dtype")
    }
    provenance |= {"files": len(names), "bytes": n_bytes}
    write_json(unfinished / "provenance.json", provenance)

    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return len(names), n_bytes


def check_current(suite: Suite, configfiles: Sequence[str], folder: Path) -> None:
    """Raise ``UserError`` unless the committed code measured the results.

    Changes in ``folder`` are allowed: ``publish`` replaces it.
    """
    changed_files = git("diff", "--name-only", "HEAD", "--", f":!{folder}").splitlines()
    if changed_files:
        raise UserError(f"{changed_files[0]} has uncommitted changes; commit them first")
    targets = [f"{suite.root}/{name}" for name in measured_files(suite)]
    exit_code, remaining_jobs, output = dry_run("--", *targets, configfiles=configfiles)
    if exit_code or remaining_jobs:
        for line in output:
            logger.error(line)
        raise UserError(f"{suite.root} is out of date; run snakemake first")


def machine() -> dict:
    """Processor, cores and architecture of this machine. Its name is not recorded."""
    cpu = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {"cpu": cpu, "cores": os.cpu_count(), "architecture": platform.machine()}


def git(*arguments: str) -> str:
    """Run git and return its output. Raises ``UserError`` if git fails."""
    run = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise UserError(f"git {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout.strip()
