"""Costs against numbers worked out by hand, and the measurement they are divided by."""

import pytest
import torch

from flatminima.config.loading import read_config as read_workflow_config
from flatminima.errors import UserError
from flatminima.tools.costs import (
    assumed_rows,
    build,
    describe_shape,
    hours,
    measure,
    part_to_time,
    plan_suite,
    read_config,
    size,
    suite_costs,
)

SUITES = read_workflow_config().suites
PYTHIA = SUITES["pythia-160m"]
MINI = SUITES["mini"]
TOKENS = 65_536  # of the validation batches


SHAPE = describe_shape(read_config(PYTHIA))


def test_pythia_160m_is_counted_whole():
    """154 revisions, each scored four times; nine forks of 35,000 updates of 4 x 2,048 tokens.

    Of these 5,000 are the cool-down, probed once at its end.
    """
    assert SHAPE.parameters == 162_322_944
    assert SHAPE.multiplied == 84_934_656 + 38_633_472, "the blocks' matrices and the head"
    # float16 weights and twelve masks of 2048 x 2048 bytes: what its .bin files hold.
    assert SHAPE.stored_bytes == 324_645_888 + 50_331_648 == 374_977_536
    assert size(SHAPE.stored_bytes) == "375.0 MB" and size(5e13) == "50,000.0 GB"
    attention = 2 * 12 * 512 * 768 * TOKENS
    probe = SHAPE.flop(128, 512)
    assert probe == 2 * SHAPE.multiplied * TOKENS + attention
    costs = suite_costs(PYTHIA, SHAPE, revisions=154, last=143_000)
    assert costs["audit"] == 154 * 4 * probe
    tokens = 9 * 35_000 * 4 * 2048
    assert costs["forks"] == 9 and costs["probes"] == 9 * 31 * 4 * probe
    # With what attention adds at 2,048 tokens: 2 L T d of 2 N, which is 15 %.
    assert costs["updates"] / (6 * SHAPE.multiplied * tokens) == pytest.approx(1.153, 1e-3)
    forward = costs["audit"] + costs["probes"]
    expected = (forward / 1e12 + costs["updates"] / 2e12) / 3600
    assert hours(costs, 1e12, 2e12) == pytest.approx(expected)
    assert hours(costs, 1e12, 2e12, 4) == pytest.approx(expected / 4), "no run of its own"
    # The forks start from one that was deleted after its probe.
    assert costs["downloads"] == 155 * SHAPE.stored_bytes
    state = 12 * SHAPE.parameters
    fork = 31 * 4 * SHAPE.parameters
    assert costs["disk"] == 2 * SHAPE.stored_bytes + state + fork
    keeping = PYTHIA.fork.model_copy(update={"keep_checkpoints": True})
    kept = PYTHIA.model_copy(update={"fork": keeping})
    more = suite_costs(kept, SHAPE, revisions=154, last=143_000)["disk"] - costs["disk"]
    assert more == 8 * fork


def test_a_suite_that_is_trained_here_downloads_nothing_and_runs_alone():
    mini = describe_shape(read_config(MINI))
    own = suite_costs(MINI, mini, revisions=154, last=5720)
    assert own["downloads"] == 0 and own["run"] == 3 * 5720 * mini.flop(16, 64)
    assert own["disk"] == (154 * 4 + 12 + 9 * 31 * 4) * mini.parameters
    run = own["run"] / 2e12 / 3600
    assert hours(own, 1e12, 2e12, 2) == pytest.approx(run + (hours(own, 1e12, 2e12) - run) / 2)
    # Its batches are timed as they are: one sequence would measure calls.
    assert part_to_time(MINI, mini, "cpu") == (2, (MINI.probe.batch_size, 64), (16, 64))


def test_published_sizes_and_what_is_too_large_for_seconds():
    # As published; OLMo's in its repositories' shards, 4 bytes each (29.2 GB for 7B).
    for name, parameters in (("pythia-70m", 70_426_624), ("olmo-2-7b", 7_298_617_344)):
        assert describe_shape(read_config(SUITES[name])).parameters == parameters
    large = describe_shape(read_config(SUITES["pythia-12b"]))
    assert large.parameters == 11_846_072_320
    assert part_to_time(PYTHIA, large, "cpu")[0] == 1
    assert 1 < part_to_time(PYTHIA, large, "cuda")[0] < 36
    assert part_to_time(PYTHIA, SHAPE, "cuda") == (12, (4, 512), (4, 2048))
    assert part_to_time(PYTHIA, SHAPE, "cpu") == (12, (1, 128), (1, 128))


def test_a_measurement_leaves_the_threads_as_they_were():
    model = build(read_config(MINI), "cpu")
    before = torch.get_num_threads()
    score, learn = measure(model, (2, 16), (2, 16), 1, 0.05)
    assert 0 < score < learn and torch.get_num_threads() == before


def test_hours_at_a_given_rate_are_those_of_the_operations():
    costs = {"audit": 3.6e15, "probes": 0.0, "updates": 3.6e16, "run": 0.0}
    audit, everything = assumed_rows(costs, 10.0)
    assert audit[:2] == ("time, audit", "6.0 minutes")
    assert everything[:2] == ("time, all", "1.1 hours")
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="--tflops"):
            plan_suite("mini", [], 0.0, rate)
