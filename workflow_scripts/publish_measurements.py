"""Freeze the measurements of a finished suite, to be committed: ``make publish SUITE=…``.

A folder ``resources/published/{suite}/`` has the measured files, ``SHA256SUMS`` with their
digests, ``suite.yaml`` (the suite as it was measured, with source published) and
``provenance.json``; rules/published.smk brings them back.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from flatminima.config import plan_forks, plan_mechanism
from flatminima.config.suites import Suite, read_suite
from flatminima.errors import UserError
from flatminima.files import read_json, write_digests, write_json
from flatminima.jobs import dry_run

# Where checkpoints came from; the measurements have their own place.
_OF_CHECKPOINTS = {"repo", "revision", "pattern", "integrity"}
# Where they exist: manifests of the data, and tables that nothing else is made from.
_BESIDE = (
    *("data/text.json", "data/train.json", "data/validation.json"),
    *("cycles.csv", "deployed.csv", "cooled.csv"),
)


def main(*, suite: str | None, configfiles: list[str], measured_by: str | None) -> None:
    """Write ``resources/published/{suite}`` from ``results/{suite}``."""
    found = read_suite(suite, configfiles)
    folder = Path("resources/published", found.name)
    if measured_by is None:
        check_current(found, configfiles, folder)
    commit = git("rev-parse", f"{measured_by or 'HEAD'}^{{commit}}")
    files, size = publish(found, Path(found.root), folder, commit=commit, machine=machine())
    print(f"{folder}: {files} files, {size / 1e6:.1f} MB, measured by {commit[:7]}")


def measured_files(suite: Suite) -> list[str]:
    """Files, below the suite's folder, that everything of the target ``all`` is made from."""
    runs = plan_forks.runs(suite, "forks") if suite.config.fork else []
    stems = [*(f"probes/{steps}" for steps in suite.ranges), *(f"forks/{run}" for run in runs)]
    names = ["suite.csv", *(f"kurtosis/{steps}.csv" for steps in suite.ranges)]
    return names + [f"{stem}.{suffix}" for suffix in ("csv", "parquet", "json") for stem in stems]


def _beyond(suite: Suite) -> dict[tuple[str, str], set[str]]:
    """Tables that take no part in ``all``, by the section and the key that asks for them."""
    forks = plan_forks.fork_measurements(suite)
    found = {("fork", key): {path.removeprefix(f"{suite.root}/")} for key, path in forks.items()}
    for measure in plan_mechanism.measured(suite):
        names = (*plan_mechanism.TABLES[measure], *plan_mechanism.BESIDE.get(measure, ()))
        found["mechanism", measure] = {f"mechanism/{name}.csv" for name in names}
    return found


def further_files(suite: Suite) -> list[str]:
    """Further files that are frozen where they exist."""
    return [*_BESIDE, *(name for names in _beyond(suite).values() for name in names)]


def frozen_section(suite: Suite, there: set[str], *, folder: str, commit: str) -> dict:
    """The suite of the frozen measurements: as it was measured, without what was not.

    ``there`` names the frozen files, ``commit`` the code that measured them.
    """
    section = suite.config.dump(exclude=_OF_CHECKPOINTS)
    for (part, key), names in _beyond(suite).items():
        if not names <= there:
            section[part].pop(key, None)
    fork, mechanism = section.get("fork", {}), section.get("mechanism", {})
    if "cooled.csv" not in there:
        fork.pop("cooldown_steps", None)
        if fork.get("primary", {}).get("measure") == "cooled_gap_pct":
            del fork["primary"]
    if "rivals" not in fork:
        fork.pop("rival_seeds", None)
    mechanism.pop("second_arm", None)  # a suite of its own
    if set(mechanism) <= {"batch_size"}:
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
    write_digests(unfinished, names)
    section = frozen_section(suite, set(names), folder=folder.as_posix(), commit=commit)
    text = yaml.safe_dump({f"{suite.name}-published": section}, sort_keys=False)
    (unfinished / "suite.yaml").write_text(text, encoding="utf-8")
    size = sum((unfinished / name).stat().st_size for name in names)
    record = read_json(results / next(name for name in measured if name.endswith(".json")))
    kept = {key: record[key] for key in ("python", "packages", "device", "threads", "dtype")}
    about = {"suite": suite.name, "commit": commit, "machine": machine, **kept}
    write_json(unfinished / "provenance.json", {**about, "files": len(names), "bytes": size})
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return len(names), size


def check_current(suite: Suite, configfiles: Sequence[str], folder: Path) -> None:
    """Raise ``UserError`` unless the results are what the committed code measures.

    ``folder`` may have changes: it is what will be written.
    """
    if changed := git("diff", "--name-only", "HEAD", "--", f":!{folder}").splitlines():
        raise UserError(f"{changed[0]} has changes that are not committed")
    targets = [f"{suite.root}/{name}" for name in measured_files(suite)]
    code, left, said = dry_run("--", *targets, configfiles=configfiles)
    if code or left:
        print("\n".join(said), file=sys.stderr)
        raise UserError(f"{suite.root} is not what this code measures; run snakemake first")


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite")
    parser.add_argument("--configfile", nargs="*", default=[], dest="configfiles")
    parser.add_argument("--measured-by", help="commit of results that another code measured")
    try:
        main(**vars(parser.parse_args()))
    except UserError as error:
        sys.exit(f"Error: {error}")
