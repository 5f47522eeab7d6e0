"""A checkpoint of one's own run is replaced: everything that was made of it is made anew.

Nothing is computed here. Every file that the suite makes is an empty one, and Snakemake is told
with ``--touch`` that it is current; what a dry run plans after that follows from a change.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from flatminima.revisions import file_states
from tests.workflow import ROOT, TINY, copy_checkout, described, dry_run, planned, snakemake

pytestmark = pytest.mark.workflow

STEPS = (20, 40, 60, 80, 100, 120)
FORK_POINT = 60
CONFIGURED = ("--configfile", "mine.yaml")
TARGETS = ("--", "all", "extended", "results/mine/deployed.csv", "results/mine/cycles.csv")


def configuration() -> dict:
    """The tiny suite with its checkpoints taken from a run of one's own."""
    tiny = yaml.safe_load((ROOT / TINY).read_text())
    suite = tiny["suites"]["tiny"]
    del suite["architecture"], suite["training"]["jobs_end_at"], suite["mechanism"]["replication"]
    suite |= {
        "label": "mine",
        "source": "local",
        "pattern": "runs/checkpoint-{step}",
        "grid": {"steps": list(STEPS)},
        "tokenizer": {},
    }
    suite["probe"]["steps_per_job"] = 3
    suite["fork"]["keep_checkpoints"] = True
    suite["mechanism"]["factorial"]["steps"] = [FORK_POINT, 120]
    return {"suite": "mine", "quantizers": tiny["quantizers"], "suites": {"mine": suite}}


def write_checkpoint(folder: Path) -> None:
    """A whole checkpoint of two numbers in two shards, which nobody loads."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    (folder / "tokenizer.json").write_text("{}")
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        save_file({name: np.ones(1, np.float32)}, folder / name)
    index = {"weight_map": {name: name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def accept(folder: Path, *options: str) -> None:
    """Tell Snakemake that what is there was made of what is there."""
    run = snakemake("--cores", "1", "--touch", *options, *CONFIGURED, *TARGETS, folder=folder)
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    folder = copy_checkout(tmp_path_factory.mktemp("replaced"))
    for step in STEPS:
        write_checkpoint(folder / f"runs/checkpoint-{step}")
    (folder / "mine.yaml").write_text(yaml.safe_dump(configuration()))
    jobs = described(*CONFIGURED, *TARGETS, folder=folder)["jobs"]
    assert len(jobs) > 80
    for job in jobs:
        for name in job["outputs"]:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            is_folder = job["rule"].startswith("train_fork") and not Path(name).suffix
            path.mkdir() if is_folder else path.touch()
    accept(folder, "--forceall")
    assert planned(*CONFIGURED, *TARGETS, folder=folder) == {}
    return folder


def replace(file: Path) -> None:
    """Put other bytes in the place of a file, with its length and its time stamp."""
    stamp, content = file.stat(), file.read_bytes()
    copy = file.with_name("copy")
    copy.write_bytes(content[:-1] + b"x")
    os.utime(copy, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    os.replace(copy, file)


def plan(checkout: Path) -> dict[str, int]:
    """Jobs by rule that a dry run plans; notebooks are one kind. It changes no file."""
    results = [path for path in checkout.glob("results/**/*") if path.is_file()]
    before = file_states(results)
    jobs: dict[str, int] = {}
    for rule, count in planned(*CONFIGURED, *TARGETS, folder=checkout).items():
        kind = re.sub("^render_notebook_.*", "render_notebook", rule)
        jobs[kind] = jobs.get(kind, 0) + count
    assert file_states(results) == before
    return jobs


# What reads the weights of a checkpoint that forks leave from, by the number of its jobs: one of
# two ranges; the last checkpoint of most measurements is not the fork point.
READERS_OF_THE_FORK_POINT = {
    "describe_checkpoints": 1,
    "probe_checkpoints": 1,
    "measure_kurtosis": 1,
    "probe_deployed": 1,
    "calibrate_amplitude": 1,
    "trace_phase_flips": 1,
    "measure_drift": 1,
    "measure_factorial": 1,
}
# Forks with their cool-downs, cycles and variants are trained anew, all of them.
SERIES = ("forks", "cycles", "variants", "cooled")


def test_a_replaced_shard_reruns_everything_that_reads_its_checkpoint(checkout):
    everything = [
        path for name in SERIES for path in checkout.glob(f"results/mine/{name}/losses/*.csv")
    ]
    replace(checkout / f"runs/checkpoint-{FORK_POINT}/model-00002-of-00002.safetensors")
    jobs = plan(checkout)
    assert {rule: jobs.get(rule) for rule in READERS_OF_THE_FORK_POINT} == READERS_OF_THE_FORK_POINT
    assert jobs["train_fork"] == jobs["probe_fork"] == len(everything) > 20
    said = dry_run(*CONFIGURED, *TARGETS, folder=checkout).stdout
    line = f"suite mine: runs/checkpoint-{FORK_POINT} was changed since it was measured"
    assert said.count(line) == 1

    # Whoever knows that the weights are the same says so, and nothing is made anew.
    accept(checkout)
    assert plan(checkout) == {}

    # One of the second range, which averages and the sensitivity read and forks do not.
    replace(checkout / "runs/checkpoint-100/model-00001-of-00002.safetensors")
    jobs = plan(checkout)
    assert jobs["average_checkpoints"] == 2 and "train_fork" not in jobs
    for rule in ("probe_checkpoints", "measure_kurtosis", "describe_checkpoints", "measure_drift"):
        assert jobs[rule] == 1, rule
    assert "calibrate_amplitude" not in jobs and "probe_deployed" not in jobs

    replace(checkout / "runs/checkpoint-120/tokenizer.json")
    assert plan(checkout)["copy_tokenizer"] == 1
