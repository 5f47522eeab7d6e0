"""Costs against numbers worked out by hand, and the measurement they are divided by."""

import pytest
import torch
import yaml

from flatminima.suites import Suite, read_library, resolve_suites
from flatminima.tools.costs import (
    available_cores,
    batch_shapes,
    describe_shape,
    forward_flop,
    layers_to_time,
    measure,
    read_config,
    report,
    suite_costs,
    timed_batch,
    training_flop,
)
from tests.workflow import ROOT

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())
SUITES = resolve_suites(CONFIG["suites"], read_library(ROOT / "resources"))
PYTHIA = SUITES["pythia-160m"]
TOKENS = 65_536  # of the validation batches


def shape_of(name: str):
    architecture = SUITES[name]["architecture"]
    return describe_shape(read_config(architecture), architecture.get("dtype", "float16"))


@pytest.fixture(scope="module")
def shape():
    return shape_of("pythia-160m")


@pytest.fixture(scope="module")
def costs(shape):
    return suite_costs(PYTHIA, shape, revisions=154, last=143_000)


def test_pythia_160m_is_counted_whole(shape):
    assert shape.parameters == 162_322_944
    assert shape.multiplied == 84_934_656 + 38_633_472, "the blocks' matrices and the head"
    # float16 weights and twelve masks of 2048 x 2048 bytes: what its .bin files hold.
    assert shape.stored_bytes == 324_645_888 + 50_331_648 == 374_977_536


def test_one_token_costs_two_operations_a_weight(shape):
    attention = 2 * 12 * 512 * 768 * TOKENS
    assert forward_flop(shape, 128, 512) == 2 * shape.multiplied * TOKENS + attention
    assert training_flop(shape, 128, 512) == 3 * forward_flop(shape, 128, 512)


def test_costs_of_the_audit(costs, shape):
    """154 revisions, each scored three times: near 7.6e15 operations."""
    assert costs.audit_flop == 154 * 3 * forward_flop(shape, 128, 512)
    assert 154 * 3 * TOKENS * 2 * shape.multiplied == pytest.approx(7.5e15, rel=0.01)
    assert costs.audit_flop == pytest.approx(7.6e15, rel=0.03)


def test_costs_of_the_forks(costs, shape):
    """Nine forks of 30,000 updates of 4 x 2,048 tokens: 2.21e9 tokens, near 1.6e18 operations."""
    tokens = 9 * 30_000 * 4 * 2048
    assert tokens == pytest.approx(2.21e9, rel=0.01) and costs.forks == 9
    assert 6 * shape.multiplied * tokens == pytest.approx(1.6e18, rel=0.03)
    # With what attention adds at 2,048 tokens: 2 L T d of 2 N, which is 15 %.
    assert costs.fork_training_flop / (6 * shape.multiplied * tokens) == pytest.approx(1.153, 1e-3)
    assert costs.fork_probe_flop == 9 * 30 * 3 * forward_flop(shape, 128, 512)


def test_downloads_and_disk(costs, shape):
    assert 154 * shape.stored_bytes == pytest.approx(57.7e9, rel=0.002)
    # The forks start from one that was deleted after its probe.
    assert costs.download_bytes == 155 * shape.stored_bytes
    state, fork = 12 * shape.parameters, 30 * 4 * shape.parameters
    assert costs.disk_bytes == 2 * shape.stored_bytes + state + fork
    kept = {**PYTHIA, "fork": {**PYTHIA["fork"], "keep_checkpoints": True}}
    more = suite_costs(kept, shape, revisions=154, last=143_000).disk_bytes - costs.disk_bytes
    assert more == 8 * fork


def test_hours_are_operations_over_rates(costs):
    hours = costs.hours(1e12, 2e12)
    assert hours * 3600 == pytest.approx(costs.forward_flop / 1e12 + costs.training_flop / 2e12)
    assert costs.hours(1e12, 2e12, 4) == pytest.approx(hours / 4), "no run of its own"
    mini = SUITES["mini"]
    shape = describe_shape(read_config(mini["architecture"], vocab_size=512))
    own = suite_costs(mini, shape, revisions=154, last=5720)
    run = own.pretraining_flop / 2e12 / 3600
    assert own.hours(1e12, 2e12, 2) == pytest.approx(run + (own.hours(1e12, 2e12) - run) / 2)


