"""Publish the measurements of a suite or of a part: ``flatminima publish``, ``make publish``.

The command writes ``resources/published/{suite}/``, a folder to commit. The folder contains the
measured files, ``SHA256SUMS`` with their digests, ``suite.yaml`` (the settings of the suite, with
source published) and ``provenance.json``. rules/published.smk restores the files.

If the suite is not finished, the largest finished part of it is published: ``table1`` or
``headline``. The line of README.md about Pythia-160m is written from what is published.
"""

import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import yaml

from flatminima.config import plan_forks, plan_mechanism
from flatminima.config.plan_parts import HEADLINE, PAPER_TABLE_1, TABLE_1, part_ranges
from flatminima.config.suites import Suite, read_suite
from flatminima.errors import UserError
from flatminima.files import read_json, write_digests, write_json
from flatminima.jobs import dry_run
from flatminima.quantizer_specs import LOW_BIT

logger = logging.getLogger(__name__)

# Keys that say where checkpoints came from. The measurements have a folder of their own.
_KEYS_OF_CHECKPOINTS = {"repo", "revision", "pattern", "integrity"}
# Copied if they exist: manifests of the text, and tables that no other file is made from.
_MANIFESTS = (
    "data/text.json",
    "data/train_text.json",
    "data/validation_text.json",
    "data/train.json",
    "data/validation.json",
)
_OPTIONAL_FILES = (*_MANIFESTS, "cycles.csv", "deployed.csv", "cooled.csv")
# The lines of README.md around the one that is written from the published measurements.
_BEFORE_LINE = "<!-- `make publish` writes the next line -->"
_AFTER_LINE = "<!-- end of the written line -->"
PAPER_SUITE = "pythia-160m"


def publish_suite(name: str | None, configfiles: Sequence[str], measured_by: str | None) -> int:
    """Write ``resources/published/{suite}`` from ``results/{suite}``; returns exit code 0.

    ``measured_by`` is the commit that measured the results. Without it, the current commit must
    have measured them. Raises ``UserError`` if the results are incomplete or out of date.
    """
    suite = read_suite(name, configfiles)
    folder = Path("resources/published", suite.name)
    part = finished_part(suite, Path(suite.root))
    if measured_by is None:
        check_current(suite, configfiles, folder, part)
    commit = git("rev-parse", f"{measured_by or 'HEAD'}^{{commit}}")
    n_files, n_bytes = publish(
        suite, Path(suite.root), folder, commit=commit, machine=machine(), part=part
    )
    extent = f"the part {part}, " if part else ""
    print(f"{folder}: {extent}{n_files} files, {n_bytes / 1e6:.1f} MB, measured by {commit[:7]}")
    if suite.name == PAPER_SUITE:
        write_measured_line(Path("README.md"), folder)
        print("README.md: the line about what has been measured is written again")
    return 0


def finished_part(suite: Suite, results: Path) -> str | None:
    """The largest part of an unfinished suite whose files all exist; ``None`` without one.

    It is also ``None`` for a finished suite, which is published as a whole.
    """

    def is_finished(part: str | None) -> bool:
        return all((results / file).is_file() for file in measured_files(suite, part).values())

    if is_finished(None):
        return None
    return next(filter(is_finished, _parts_of(suite)), None)


def _parts_of(suite: Suite) -> list[str]:
    """Parts that can be published, the largest first: of the suites that the hub has."""
    return [TABLE_1, HEADLINE] if suite.source == "hub" else []


def measured_files(suite: Suite, part: str | None = None) -> dict[str, str]:
    """Files from which the target ``all`` is made, or a part; all below the suite's folder.

    The keys are the names under which the files are published. Only the table of revisions of a
    part has another name there.
    """
    ranges = part_ranges(suite, part) if part else suite.ranges
    forks = plan_forks.runs(suite, "forks") if suite.config.fork and not part else []
    stems = [f"probes/{steps}" for steps in ranges]
    stems += [f"forks/{fork}" for fork in forks]

    names = [f"kurtosis/{steps}.csv" for steps in ranges]
    for suffix in ("csv", "parquet", "json"):
        names += [f"{stem}.{suffix}" for stem in stems]
    suite_table = f"{part}/suite.csv" if part else "suite.csv"
    return {"suite.csv": suite_table, **{name: name for name in names}}


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


