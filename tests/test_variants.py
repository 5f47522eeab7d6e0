"""Conditions beyond the paper's: what each is made of, and which key moves which of them."""

import copy
import re

import pytest
import yaml

from flatminima.errors import ConfigError
from flatminima.forks.settings import ForkSettings
from flatminima.planning import SuitePlan
from flatminima.schedules import AverageKind, read_kind
from tests.workflow import ROOT

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())


def plan_of(name: str, change=lambda section: None) -> SuitePlan:
    section = copy.deepcopy(CONFIG["suites"][name])
    change(section)
    return SuitePlan(name, section, CONFIG["quantizers"])


MINI, PYTHIA = plan_of("mini"), plan_of("pythia-160m")


def names(tables: list[str]) -> list[str]:
    return list(dict.fromkeys(re.sub(r"-seed\d+|\.csv", "", t.split("/")[-1]) for t in tables))


def trained(plan: SuitePlan) -> list[str]:
    tables = [*plan.pilot_tables, *plan.amplitude_tables, *plan.rival_tables]
    return names([table for table in tables if "/variants/" in table])


def test_the_pilot_of_the_paper_and_the_arms_that_take_it_apart():
    assert names(PYTHIA.pilot_tables) == [
        "pilot_512x4_fresh",  # the paper's: fewer tokens as well
        "pilot_512x16_fresh", "pilot_512x16_rewarmed",
        "pilot_2048x4_fresh", "pilot_2048x4_rewarmed",
    ]  # fmt: skip
    arms = [PYTHIA.variant_labels(name) for name in names(PYTHIA.pilot_tables)[1:]]
    assert {arm["length"] * arm["batch_size"] for arm in arms} == {8192}
    assert names(MINI.pilot_tables)[3] == "pilot_16x64_restored", "where the run's moments exist"
    state = "results/mini/training/step2800.safetensors"
    assert MINI.variant_inputs("pilot_16x64_restored")["state"] == state
    assert "state" not in MINI.variant_inputs("pilot_16x64_fresh")


@pytest.mark.parametrize(("plan", "steps"), [(MINI, 80), (PYTHIA, 2000)])
def test_arms_of_the_pilot_differ_in_what_their_name_says(plan, steps):
    for name in names(plan.pilot_tables):
        settings = plan.variant_settings(name)
        condition, fork = ForkSettings(**settings), settings["fork"]
        assert name == f"pilot_{fork['length']}x{fork['batch_size']}_{fork['optimizer_state']}"
        assert plan.variant_length(name) == fork["length"]
        assert condition.stop - condition.start == steps
        first = condition.schedule(condition.start)
        assert (first == 0.0) == (fork["optimizer_state"] == "rewarmed")
        assert condition.schedule(condition.stop) == pytest.approx(
            ForkSettings(**plan.fork_settings("cosine")).schedule(condition.stop)
        )


@pytest.mark.parametrize("plan", [MINI, PYTHIA])
def test_amplitudes_cross_cadences_and_end_at_rest(plan):
    fork = plan.section["fork"]
    labels = [plan.variant_labels(name) for name in names(plan.amplitude_tables)]
    oli = fork["schedules"]["oli"]
    own = oli["bump_steps"] + oli["cool_steps"]
    periods = [own, fork["schedules"]["sgdr"]["period"]]
    assert [(a["amplitude"], a["period"]) for a in labels] == [
        (value, period) for value in fork["amplitudes"] for period in periods
    ]
    for name in names(plan.amplitude_tables):
        condition = ForkSettings(**plan.variant_settings(name))
        schedule = condition.schedule.kind
        assert schedule.amplitude == plan.variant_labels(name)["amplitude"]
        assert schedule.period == plan.variant_labels(name)["period"]
        share = schedule.bump_steps / schedule.period
        assert share == pytest.approx(oli["bump_steps"] / own, rel=0.01)
        assert condition.probed_steps[-1] == condition.stop
        assert schedule.phase(condition.stop - condition.start - 1) == "cool"
        assert schedule.phase(condition.probed_steps[0] - condition.start - 1) == "bump"


def test_a_rival_changes_what_its_line_says():
    control = MINI.fork_settings("cosine")
    for name, key, value in [("sam", "sam_radius", 0.05), ("weight_decay", "weight_decay", 0.1)]:
        assert MINI.variant_settings(name)["training"] == control["training"] | {key: value}
    assert MINI.variant_settings("bf16")["compute"] == {"precision": "bf16"}
    for name in names([t for t in MINI.rival_tables if "/variants/" in t]):
        settings = MINI.variant_settings(name)
        assert settings["fork"].pop("probe_at")[-1] == 1200
        assert settings["fork"] == control["fork"], name
    assert MINI.variant_settings("wsd")["definition"] == {"kind": "wsd", "decay_steps": 400}


def test_conditions_that_train_alike_are_trained_once():
    conditions = trained(MINI)
    taken = {name: MINI.variant_trajectory(name, "1")["sequences"] for name in conditions}
    shared = {n: path for n, path in taken.items() if path[:-14] != f"results/mini/variants/{n}"}
    assert shared == {
        "oli_small": "results/mini/variants/oli_x2_p15-seed1.parquet",
        "oli_slow": "results/mini/variants/oli_x5_p400-seed1.parquet",
    }
    for name, path in shared.items():
        other = path.removeprefix("results/mini/variants/").removesuffix("-seed1.parquet")
        assert MINI.variant_settings(name) == MINI.variant_settings(other)
    settings = [str(MINI.variant_settings(name)) for name in conditions if name not in shared]
    assert len(set(settings)) == len(settings)