def test_a_suite_that_is_trained_here_downloads_nothing():
    mini = SUITES["mini"]
    shape = describe_shape(read_config(mini["architecture"], vocab_size=512))
    found = suite_costs(mini, shape, revisions=154, last=5720)
    assert found.download_bytes == 0
    assert found.pretraining_flop == 5720 * training_flop(shape, 16, 64)
    assert found.disk_bytes == (154 * 4 + 12 + 9 * 30 * 4) * shape.parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    # As published; OLMo's in its repositories' shards, 4 bytes each (29.2 GB for 7B).
    [("pythia-70m", 70_426_624), ("pythia-12b", 11_846_072_320), ("olmo-2-7b", 7_298_617_344)],
)  # fmt: skip
def test_published_sizes(name, parameters):
    assert shape_of(name).parameters == parameters


def test_what_is_too_large_for_seconds_is_timed_in_part():
    config = read_config(SUITES["pythia-160m"]["architecture"])
    assert layers_to_time(config, "cpu") == layers_to_time(config, "cuda") == 12
    large = read_config(SUITES["pythia-12b"]["architecture"])
    assert layers_to_time(large, "cpu") == 1 and 1 < layers_to_time(large, "cuda") < 36


def test_a_batch_is_timed_as_it_is_unless_that_takes_too_long(shape):
    assert timed_batch(shape, 4, 512, "cuda") == (4, 512)
    assert timed_batch(shape, 4, 512, "cpu") == (1, 128)
    # One sequence of mini's would measure calls, and four times too long a run.
    mini = SUITES["mini"]
    small = describe_shape(read_config(mini["architecture"], vocab_size=512))
    probe, update = batch_shapes(mini)
    assert probe == (mini["probe"]["batch_size"], 64) and update == (16, 64)
    assert timed_batch(small, *update, "cpu") == update
    assert timed_batch(small, *probe, "cpu") == probe
    assert batch_shapes(PYTHIA) == ((4, 512), (4, 2048))


def test_a_measurement_says_what_it_is_of():
    config = read_config({**SUITES["mini"]["architecture"], "vocab_size": 64})
    batches, before = {"forward": (2, 16), "update": (1, 8)}, torch.get_num_threads()
    found = measure(config, device="cpu", threads=1, seconds=0.05, **batches)
    assert found.forward_rate > 0 and found.training_rate > 0
    assert (found.layers, found.forward, found.update) == (2, (2, 16), (1, 8))
    assert found.side_by_side == available_cores() and torch.get_num_threads() == before
    many = measure(config, device="cpu", threads=10_000, seconds=0.01, **batches)
    assert many.side_by_side == 1
    assert found.device.startswith("cpu (") and "threads" in found.device


def test_the_report_has_what_a_person_asks_for(costs, shape):
    suite = Suite("pythia-160m", PYTHIA, CONFIG["quantizers"])
    config = read_config({**SUITES["mini"]["architecture"], "vocab_size": 64})
    rates = measure(config, device="cpu", forward=(1, 8), update=(1, 4), threads=1, seconds=0.01)
    jobs = {"train_fork": 9, "probe_revision": 7}
    table = report(suite, costs, shape, jobs=jobs, throughput=rates)
    cells = [list(column.cells) for column in table.columns]
    rows = dict(zip(cells[0], zip(cells[1], cells[2], strict=True), strict=True))
    assert rows["downloads"][0] == "58.1 GB" and "375.0 MB each" in rows["downloads"][1]
    assert rows["jobs left"] == ("16", "9 train_fork, 7 probe_revision")
    assert rows["forward"][1].startswith("measured: ") and "TF32 off" in rows["forward"][1]
    assert "1 x 8 tokens" in rows["forward"][1] and "1 x 4 tokens" in rows["update"][1]
    assert "estimated" in rows["time, all"][1] and rates.device in table.title
    assert rows["audit"][0] == "7.8e+15 FLOP" and rows["9 forks"][0] == "1.9e+18 FLOP"