def published_section(
    suite: Suite, published: set[str], *, folder: str, commit: str, part: str | None = None
) -> dict:
    """The suite's section for ``suite.yaml``, without keys whose tables are not published.

    ``published`` names the published files, of all revisions or of a ``part``. ``commit``
    measured them.
    """
    section = suite.config.dump(exclude=_KEYS_OF_CHECKPOINTS)
    label = section["label"]
    if part:
        steps = [step for steps in part_ranges(suite, part) for step in suite.steps_in(steps)]
        section["grid"] = {"steps": steps, "last": suite.last}
        section.pop("fork", None)
        section.pop("mechanism", None)
        label += f", {len(steps)} of {len(suite.steps)} revisions"
    for (section_name, key), tables in _tables_by_key(suite).items():
        if not tables <= published and section_name in section:
            section[section_name].pop(key, None)

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
    section["label"] = f"{label}, stored measurements"
    section["source"] = "published"
    section["measurements"] = folder
    return section


def publish(
    suite: Suite,
    results: Path,
    folder: Path,
    *,
    commit: str,
    machine: Mapping,
    part: str | None = None,
) -> tuple[int, int]:
    """Replace ``folder`` by the measurements in ``results``; returns the number of files and bytes.

    ``commit`` is the code and ``machine`` the machine that the measurements were made with. Only
    a ``part`` is published if it is named. Raises ``UserError`` if a measured file is missing.
    """
    measured = measured_files(suite, part)
    for file in measured.values():
        if not (results / file).is_file():
            raise UserError(f"{results / file} does not exist: suite {suite.name} is not finished")
    further = _MANIFESTS if part else further_files(suite)
    files = {**measured, **{name: name for name in further if (results / name).is_file()}}
    names = sorted(files)

    # The old folder is deleted only when the new one is complete.
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in names:
        (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results / files[name], unfinished / name)
    write_digests(unfinished, names)
    n_bytes = sum((unfinished / name).stat().st_size for name in names)

    section = published_section(
        suite, set(names), folder=folder.as_posix(), commit=commit, part=part
    )
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


def check_current(
    suite: Suite, configfiles: Sequence[str], folder: Path, part: str | None = None
) -> None:
    """Raise ``UserError`` unless the committed code measured the results, or a ``part`` of them.

    Changes in ``folder`` and of README.md are allowed: ``publish`` writes both.
    """
    written = (f":!{folder}", ":!README.md")
    changed_files = git("diff", "--name-only", "HEAD", "--", *written).splitlines()
    if changed_files:
        raise UserError(f"{changed_files[0]} has uncommitted changes; commit them first")
    targets = [f"{suite.root}/{name}" for name in measured_files(suite, part).values()]
    exit_code, remaining_jobs, output = dry_run("--", *targets, configfiles=configfiles)
    if exit_code or remaining_jobs:
        for line in output:
            logger.error(line)
        raise UserError(f"{suite.root} is out of date; run snakemake first")


def measured_line(folder: Path) -> str:
    """What README.md says about the paper's model, from the measurements published in ``folder``.

    The verdicts are not part of the line: the page that it names has them.
    """
    if not (folder / "suite.yaml").is_file():
        return (
            "**Pythia-160m, the paper's model, has not been measured here yet.** No measurement of "
            "the paper is confirmed or refuted."
        )
    [(name, section)] = yaml.safe_load((folder / "suite.yaml").read_text("utf-8")).items()
    probes = pd.concat(
        [pd.read_csv(path) for path in sorted(folder.glob("probes/*.csv"))], ignore_index=True
    )
    last = section["grid"]["last"]
    final = probes[(probes["step"] == last) & (probes["role"] == LOW_BIT)].iloc[0]
    n_steps = probes["step"].nunique()
    return (
        f"**Pythia-160m, the paper's model, has been measured at {n_steps} revisions.** At step "
        f"{last:,} the INT4 gap is {final['gap_pct']:.1f} % [{final['gap_low_pct']:.1f}, "
        f"{final['gap_high_pct']:.1f}]; the paper prints {_printed_final_gap()} %. "
        f"`snakemake --cores 1 results/{name}/headline.html` shows the verdicts."
    )


def _printed_final_gap() -> str:
    """INT4 gap of the last row of the paper's Table 1, as printed."""
    return pd.read_csv(PAPER_TABLE_1, dtype=str)["int4_gap_pct"].iloc[-1]


def write_measured_line(page: Path, folder: Path) -> None:
    """Write ``measured_line`` into ``page``, between its two marks."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(_BEFORE_LINE)
    _, end_mark, after = rest.partition(_AFTER_LINE)
    if not mark or not end_mark:
        raise UserError(f"{page}: lacks the marks {_BEFORE_LINE} and {_AFTER_LINE}")
    line = measured_line(folder)
    page.write_text(f"{before}{mark}\n{line}\n{end_mark}{after}", encoding="utf-8")


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
