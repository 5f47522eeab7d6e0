"""Frozen measurements of a suite: ``make publish`` writes them, ``restore`` reads them back.

A folder ``resources/published/{suite}/`` has the measured files, ``SHA256SUMS`` with their
digests, ``suite.yaml`` (the suite as it was measured, with source published) and
``provenance.json``.
"""

import copy
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from flatminima.code_hash import ROOT, code_hash
from flatminima.errors import DamagedFile, UserError
from flatminima.files import file_sha256, read_json, write_json
from flatminima.jobs import jobs_left

DIGESTS_FILE, SUITE_FILE, PROVENANCE_FILE = "SHA256SUMS", "suite.yaml", "provenance.json"
# Where checkpoints came from; the measurements have their own place.
_OF_CHECKPOINTS = ("repo", "revision", "pattern", "integrity")
# Where they exist: manifests of the data, and tables that nothing else is made from.
_BESIDE = (
    "data/text.json",
    "data/train.json",
    "data/validation.json",
    "cycles.csv",
    "deployed.csv",
)


def read_digests(folder: Path) -> dict[str, str]:
    """sha256 of each measured file by its name below ``folder``, in the order of the list.

    Raises ``DamagedFile`` where the list is missing or is none.
    """
    path = folder / DIGESTS_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{path} cannot be read; {_cure(folder)}") from error
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, digest in (digests or {"": ""}).items():
        inside = name and not Path(name).is_absolute() and ".." not in Path(name).parts
        if len(digest) != 64 or not inside:
            raise DamagedFile(f"{path} is no list of digests and names; {_cure(folder)}")
    return digests


def _cure(folder: Path) -> str:
    return f"git checkout -- {folder.as_posix()} brings back what was committed"


def missing_file(folder: Path, names: Iterable[str]) -> str | None:
    """One line on the first of ``names`` that is not in ``folder``."""
    lost = next((name for name in names if not (folder / name).is_file()), None)
    return lost and f"{folder / lost} is missing; {_cure(folder)}"


def restore(folder: Path, paths: Sequence[str | Path]) -> None:
    """Copy every measured file of ``folder``, in the order of its list, to ``paths``.

    All are compared with their digests before any is written. Raises ``DamagedFile``, which
    names the file, where one is not what was measured.
    """
    digests = read_digests(folder)
    if line := missing_file(folder, digests):
        raise DamagedFile(line)
    for name, digest in digests.items():
        if file_sha256(folder / name) != digest:
            raise DamagedFile(
                f"{folder / name}: damaged or changed, its sha256 is not the one in "
                f"{DIGESTS_FILE}; {_cure(folder)}"
            )
    for name, path in zip(digests, map(Path, paths), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, path)


def measured_files(plan: object) -> list[str]:
    """Files, below the suite's folder, that everything of the target ``all`` is made from."""
    paths = [*plan.probe_tables, *plan.probe_sequences, *plan.kurtosis_tables]
    tables = list(plan.probe_tables)
    if plan.has_forks:
        paths += [*plan.forks, *plan.fork_sequences]
        tables += plan.forks
    paths += [Path(path).with_suffix(".json").as_posix() for path in tables]
    return ["suite.csv", *(path.removeprefix(f"{plan.root}/") for path in paths)]


def further_files(plan: object) -> list[str]:
    """Further files that are frozen where they exist: tables that take no part in ``all``."""
    forks = (path.removeprefix(f"{plan.root}/") for path in plan.fork_measurements.values())
    tables = [name for names in plan.mechanism_files.values() for name in names]
    return [*_BESIDE, *forks, *tables]


def frozen_section(plan: object, there: set[str], *, folder: str, commit: str) -> dict:
    """The suite of the frozen measurements: as it was measured, without what was not.

    ``there`` names the frozen files, ``commit`` the code that measured them.
    """
    section = copy.deepcopy(dict(plan.section))
    for key in _OF_CHECKPOINTS:
        section.pop(key, None)
    for measure, names in plan.mechanism_files.items():
        if not set(names) <= there:
            section["mechanism"].pop(measure)
    for key, path in plan.fork_measurements.items():
        if key != "calibration" and path.removeprefix(f"{plan.root}/") not in there:
            section["fork"].pop(key)
    if "rivals" not in section.get("fork", {}):
        section.get("fork", {}).pop("rival_seeds", None)
    if set(section.get("mechanism", {})) <= {"batch_size"}:
        section.pop("mechanism", None)
    if section["grid"] == "discover":
        section["grid"] = {"steps": plan.steps, "last": plan.last}
    label = f"{section['label']}, frozen at {commit[:7]}"
    return section | {"label": label, "source": "published", "measurements": folder}


def publish(
    plan: object, results: Path, folder: Path, *, commit: str, machine: dict
) -> tuple[int, int]:
    """Write ``folder`` anew from ``results``, the suite's own; returns files and bytes.

    ``machine`` measured them. Raises ``UserError`` where the results are not whole.
    """
    measured = measured_files(plan)
    for name in measured:
        if not (results / name).is_file():
            raise UserError(f"{results / name} does not exist: suite {plan.name} is not finished")
    names = sorted({*measured, *(n for n in further_files(plan) if (results / n).is_file())})
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in names:
        (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results / name, unfinished / name)
    lines = [f"{file_sha256(unfinished / name)}  {name}\n" for name in names]
    (unfinished / DIGESTS_FILE).write_text("".join(lines), encoding="utf-8")
    section = frozen_section(plan, set(names), folder=folder.as_posix(), commit=commit)
    text = yaml.safe_dump({f"{plan.name}-published": section}, sort_keys=False)
    (unfinished / SUITE_FILE).write_text(text, encoding="utf-8")
    size = sum((unfinished / name).stat().st_size for name in names)
    record = read_json(results / next(name for name in measured if name.endswith(".json")))
    kept = {key: record[key] for key in ("python", "packages", "device", "threads", "dtype")}
    about = {"suite": plan.name, "commit": commit, "machine": machine, **kept}
    write_json(unfinished / PROVENANCE_FILE, {**about, "files": len(names), "bytes": size})
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return len(names), size


def check_current(plan: object, configfiles: Sequence[str], folder: Path) -> None:
    """Raise ``UserError`` unless the results are what the committed code measures.

    ``folder`` may have changes: it is what will be written.
    """
    if changed := git("diff", "--name-only", "HEAD", "--", f":!{folder}").splitlines():
        raise UserError(f"{changed[0]} has changes that are not committed")
    scripts = sorted(Path(ROOT, "workflow_scripts").glob("*.py"))
    known = {code_hash(path.relative_to(ROOT).as_posix()) for path in scripts}
    for path in (Path(plan.root, n) for n in measured_files(plan) if n.endswith(".json")):
        record = read_json(path) if path.is_file() else {}
        made = [part.get("code") for part in (record, record.get("training", {})) if part]
        if not known.issuperset(made):
            raise UserError(f"{path} was made by other code than this; run snakemake first")
    targets = [f"{plan.root}/{name}" for name in measured_files(plan)]
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "host"]
    command += ["--configfile", *configfiles] if configfiles else []
    run = subprocess.run([*command, "--", *targets], capture_output=True, text=True, check=False)
    left = jobs_left(run.stdout + run.stderr)
    if run.returncode or left:
        jobs = f": {sum(left.values())} jobs left" if left else ""
        raise UserError(f"{plan.root} is not what this code measures{jobs}; run snakemake first")


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
