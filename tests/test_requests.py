"""Memory and time that jobs request from a cluster follow the suite's model."""

import json
from functools import cache

import numpy as np
import pytest
from safetensors.numpy import save_file

from flatminima.config import plan, plan_requests
from flatminima.config.loading import check_config
from flatminima.config.suites import Suite, find_suite, read_suite
from flatminima.tools.costs import describe_shape
from flatminima.tools.costs import read_config as model_config
from tests.test_config import CONFIG
from tests.test_plan import changed
from tests.workflow import ROOT, copy_checkout, described

# Parameters of the models on the hub.
PARAMETERS = {
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-1b": 1_011_781_632,
    "pythia-12b": 11_846_072_320,
}


@cache
def suite_of(name: str) -> Suite:
    return read_suite(name, [ROOT / "config.yaml"])


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_counted_as_in_transformers(name):
    suite = suite_of(name)
    assert plan_requests.model_shape(suite).parameters == PARAMETERS[name]
    assert describe_shape(model_config(suite.config)).parameters == PARAMETERS[name]


def revision_mb(name: str, width: int, heads: int, vocabulary: int) -> float:
    """Memory of the job that measures one revision, worked out by hand.

    4 bytes per parameter, two copies, activations of 4 x 512 tokens, and 3,000 MB to start.
    """
    weights = 4 * PARAMETERS[name] / 1e6
    tokens = 4 * 512
    activations = 4 * tokens * (16 * width + heads * 512 + 3 * vocabulary) / 1e6
    return 3000 + 2 * weights + activations


def test_revisions_of_70m_1b_and_12b_request_the_memory_that_their_model_needs():
    requested = {name: plan_requests.revision_mb(suite_of(name)) for name in PARAMETERS}
    assert requested["pythia-70m"] == pytest.approx(
        revision_mb("pythia-70m", 512, 8, 50_304), abs=1
    )
    assert requested["pythia-1b"] == pytest.approx(revision_mb("pythia-1b", 2048, 8, 50_304), abs=1)
    assert requested["pythia-12b"] == pytest.approx(
        revision_mb("pythia-12b", 5120, 40, 50_688), abs=1
    )
    # The model fits, and there are nodes of this size.
    assert 4 * PARAMETERS["pythia-12b"] / 1e6 < requested["pythia-12b"] < 128_000
    assert requested["pythia-70m"] < 6000

    minutes = [plan_requests.revision_minutes(suite_of(name), "step143000") for name in PARAMETERS]
    assert minutes == sorted(minutes) and minutes[0] < 30
    downloads = 4 * PARAMETERS["pythia-12b"] / plan_requests.DOWNLOAD_RATE / 60
    assert downloads < minutes[-1] < 6 * 60


def test_a_fork_requests_memory_for_training_and_time_by_its_updates():
    pythia = suite_of("pythia-160m")
    weights = 4 * PARAMETERS["pythia-160m"] / 1e6
    assert plan_requests.fork_mb(pythia) > 4 * weights + plan_requests.START_MB, "Adam's states"
    day = 24 * 60
    assert day / 4 < plan_requests.fork_minutes(pythia, "forks", "oli") < 3 * day
    short = changed("pythia-160m", "fork.steps", 15_000)
    full_minutes = plan_requests.fork_minutes(pythia, "forks", "cosine")
    short_minutes = plan_requests.fork_minutes(short, "forks", "cosine")
    start = plan_requests.START_MINUTES
    assert short_minutes - start == pytest.approx((full_minutes - start) / 2, rel=0.01)


def test_a_cpu_takes_longer_than_a_gpu_and_threads_do_not_change_a_gpu_job():
    cpu = changed("pythia-160m", "device", "cpu")
    threads = suite_of("pythia-160m").config.threads
    on_gpu = plan_requests.fork_minutes(suite_of("pythia-160m"), "forks", "cosine")
    on_cpu = plan_requests.fork_minutes(cpu, "forks", "cosine")
    assert on_cpu > 100 * on_gpu
    twice = changed("pythia-160m", "threads", 2 * threads)
    assert twice.config.device == "auto"
    assert plan_requests.fork_minutes(twice, "forks", "cosine") == on_gpu


@pytest.fixture
def local(tmp_path, monkeypatch) -> Suite:
    """A local suite of two checkpoints in float16, with 1,000,000 parameters each."""
    monkeypatch.chdir(tmp_path)
    for step in (1, 2):
        folder = tmp_path / f"run/step{step}"
        folder.mkdir(parents=True)
        shape = {"model_type": "gpt2", "n_embd": 100, "n_layer": 8, "vocab_size": 300}
        (folder / "config.json").write_text(json.dumps(shape))
        tensors = {"a": np.zeros((500, 1000), np.float16), "b": np.zeros(500_000, np.float16)}
        save_file(tensors, folder / "model.safetensors")
    section = dict(CONFIG["suites"]["pythia-160m"])
    for key in ("repo", "architecture", "fork", "mechanism", "training", "integrity", "tokenizer"):
        section.pop(key)
    section |= {
        "source": "local",
        "pattern": "run/step{step}",
        "grid": "discover",
        "tokenizer": {},
        "tokens_per_step": 1,
    }
    section["batches"] = {"validation": section["batches"]["validation"]}
    config = CONFIG | {"suites": CONFIG["suites"] | {"own": section}}
    return find_suite(check_config(config), "own")


def test_parameters_of_a_local_model_are_counted_from_the_headers_of_one_checkpoint(local):
    shape = plan_requests.model_shape(local)
    assert (shape.parameters, shape.width, shape.layers) == (1_000_000, 100, 8)
    two_copies = 2 * 4  # MB, for any number of checkpoints
    assert plan_requests.kurtosis_mb(local) == plan_requests.START_MB + two_copies


def test_auto_requests_a_gpu_on_a_cluster_or_if_this_machine_has_one(monkeypatch):
    auto = suite_of("pythia-160m")
    for has_gpu in (False, True):
        monkeypatch.setattr(plan, "has_gpu", lambda has_gpu=has_gpu: has_gpu)
        assert plan.gpus(auto, is_cluster=False) == has_gpu
        assert plan.gpus(auto, is_cluster=True) == 1
        assert plan.gpus(changed("pythia-160m", "device", "cuda"), is_cluster=False) == 1
        assert plan.gpus(changed("pythia-160m", "device", "cpu"), is_cluster=True) == 0


def test_a_hidden_gpu_does_not_count(monkeypatch):
    monkeypatch.setattr(plan.platform, "system", lambda: "Linux")
    monkeypatch.setattr(plan.glob, "glob", lambda pattern: [pattern])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert plan.has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not plan.has_gpu()
    monkeypatch.setattr(plan.glob, "glob", lambda pattern: [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert not plan.has_gpu()


@pytest.mark.workflow
@pytest.mark.parametrize("attempt", [1, 3])
def test_requests_grow_with_the_number_of_the_attempt(attempt, tmp_path):
    folder = copy_checkout(tmp_path / "clean")
    for name in ("pythia-70m", "pythia-1b", "pythia-12b"):
        options = ["--attempt", str(attempt), "--workflow-profile", "profiles/slurm"]
        target = f"results/{name}/probes/step1000.csv"
        plan_of_jobs = described(*options, "--", target, folder=folder)
        (job,) = (job for job in plan_of_jobs["jobs"] if job["rule"] == "probe_revision")
        assert job["mem_mb"] == attempt * plan_requests.revision_mb(suite_of(name))
        minutes = plan_requests.revision_minutes(suite_of(name), "step1000")
        assert job["runtime"] == attempt * minutes
