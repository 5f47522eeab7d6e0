"""Costs against numbers worked out by hand, and the measurement they are divided by."""

import pytest
import torch
import yaml

from flatminima.suites import read_library, resolve_suites
from flatminima.tools.costs import (
    available_cores,
    batches_to_time,
    describe_shape,
    layers_to_time,
    measure,
    read_config,
    size,
    suite_costs,
)
from tests.workflow import ROOT

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())
SUITES = resolve_suites(CONFIG["suites"], read_library(ROOT / "resources"))
PYTHIA, MINI = SUITES["pythia-160m"], SUITES["mini"]
TOKENS = 65_536  # of the validation batches


def shape_of(name: str):
    architecture = SUITES[name]["architecture"]
    return describe_shape(read_config(architecture), architecture.get("dtype", "float16"))


@pytest.fixture(scope="module")
def shape():
    return shape_of("pythia-160m")


@pytest.fixture(scope="module")
def mini():
    return describe_shape(read_config(MINI["architecture"], vocab_size=512))


@pytest.fixture(scope="module")
def costs(shape):
    return suite_costs(PYTHIA, shape, revisions=154, last=143_000)


def test_pythia_160m_is_counted_whole(shape):
    assert shape.parameters == 162_322_944
    assert shape.multiplied == 84_934_656 + 38_633_472, "the blocks' matrices and the head"
    # float16 weights and twelve masks of 2048 x 2048 bytes: what its .bin files hold.
    assert shape.stored_bytes == 324_645_888 + 50_331_648 == 374_977_536
    assert size(shape.stored_bytes) == "375.0 MB" and size(5e13) == "50.0 TB"
    attention = 2 * 12 * 512 * 768 * TOKENS
    assert shape.flop(128, 512) == 2 * shape.multiplied * TOKENS + attention


def test_costs_of_the_audit_and_of_the_forks(costs, shape):
    """154 revisions, each scored three times; nine forks of 30,000 updates of 4 x 2,048 tokens."""
    assert costs.audit_flop == 154 * 3 * shape.flop(128, 512)
    assert 154 * 3 * TOKENS * 2 * shape.multiplied == pytest.approx(7.5e15, rel=0.01)
    tokens = 9 * 30_000 * 4 * 2048
    assert tokens == pytest.approx(2.21e9, rel=0.01) and costs.forks == 9
    assert 6 * shape.multiplied * tokens == pytest.approx(1.6e18, rel=0.03)
    # With what attention adds at 2,048 tokens: 2 L T d of 2 N, which is 15 %.
    assert costs.fork_training_flop / (6 * shape.multiplied * tokens) == pytest.approx(1.153, 1e-3)
    assert costs.fork_probe_flop == 9 * 30 * 3 * shape.flop(128, 512)


def test_downloads_and_disk(costs, shape):
    # The forks start from one that was deleted after its probe.
    assert costs.download_bytes == 155 * shape.stored_bytes
    state, fork = 12 * shape.parameters, 30 * 4 * shape.parameters
    assert costs.disk_bytes == 2 * shape.stored_bytes + state + fork
    kept = {**PYTHIA, "fork": {**PYTHIA["fork"], "keep_checkpoints": True}}
    more = suite_costs(kept, shape, revisions=154, last=143_000).disk_bytes - costs.disk_bytes
    assert more == 8 * fork


def test_a_suite_that_is_trained_here_downloads_nothing_and_runs_alone(costs, mini):
    own = suite_costs(MINI, mini, revisions=154, last=5720)
    assert own.download_bytes == 0 and own.pretraining_flop == 3 * 5720 * mini.flop(16, 64)
    assert own.disk_bytes == (154 * 4 + 12 + 9 * 30 * 4) * mini.parameters
    run = own.pretraining_flop / 2e12 / 3600
    assert own.hours(1e12, 2e12, 2) == pytest.approx(run + (own.hours(1e12, 2e12) - run) / 2)
    forward = costs.audit_flop + costs.fork_probe_flop
    hours = (forward / 1e12 + costs.fork_training_flop / 2e12) / 3600
    assert costs.hours(1e12, 2e12) == pytest.approx(hours)
    assert costs.hours(1e12, 2e12, 4) == pytest.approx(hours / 4), "no run of its own"


# As published; OLMo's in its repositories' shards, 4 bytes each (29.2 GB for 7B).
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("pythia-70m", 70_426_624), ("pythia-12b", 11_846_072_320), ("olmo-2-7b", 7_298_617_344)],
)
def test_published_sizes(name, parameters):
    assert shape_of(name).parameters == parameters


def test_what_is_too_large_for_seconds_is_timed_in_part(shape, mini):
    config = read_config(PYTHIA["architecture"])
    assert layers_to_time(config, "cpu") == layers_to_time(config, "cuda") == 12
    large = read_config(SUITES["pythia-12b"]["architecture"])
    assert layers_to_time(large, "cpu") == 1 and 1 < layers_to_time(large, "cuda") < 36
    assert batches_to_time(PYTHIA, shape, "cuda") == ((4, 512), (4, 2048))
    assert batches_to_time(PYTHIA, shape, "cpu") == ((1, 128), (1, 128))
    # One sequence of mini's would measure calls, and four times too long a run.
    assert batches_to_time(MINI, mini, "cpu") == ((MINI["probe"]["batch_size"], 64), (16, 64))


def test_a_measurement_says_what_it_is_of():
    config = read_config({**MINI["architecture"], "vocab_size": 64})
    batches, before = {"forward": (2, 16), "update": (1, 8)}, torch.get_num_threads()
    found = measure(config, device="cpu", threads=1, seconds=0.05, **batches)
    assert found.forward_rate > 0 and found.training_rate > 0
    assert (found.layers, found.forward, found.update) == (2, (2, 16), (1, 8))
    assert found.side_by_side == available_cores() and torch.get_num_threads() == before
    many = measure(config, device="cpu", threads=10_000, seconds=0.01, **batches)
    assert many.side_by_side == 1
    assert found.device.startswith("cpu (") and "1 threads" in found.device
