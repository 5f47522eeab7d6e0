"""Planning: a dry run over 154 and 1,540 revisions with six quantizers defined."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from workflow_scripts.bench.checkout import copy_workflow
from workflow_scripts.bench.results import Result, Target, judged
from workflow_scripts.bench.timing import Settings, median, ratio, side_by_side

ROW = "planning"
# Ten powers of two, step 0 and multiples of the spacing are 154 and 1,540 revisions.
SPACING = {154: 1000, 1540: 100}
BOUND = {154: 5, 1540: 40}
QUANTIZERS = {
    f"int{bits}_g{size}": {
        "bits": bits, "granularity": "group", "group_size": size, "symmetric": False,
        "layers": "blocks",
    }
    for bits in (3, 4) for size in (32, 64, 128)
}  # fmt: skip


def configuration(revisions: int) -> dict:
    """A hub suite like the paper's with so many revisions, each probed in a job of its own."""
    spacing = SPACING[revisions]
    last = 143_000 if revisions == 154 else 100 * (revisions - 11)
    return {
        "suite": "pythia-160m",
        "quantizers": QUANTIZERS,
        "suites": {
            "pythia-160m": {
                "keep_checkpoints": True,
                "grid": {"spacing": spacing, "last": last},
                "probe": {"low_bit": next(iter(QUANTIZERS)), "steps_per_job": 1},
            }
        },
    }


def _dry_run(folder: Path, revisions: int) -> Callable[[], None]:
    file = folder / f"{revisions}.yaml"
    file.write_text(yaml.safe_dump(configuration(revisions)))
    target = "results/pythia-160m/audit.csv"

    def plan() -> None:
        command = [sys.executable, "-m", "snakemake", target, "--dry-run", "--quiet", "all"]
        command += ["--configfile", "config.yaml", file]
        run = subprocess.run(command, text=True, capture_output=True, cwd=folder, check=False)
        if run.returncode:
            raise RuntimeError((run.stdout + run.stderr)[-2000:])

    return plan


def run(settings: Settings) -> list[Result]:
    """Wall-clock seconds of each dry run, and how they grow."""
    with tempfile.TemporaryDirectory() as folder:
        copy_workflow(Path(folder))
        counts = [154] if settings.quick else list(SPACING)
        plans = {count: _dry_run(Path(folder), count) for count in counts}
        wall = Settings(settings.quick, settings.threads, "wall")
        seconds = side_by_side(plans, 1 if settings.quick else 2, wall)
    results = [
        judged(
            Target("≤", BOUND[count]), row=ROW, what=f"{count:,} revisions", against="",
            ours=median(seconds[count]), theirs=float("nan"), unit="s",
            ratio=median(seconds[count]), means="seconds:",
        )
        for count in counts
    ]  # fmt: skip
    if len(counts) == 2:
        growth = ratio(seconds[1540], seconds[154])
        results.append(judged(
            Target("≤", 10), row=ROW, what="ten times the revisions", against="154 revisions",
            ours=median(seconds[1540]), theirs=median(seconds[154]), unit="s", ratio=growth,
            means="times as long:",
        ))  # fmt: skip
    return results
