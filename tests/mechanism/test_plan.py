"""Which checkpoints are measured, in which jobs, and the one-line errors of the section."""

import copy

import pytest
import yaml

from flatminima.config import check_config
from flatminima.errors import ConfigError
from flatminima.planning import RANGED, SuitePlan
from tests.workflow import ROOT

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())


def plan_of(name: str, config=CONFIG) -> SuitePlan:
    return SuitePlan(name, config["suites"][name], config["quantizers"])


MINI, PYTHIA = plan_of("mini"), plan_of("pythia-160m")


@pytest.mark.parametrize("plan", [MINI, PYTHIA])
@pytest.mark.parametrize("measure", RANGED)
def test_the_jobs_of_a_measurement_cover_its_checkpoints_once(plan, measure):
    names = [path.split("/")[-1].removesuffix(".csv") for path in plan.measure_tables(measure)]
    covered = [step for name in names for step in plan.measure_folders(name, measure)]
    assert covered == plan.measured_steps(measure)
    assert covered[-1] == plan.last and set(covered) <= set(plan.steps)
    size = plan.mechanism[measure]["steps_per_job"]
    assert all(len(plan.measure_folders(name, measure)) <= size for name in names)


def test_every_nth_is_counted_back_from_the_end():
    steps = MINI.measured_steps("sensitivity")
    assert steps[-3:] == [5400, 5560, 5720] and len(steps) == 39


def test_a_single_step_can_be_measured_though_it_is_none_of_those():
    assert list(MINI.measure_folders("step1000", "curvature")) == [1000]
    with pytest.raises(ConfigError, match="curvature looks at no step of step1000-step1040"):
        MINI.measure_folders("step1000-step1040", "curvature")


def test_what_a_suite_does_not_measure_is_one_line():
    with pytest.raises(ConfigError, match="suite pythia-160m has no mechanism.drift"):
        _ = PYTHIA.drift_files


def test_settings_hold_what_the_job_reads_and_not_how_often():
    settings = MINI.measure_settings("curvature")
    assert set(settings) == {"sequences", "draws", "batch_size", "resamples", "device", "layers"}
    assert MINI.probed_cells["low_bit"] == {
        "bits": 4, "symmetric": False, "granularity": "g64"}  # fmt: skip
    assert MINI.probed_cells["high_bit"]["granularity"] == "channel"


def test_small_runs_are_the_suites_training_scaled():
    settings = MINI.replica_settings("32")
    assert settings["architecture"]["hidden_size"] == 32
    assert settings["training"]["warmup_steps"] == 12 and "seed" not in settings["training"]
    assert len(MINI.replicas) == len(MINI.replica_files("csv")) == 9
    assert list(MINI.replica_folders("32", "0")) == settings["steps"] == list(range(40, 1201, 40))
    assert settings["train_sequences"] <= MINI.section["batches"]["train"]["sequences"]


def test_extended_is_what_the_configuration_asks_for():
    outputs = MINI.extended_outputs
    assert "results/mini/notebooks/mechanism.html" in outputs
    assert sum(path.endswith(".pdf") and "/fig" in path for path in outputs) >= 7
    pythia = PYTHIA.extended_outputs
    assert "results/pythia-160m/mechanism/findings.csv" in pythia
    assert not any("mechanism.html" in path or "fig13" in path for path in pythia)
    bare = copy.deepcopy(CONFIG)
    del bare["suites"]["mini"]["mechanism"]
    left = plan_of("mini", bare).extended_outputs
    assert not any("mechanism" in path or "claims" in path for path in left)


def test_what_a_suite_cannot_have_is_not_planned():
    config = copy.deepcopy(CONFIG)
    mini, pythia = (config["suites"][name] for name in ("mini", "pythia-160m"))
    pythia["mechanism"]["replication"] = mini["mechanism"]["replication"]
    del mini["fork"]["schedules"]["oli"], mini["fork"]["amplitudes"]
    check_config(config)
    assert "replication" not in plan_of("pythia-160m", config).mechanism
    assert "phase_flips" not in plan_of("mini", config).mechanism
    assert not any("fig11" in path for path in plan_of("mini", config).extended_outputs)


def test_without_a_step_between_levels_the_rest_is_measured():
    config = copy.deepcopy(CONFIG)
    config["quantizers"]["nf4"] = {"kind": "nf4"}
    config["suites"]["mini"]["probe"]["low_bit"] = "nf4"
    plan = plan_of("mini", config)
    left = {"layers", "curvature", "activations", "replication"}
    assert set(plan.mechanism) - {"batch_size"} == left
    assert plan.measure_settings("layers")["low_bit"] == {"kind": "nf4"}
    assert "results/mini/mechanism/findings.csv" in plan.extended_outputs
