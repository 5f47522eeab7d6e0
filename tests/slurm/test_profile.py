"""The profile for SLURM as Snakemake reads it; test_slurm.py runs it on a cluster."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from tests.workflow import ROOT, TINY, copy_checkout

PROFILE = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
RULES = {
    name
    for path in ROOT.glob("rules/*.smk")
    for name in re.findall(
        r"^(?:use rule \w+ as|rule) (\w+)(?: with)?:", path.read_text(), re.MULTILINE
    )
}
HUB = "tests/config/pythia_tiny.yaml"
# No part of any plan below: the example, the search, and other ways to make the same files.
NOT_PLANNED = {
    "train_example", "audit_example", "judge_claims_one", "judge_claims_paper_one",
    "measure_kurtosis_of_fork",
    "copy_tokenizer", "fix_batches_validation", "render_notebook_your_run",
}  # fmt: skip
# What the paper's own model needs is 0.65 GB of weights, and several times that when it is trained.
LEAST_MB = 8000


def test_the_profile_names_rules_that_exist_and_requests_that_grow():
    """Snakemake would read what follows a comma as a request of its own."""
    assert set(PROFILE["set-resources"]) <= RULES and PROFILE["retries"] >= 1
    for asked in (PROFILE["default-resources"], *PROFILE["set-resources"].values()):
        assert set(asked) <= {"mem_mb", "runtime"}
        assert all(text.startswith("attempt * ") and "," not in text for text in asked.values())


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """A checkout without results: what stands there would be planned no more."""
    return copy_checkout(tmp_path_factory.mktemp("clean"))


def plan(configfile: str, folder: Path, *targets: str, attempt: int = 1) -> list[dict]:
    """Jobs that would be submitted for a suite on GPUs (see planned_jobs.py)."""
    name = "tiny" if configfile == TINY else "pythia-160m"
    changes = folder / "changes.yaml"
    changes.write_text(yaml.safe_dump({"suites": {name: {"device": "cuda"}}}))
    run = subprocess.run(
        [
            sys.executable, "-m", "tests.slurm.planned_jobs", folder / "plan.json",
            "--attempt", str(attempt), "--workflow-profile", "profiles/slurm",
            "--configfile", configfile, changes, "--", *targets,
        ],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-1000:] + run.stderr[-3000:]
    return json.loads((folder / "plan.json").read_text())["jobs"]


@pytest.fixture(scope="module")
def trained(clean) -> list[dict]:
    """Jobs of everything of a suite that is trained here, first attempt."""
    more = ("results/tiny/cycles.csv", "results/tiny/deployed.csv")
    return plan(TINY, clean, "all", "extended", *more)


@pytest.fixture(scope="module")
def fetched(clean) -> list[dict]:
    """Jobs of everything of a hub suite."""
    return plan(HUB, clean, "all", "extended")


@pytest.mark.workflow
def test_a_job_asks_for_memory_and_time_and_for_a_gpu_where_its_model_is_on_one(trained, fetched):
    """What a job works on is told by its parameter ``device``, not by what it asks for."""
    asked = defaultdict(list)
    for job in [*trained, *fetched]:
        asked[job["rule"]].append(job)
    assert set(asked) >= RULES - NOT_PLANNED
    on_gpus = set()
    for rule, jobs in asked.items():
        assert all((job["gpu"] or 0) == ("cuda" in job["devices"]) for job in jobs), rule
        least, shortest = (min(job[name] for job in jobs) for name in ("mem_mb", "runtime"))
        if any(job["gpu"] for job in jobs):
            on_gpus.add(rule)
            assert least >= LEAST_MB, rule
        assert least >= 2000 and shortest >= 15, rule
        if rule.startswith(("train_fork", "cool_fork", "pretrain_suite")):
            assert shortest >= 24 * 60, rule
    assert {"probe_checkpoints", "probe_revision", "train_fork", "train_fork_temporary",
            "probe_fork", "measure_mechanism", "probe_deployed"} <= on_gpus  # fmt: skip


@pytest.mark.workflow
def test_every_job_asks_for_more_when_it_is_started_again(trained, clean):
    def requests(jobs):
        return {(job["rule"], *job["wildcards"].items()): (job["mem_mb"], job["runtime"])
                for job in jobs}  # fmt: skip

    first = requests(trained)
    second = requests(plan(TINY, clean, "all", "extended", attempt=2))
    assert set(second) < set(first) and len(second) > 90
    for job, (memory, minutes) in second.items():
        assert memory == 2 * first[job][0] and minutes == 2 * first[job][1], job
