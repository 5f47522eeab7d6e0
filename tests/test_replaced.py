"""If a checkpoint of a local run is replaced, everything that was made from it is made again.

Nothing is computed here. All files of the suite are empty, and ``--touch`` makes Snakemake accept
them. Later dry runs then show the effect of a change.
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
    """The tiny suite, with checkpoints of a local run."""
    tiny = yaml.safe_load((ROOT / TINY).read_text())
    suite = tiny["suites"]["tiny"]
    del suite["architecture"]
    del suite["training"]["jobs_end_at"]
    del suite["mechanism"]["replication"]
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
    """A complete checkpoint of two numbers in two shards. It is never loaded."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    (folder / "tokenizer.json").write_text("{}")
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        save_file({name: np.ones(1, np.float32)}, folder / name)
    index = {"weight_map": {name: name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def accept(folder: Path, *options: str) -> None:
    """Make Snakemake accept all existing files as current."""
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
    """Replace a file by other bytes with the same length and time stamp."""
    status = file.stat()
    content = file.read_bytes()
    copy = file.with_name("copy")
    copy.write_bytes(content[:-1] + b"x")
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(copy, file)


def plan(checkout: Path) -> dict[str, int]:
    """Number of jobs that a dry run plans, by rule. Asserts that the dry run changes no file."""
    results = [path for path in checkout.glob("results/**/*") if path.is_file()]
    states_before = file_states(results)
    jobs: dict[str, int] = {}
    for rule, count in planned(*CONFIGURED, *TARGETS, folder=checkout).items():
        kind = re.sub("^render_notebook_.*", "render_notebook", rule)
        jobs[kind] = jobs.get(kind, 0) + count
    assert file_states(results) == states_before
    return jobs


# Number of jobs that read the checkpoint from which forks start, by rule. Rules on ranges have two
# jobs, and one of them reads it.
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
# Everything that is trained from the fork point.
SERIES = ("forks", "cycles", "variants", "cooled")


def test_a_replaced_shard_reruns_everything_that_reads_its_checkpoint(checkout):
    trainings = []
    for series in SERIES:
        trainings += checkout.glob(f"results/mine/{series}/losses/*.csv")
    replace(checkout / f"runs/checkpoint-{FORK_POINT}/model-00002-of-00002.safetensors")
    jobs = plan(checkout)
    assert {rule: jobs.get(rule) for rule in READERS_OF_THE_FORK_POINT} == READERS_OF_THE_FORK_POINT
    assert jobs["train_fork"] == jobs["probe_fork"] == len(trainings) > 20
    output = dry_run(*CONFIGURED, *TARGETS, folder=checkout).stdout
    warning = f"suite mine: runs/checkpoint-{FORK_POINT} was changed"
    assert output.count(warning) == 1

    # With --touch a user states that the weights are the same. Then nothing is made again.
    accept(checkout)
    assert plan(checkout) == {}

    # A checkpoint of the second range: averages read it, and forks do not.
    replace(checkout / "runs/checkpoint-100/model-00001-of-00002.safetensors")
    jobs = plan(checkout)
    assert jobs["average_checkpoints"] == 2 and "train_fork" not in jobs
    for rule in ("probe_checkpoints", "measure_kurtosis", "describe_checkpoints", "measure_drift"):
        assert jobs[rule] == 1, rule
    assert "calibrate_amplitude" not in jobs and "probe_deployed" not in jobs

    replace(checkout / "runs/checkpoint-120/tokenizer.json")
    assert plan(checkout)["copy_tokenizer"] == 1
