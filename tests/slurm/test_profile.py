"""The SLURM profile, as Snakemake reads it. test_slurm.py runs it on a cluster."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from tests.workflow import ROOT, TINY, copy_checkout, declared_rules, described

pytestmark = pytest.mark.workflow
PROFILE = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
HUB = "tests/config/pythia_tiny.yaml"
# Not in the plans below: the example, and other rules that make the same files.
NOT_PLANNED = {
    *("train_example", "audit_example", "judge_claims_one", "judge_claims_paper_one"),
    *("measure_kurtosis_of_fork", "copy_tokenizer", "fix_batches_validation"),
    "render_notebook_your_run",
}
LEAST_MB = 3000  # Python, torch and CUDA's part of the main memory, without any model
# Rules whose memory does not depend on a model, and the example, whose model is tiny.
BY_INPUT = {"fetch_checkpoint": {"runtime"}, "train_example": set(), "audit_example": set()}


def test_the_profile_names_rules_that_exist_and_requests_that_grow():
    """Snakemake would read the text after a comma as another request."""
    assert PROFILE["retries"] >= 1
    assert set(PROFILE["set-resources"]) <= {rule["rule"] for rule in declared_rules().values()}
    for requests in (PROFILE["default-resources"], *PROFILE["set-resources"].values()):
        assert set(requests) <= {"mem_mb", "runtime"}
        for text in requests.values():
            assert text.startswith("attempt * ")
            assert "," not in text


def test_rules_with_a_model_request_memory_and_time_and_no_setting_is_a_resource():
    for name, rule in declared_rules().items():
        resources = set(rule["resources"]) - {"_cores", "_nodes"}
        assert resources <= {"gpu", "hub", "mem_mb", "runtime", "tmpdir"}, name
        if Path(rule["conda"] or "").name == "torch.yaml":
            assert BY_INPUT.get(name, {"mem_mb", "runtime"}) <= resources, name


def test_rules_that_gather_and_local_rules_need_no_torch():
    light_rules = [
        rule
        for name, rule in declared_rules().items()
        if rule["is_local"] or name.startswith("gather_")
    ]
    assert len(light_rules) > 30
    for rule in light_rules:
        assert Path(rule["conda"] or "").name != "torch.yaml", rule["name"]


def test_no_path_of_a_script_depends_on_a_wildcard():
    scripts = [rule["script"] for rule in declared_rules().values() if rule["script"]]
    assert len(scripts) > 60
    assert [script for script in scripts if "{" in script] == []


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """A checkout without results: existing files would not be planned."""
    return copy_checkout(tmp_path_factory.mktemp("clean"))


def plan(folder: Path, configfile: str, *more: str, attempt: int = 1) -> list[dict]:
    """Jobs that would be submitted for a suite on GPUs, with the measurements beyond the paper."""
    name = "tiny" if configfile == TINY else "pythia-160m"
    changes = folder / "changes.yaml"
    changes.write_text(yaml.safe_dump({"suites": {name: {"device": "cuda"}}}))
    options = ["--attempt", str(attempt), "--workflow-profile", "profiles/slurm"]
    options += ["--configfile", configfile, changes.name]
    return described(*options, "--", "all", "extended", *more, folder=folder)["jobs"]


@pytest.fixture(scope="module")
def trained(clean) -> list[dict]:
    """All jobs of a suite that is trained here."""
    return plan(clean, TINY, *(f"results/tiny/{name}.csv" for name in ("cycles", "deployed")))


def test_jobs_request_memory_and_time_and_a_gpu_if_their_device_is_one(trained, clean):
    """The param ``device`` shows where a job runs its model, independent of its requests."""
    jobs_by_rule = defaultdict(list)
    for job in [*trained, *plan(clean, HUB)]:
        jobs_by_rule[job["rule"]].append(job)
    rules = {rule["rule"] for rule in declared_rules().values()}
    not_planned = {
        rule
        for rule in rules - jobs_by_rule.keys()
        if not re.search("_mini|_fresh|_planted|_of_part$|state_headline", rule)
    }
    assert not_planned == NOT_PLANNED, "apart from other suites and parts of a suite"

    gpu_rules = {job["rule"] for jobs in jobs_by_rule.values() for job in jobs if job["gpu"]}
    for rule, jobs in jobs_by_rule.items():
        for job in jobs:
            assert (job["gpu"] or 0) == ("cuda" in job["devices"]), rule
            assert job["mem_mb"] >= (LEAST_MB if rule in gpu_rules else 2000), rule
            assert job["runtime"] >= 15, rule
    assert gpu_rules >= {
        *("probe_checkpoints", "probe_revision", "train_fork", "train_fork_temporary"),
        *("probe_fork", "measure_layers", "probe_deployed"),
    }


def requests_by_job(jobs: list[dict]) -> dict[tuple, tuple]:
    """Memory and time of each job, by its rule and wildcards."""
    requests = {}
    for job in jobs:
        requests[job["rule"], *job["wildcards"].items()] = (job["mem_mb"], job["runtime"])
    return requests


def test_every_job_requests_more_at_its_second_attempt(trained, clean):
    first_attempt = requests_by_job(trained)
    second_attempt = requests_by_job(plan(clean, TINY, attempt=2))
    assert set(second_attempt) < set(first_attempt)
    assert len(second_attempt) > 90
    for job, (memory, minutes) in second_attempt.items():
        assert memory == 2 * first_attempt[job][0], job
        assert minutes == 2 * first_attempt[job][1], job
