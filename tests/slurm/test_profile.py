"""The profile for SLURM as Snakemake reads it; test_slurm.py runs it on a cluster."""

import re

import pytest
import yaml

from tests.workflow import ROOT, snakemake

PROFILE = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
RULES = {
    name
    for path in ROOT.glob("rules/*.smk")
    for name in re.findall(r"^rule (\w+):", path.read_text(), re.MULTILINE)
}
REQUESTS = {"default-resources": PROFILE["default-resources"]} | PROFILE["set-resources"]


def test_the_profile_names_rules_that_exist():
    assert set(PROFILE["set-resources"]) | set(PROFILE["groups"]) <= RULES


@pytest.mark.parametrize("name", REQUESTS)
def test_a_job_that_is_started_again_asks_for_more(name):
    assert PROFILE["retries"] >= 1
    for resource, request in REQUESTS[name].items():
        assert resource in ("mem_mb", "runtime")
        assert request.startswith("attempt * "), request


@pytest.mark.workflow
@pytest.mark.parametrize("suite", ["mini", "pythia-160m"])
def test_snakemake_understands_the_profile(suite):
    """Every resource is asked for in a plan; no cluster is needed for that."""
    run = snakemake(
        "--dry-run", "--workflow-profile", "profiles/slurm", "--config", f"suite={suite}"
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert "test_hypotheses" in run.stdout


def test_a_request_holds_no_comma():
    """Snakemake would read what follows it as a request of its own."""
    assert [r for asked in REQUESTS.values() for r in asked.values() if "," in str(r)] == []
