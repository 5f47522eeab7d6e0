"""The profile for SLURM as Snakemake reads it; test_slurm.py runs it on a cluster."""

from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from tests.workflow import ROOT, TINY, copy_checkout, declared_rules, described

pytestmark = pytest.mark.workflow
PROFILE = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
HUB = "tests/config/pythia_tiny.yaml"
# No part of any plan below: the example, the search, and other ways to make the same files.
NOT_PLANNED = {
    "train_example", "audit_example", "judge_claims_one", "judge_claims_paper_one",
    "measure_kurtosis_of_fork",
    "copy_tokenizer", "fix_batches_validation", "render_notebook_your_run",
}  # fmt: skip
LEAST_MB = 3000  # Python, torch and what CUDA keeps in main memory, without any model
# Tables and texts, whose size decides, and the example, whose model is tiny.
BY_INPUT = {"fetch_checkpoint": {"runtime"}, "train_example": set(), "audit_example": set()}


def test_the_profile_names_rules_that_exist_and_requests_that_grow():
    """Snakemake would read what follows a comma as a request of its own."""
    assert PROFILE["retries"] >= 1
    assert set(PROFILE["set-resources"]) <= {rule["rule"] for rule in declared_rules().values()}
    for asked in (PROFILE["default-resources"], *PROFILE["set-resources"].values()):
        assert set(asked) <= {"mem_mb", "runtime"}
        assert all(text.startswith("attempt * ") and "," not in text for text in asked.values())


def test_what_works_on_a_model_asks_for_itself_and_no_setting_is_a_resource():
    for name, rule in declared_rules().items():
        asked = set(rule["resources"]) - {"_cores", "_nodes"}
        assert asked <= {"gpu", "hub", "mem_mb", "runtime", "tmpdir"}, name
        if Path(rule["conda"] or "").name == "torch.yaml":
            assert BY_INPUT.get(name, {"mem_mb", "runtime"}) <= asked, name


def test_what_gathers_and_what_is_local_needs_no_torch():
    light = [
        rule for name, rule in declared_rules().items()
        if rule["is_local"] or name.startswith("gather_")
    ]  # fmt: skip
    assert len(light) > 30
    assert [r["name"] for r in light if Path(r["conda"] or "").name == "torch.yaml"] == []


def test_every_script_is_named_as_it_is():
    scripts = [rule["script"] for rule in declared_rules().values() if rule["script"]]
    assert len(scripts) > 60 and not [script for script in scripts if "{" in script]


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """A checkout without results: what stands there would be planned no more."""
    return copy_checkout(tmp_path_factory.mktemp("clean"))


def plan(folder: Path, configfile: str, *more: str, attempt: int = 1) -> list[dict]:
    """Jobs that would be submitted for a suite on GPUs, with all that goes beyond the paper."""
    name = "tiny" if configfile == TINY else "pythia-160m"
    changes = folder / "changes.yaml"
    changes.write_text(yaml.safe_dump({"suites": {name: {"device": "cuda"}}}))
    return described(
        "--attempt", str(attempt), "--workflow-profile", "profiles/slurm",
        "--configfile", configfile, changes.name, "--", "all", "extended", *more, folder=folder,
    )["jobs"]  # fmt: skip


@pytest.fixture(scope="module")
def trained(clean) -> list[dict]:
    """Jobs of everything of a suite that is trained here."""
    return plan(clean, TINY, *(f"results/tiny/{name}.csv" for name in ("cycles", "deployed")))


def test_a_job_asks_for_memory_and_time_and_for_a_gpu_where_its_model_is_on_one(trained, clean):
    """What a job works on is told by its parameter ``device``, not by what it asks for."""
    asked = defaultdict(list)
    for job in [*trained, *plan(clean, HUB)]:
        asked[job["rule"]].append(job)
    rules = {rule["rule"] for rule in declared_rules().values()}
    left = {rule for rule in rules - asked.keys() if "_mini" not in rule and "_fresh" not in rule}
    assert left == NOT_PLANNED, "beside the training of other suites"
    on_gpus = {job["rule"] for jobs in asked.values() for job in jobs if job["gpu"]}
    for rule, jobs in asked.items():
        assert all((job["gpu"] or 0) == ("cuda" in job["devices"]) for job in jobs), rule
        least, shortest = (min(job[name] for job in jobs) for name in ("mem_mb", "runtime"))
        assert least >= (LEAST_MB if rule in on_gpus else 2000), rule
        assert shortest >= 15, rule
    assert {"probe_checkpoints", "probe_revision", "train_fork", "train_fork_temporary",
            "probe_fork", "measure_layers", "probe_deployed"} <= on_gpus  # fmt: skip


def test_every_job_asks_for_more_when_it_is_started_again(trained, clean):
    def requests(jobs):
        return {(job["rule"], *job["wildcards"].items()): (job["mem_mb"], job["runtime"])
                for job in jobs}  # fmt: skip

    first, second = requests(trained), requests(plan(clean, TINY, attempt=2))
    assert set(second) < set(first) and len(second) > 90
    for job, (memory, minutes) in second.items():
        assert (memory, minutes) == (2 * first[job][0], 2 * first[job][1]), job