def test_averages_are_of_the_runs_own_checkpoints_up_to_the_end_of_the_fork():
    assert MINI.average_steps("early_stop") == [2800]
    assert MINI.average_steps("run") == [4000]
    assert MINI.average_steps("lawa_5") == [3840, 3880, 3920, 3960, 4000]
    assert MINI.average_steps("ema") == list(range(2800, 4001, 40))
    assert MINI.average_folders("run") == ["results/mini/checkpoints/step4000"]
    assert len(MINI.average_files("lawa_5")) == 10
    assert PYTHIA.average_steps("lawa_10") == list(range(91000, 100001, 1000))
    rivals = CONFIG["suites"]["mini"]["fork"]["rivals"]
    averages = [n for n, rival in rivals.items() if isinstance(read_kind(rival), AverageKind)]
    assert {f"results/mini/averages/{n}.csv" for n in averages} < set(MINI.rival_tables)


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda plan: plan.variant_settings("wds"), "condition 'wds' is not known; did you mean w"),
        (lambda plan: plan.variant_inputs("ema"), "condition 'ema' is not known"),
        (lambda plan: plan.average_steps("wsd"), "average 'wsd' is not known; valid: early_stop"),
    ],
)
def test_a_condition_that_is_not_there_is_one_line(ask, line):
    with pytest.raises(ConfigError) as error:
        ask(MINI)
    assert line in str(error.value) and str(error.value).startswith("suite mini: ")


@pytest.mark.parametrize("key", ["pilot", "amplitudes", "rivals"])
def test_a_suite_without_such_conditions_says_which_key_it_lacks(key):
    plan = plan_of("mini", lambda section: section["fork"].pop(key))
    tables = {"pilot": "pilot_tables", "amplitudes": "amplitude_tables", "rivals": "rival_tables"}
    with pytest.raises(ConfigError, match=f"config key fork.{key} is needed for this target"):
        getattr(plan, tables[key])
    left = [path.split("/")[-1] for path in plan.extended_forks]
    assert f"{key}.csv" not in left and "calibration.json" in left
    assert ("fig8_rivals.png" in left) == (key != "rivals")


def test_seeds_are_the_forks_own_where_none_are_given():
    assert MINI.variant_seeds == [0, 1] and PYTHIA.variant_seeds == [0, 1, 2]


def settings_of(plan: SuitePlan) -> dict[str, object]:
    found = {name: plan.variant_settings(name) for name in trained(plan)}
    found |= {"ledger_facts": plan.ledger_facts, "calibration": plan.calibration_settings}
    return found | {f"fork {s}": plan.fork_settings(s) for s in ("cosine", "sgdr", "oli")}


PILOT = {name for name in trained(MINI) if name.startswith("pilot")}
LAMBDAS = {name for name in trained(MINI) if name.startswith("oli_x")}
FORKS = {"fork cosine", "fork sgdr", "fork oli"}
EVERYTHING = set(settings_of(MINI))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("rivals.wsd.decay_steps", 200, {"wsd"}),
        ("rivals.sam.sam_radius", 0.1, {"sam"}),
        ("rivals.ema.decay", 0.5, set()),
        ("rival_seeds", [3], set()),
        ("amplitudes", [2.0, 5.0, 10.0, 20.0], {"oli_x20_p15", "oli_x20_p400"}),
        ("pilot.steps", 160, PILOT),
        ("schedules.oli.cool_steps", 27,
         {"fork oli", "ledger_facts"} | LAMBDAS | {f"oli_x{v}_p30" for v in (2, 5, 10)}),
        ("batch_size", 32, EVERYTHING | {f"pilot_{s}_{o}" for s in ("16x128", "64x32", "16x32")
                                         for o in ("fresh", "rewarmed", "restored")}
         - {"pilot_16x32_rewarmed", "pilot_16x32_restored"}),
    ],
)  # fmt: skip
def test_a_key_moves_the_conditions_that_read_it_and_no_other(path, value, expected):
    def change(section):
        *parents, last = path.split(".")
        part = section["fork"]
        for name in parents:
            part = part[name]
        part[last] = value

    before, after = settings_of(MINI), settings_of(plan_of("mini", change))
    assert {n for n in before | after if before.get(n) != after.get(n)} == expected


def test_how_gradients_are_computed_is_part_of_every_fork():
    plan = plan_of("mini", lambda section: section.update(compute={"processes": 2, "tf32": True}))
    for name in ("bf16", "wsd"):
        assert plan.variant_settings(name)["compute"]["processes"] == 2
    assert plan.variant_settings("bf16")["compute"]["precision"] == "bf16"
    assert plan.fork_settings("oli")["compute"] == {"processes": 2, "tf32": True}
    assert MINI.fork_settings("oli")["compute"] == {}
    two = plan_of("mini", lambda s: s.update(compute={"processes": 2}, device="cuda"))
    assert two.fork_gpus == 2 and two.gpus == 1
