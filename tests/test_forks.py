"""Forks and what else leaves the run: what each condition is, its table, and what averages are."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from flatminima.conditions import Condition
from flatminima.config import plan_forks
from flatminima.config.plan_mechanism import extended_outputs
from flatminima.config.suites import Suite
from flatminima.errors import ConfigError
from flatminima.files import read_json
from flatminima.model import build_model, save_model
from flatminima.quantizers import linear_weights, quantized_weights
from flatminima.schedules import Cosine
from flatminima.text.tokens import write_tokens
from flatminima.training import amplitude
from flatminima.training.loop import Recipe, build_optimizer, train
from flatminima.training.workspace import save_state
from tests import synthetic
from tests.conftest import PROBE, TINY, TINY_VOCABULARY, affine
from tests.test_config import DELETE
from tests.test_plan import MINI, PYTHIA, changed
from workflow_scripts import average_checkpoints, calibrate_amplitude, gather_rivals, plot_rivals

INT4 = affine(4, "group", False, group_size=8)


def names(suite: Suite, gathered: str) -> list[str]:
    tables = [re.sub(r".*/|-seed.*|\.csv", "", t) for t in plan_forks.trajectories(suite, gathered)]
    return list(dict.fromkeys(tables))


def trained(suite: Suite) -> list[str]:
    found = [name for key in ("pilot", "amplitudes", "rivals") for name in names(suite, key)]
    return [name for name in found if name not in plan_forks.averages(suite)]


def settings_of(suite: Suite, series: str, name: str) -> dict:
    return plan_forks.branch(suite, series, name).settings()


def variant(name: str, suite: Suite = MINI) -> Condition:
    return Condition(**settings_of(suite, "variants", name))


def test_the_pilot_of_the_paper_and_the_arms_that_take_it_apart():
    assert names(PYTHIA, "pilot") == [
        "pilot_512x4_fresh",  # the paper's: fewer tokens as well
        "pilot_512x16_fresh",
        "pilot_512x16_rewarmed",
        "pilot_2048x4_fresh",
        "pilot_2048x4_rewarmed",
    ]
    assert names(MINI, "pilot")[3] == "pilot_16x64_restored", "where the run's moments exist"
    for suite, steps in ((MINI, 80), (PYTHIA, 2000)):
        for name in names(suite, "pilot"):
            arm = variant(name, suite)
            state = arm.fork["optimizer_state"]
            assert name == f"pilot_{arm.fork['length']}x{arm.fork['batch_size']}_{state}"
            assert arm.stop - arm.start == steps
            assert (arm.schedule(arm.start) == 0.0) == (state == "rewarmed")
            control = Condition(**settings_of(suite, "forks", "cosine"))
            assert arm.schedule(arm.stop) == control.schedule(arm.stop)
            inputs = plan_forks.branch(suite, "variants", name).inputs()
            moments = "results/mini/training/step2800.safetensors"
            assert inputs.get("state") == (moments if state == "restored" else None)


@pytest.mark.parametrize("suite", [MINI, PYTHIA])
def test_amplitudes_cross_cadences_and_end_at_rest(suite):
    fork = suite.config.fork
    oli = fork.schedules["oli"]
    arms = product(fork.amplitudes, [oli.period, fork.schedules["sgdr"].period])
    for name, arm in zip(names(suite, "amplitudes"), arms, strict=True):
        labels = plan_forks.branch(suite, "variants", name).labels
        condition = variant(name, suite)
        kind = condition.schedule.kind
        assert (kind.amplitude, kind.period) == (labels["amplitude"], labels["period"]) == arm
        assert kind.bump_steps / kind.period == pytest.approx(oli.bump_steps / oli.period, rel=0.01)
        ends = [condition.schedule.last_update_phase(step) for step in condition.saved_steps]
        assert ends == ["bump", "cool"] and condition.saved_steps[-1] == condition.stop


def test_a_rival_changes_what_its_line_says():
    control = settings_of(MINI, "forks", "cosine")
    for name, key, value in [("sam", "sam_radius", 0.05), ("weight_decay", "weight_decay", 0.1)]:
        assert variant(name).training == control["training"] | {key: value}
    assert variant("wsd").definition.dump() == {"kind": "wsd", "decay_steps": 400}
    for name in set(names(MINI, "rivals")) & set(trained(MINI)):
        fork_settings = variant(name).fork
        assert {k: v for k, v in fork_settings.items() if k != "probe_at"} == control["fork"], name
    assert variant("bf16").compute == control["compute"] | {"precision": "bf16"}
    fast = changed("mini", "compute", {"tf32": True})
    assert variant("bf16", fast).compute == variant("bf16").compute | {"tf32": True}
    # What a rival may be, a fork of the paper may be.
    schedule = {"kind": "wsd", "decay_steps": 40, "sam_radius": 0.1}
    settings = settings_of(changed("mini", "fork.schedules.own", schedule), "forks", "own")
    assert settings["definition"] == {"kind": "wsd", "decay_steps": 40}
    assert settings["training"]["sam_radius"] == 0.1
    assert Condition(**settings).schedule(3999) > 0.0 == Condition(**settings).schedule(4000)


def test_conditions_that_train_alike_are_trained_once():
    conditions = trained(MINI)
    shared = {}
    for name in conditions:
        path = plan_forks.branch(MINI, "variants", name).trajectory("1")["sequences"]
        if path != f"results/mini/variants/{name}-seed1.parquet":
            shared[name] = path
    assert shared == {
        "oli_small": "results/mini/variants/oli_x2_p15-seed1.parquet",
        "oli_slow": "results/mini/variants/oli_x5_p400-seed1.parquet",
    }
    assert variant("oli_small") == variant("oli_x2_p15")
    settings = [str(variant(name)) for name in conditions if name not in shared]
    assert len(set(settings)) == len(settings)


def test_conditions_have_keys_and_one_that_is_not_there_is_one_line():
    for series, name, key in (
        ("forks", "sgdr", "fork.schedules.sgdr"),
        ("cycles", "oli-bumpfirst", "fork.schedules.oli"),
        ("variants", "wsd", "fork.rivals.wsd"),
        ("variants", "oli_x2_p375", "fork.amplitudes"),
    ):
        assert plan_forks.branch(PYTHIA, series, name).key == key
    for ask, key_word in (
        (lambda: settings_of(MINI, "forks", "olli"), "'olli'.*did you mean oli"),
        (lambda: plan_forks.branch(MINI, "variants", "ema").inputs(), "'ema'"),
        (lambda: settings_of(MINI, "cycles", "sgdr-coolfirst"), "'sgdr-coolfirst'"),
        (lambda: plan_forks.average_steps(MINI, "wsd"), "'wsd'.*early_stop"),
    ):
        with pytest.raises(ConfigError, match=key_word):
            ask()
    kept = changed("pythia-160m", "fork.keep_checkpoints", True)
    assert [suite.config.keeps_forks for suite in (MINI, PYTHIA, kept)] == [True, False, True]


def test_averages_are_of_the_runs_own_checkpoints_up_to_the_end_of_the_fork():
    averages = {name: plan_forks.average_steps(MINI, name) for name in plan_forks.averages(MINI)}
    assert averages.pop("lawa_10")[-2:] == [3960, 4000]
    assert averages == {
        "early_stop": [2800],
        "run": [4000],
        "lawa_5": [3840, 3880, 3920, 3960, 4000],
        "ema": list(range(2800, 4001, 40)),
    }
    assert plan_forks.average_steps(PYTHIA, "lawa_10") == list(range(91000, 100001, 1000))


def test_a_suite_without_such_conditions_says_which_key_it_lacks():
    for key in ("pilot", "amplitudes", "rivals"):
        suite = changed("mini", f"fork.{key}", DELETE)
        with pytest.raises(ConfigError, match=f"fork.{key}"):
            plan_forks.trajectories(suite, key)
        outputs = extended_outputs(suite, {"fig8_rivals": ["rivals.csv"]})
        left = [path.split("/")[-1] for path in outputs]
        assert f"{key}.csv" not in left and "calibration.json" in left
        assert ("fig8_rivals.png" in left) == (key != "rivals")


def all_settings(suite: Suite) -> dict[str, object]:
    found = {name: settings_of(suite, "variants", name) for name in trained(suite)}
    return found | {"calibration": plan_forks.calibration_settings(suite)}


PILOT = {name for name in trained(MINI) if name.startswith("pilot")}
LAMBDAS = {name for name in trained(MINI) if name.startswith("oli_x")}
EVERYTHING = set(all_settings(MINI))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("rivals.wsd.decay_steps", 200, {"wsd"}),
        ("rivals.ema.decay", 0.5, set()),
        ("rival_seeds", [3], set()),
        ("keep_checkpoints", False, set()),
        ("amplitudes", [2.0, 5.0, 10.0, 20.0], {"oli_x20_p15", "oli_x20_p400"}),
        ("pilot.steps", 160, PILOT),
        ("schedules.oli.cool_steps", 27, LAMBDAS | {f"oli_x{v}_p30" for v in (2, 5, 10)}),
        (
            "batch_size",
            32,
            EVERYTHING
            | {
                f"pilot_{s}_{o}"
                for s in ("16x128", "64x32", "16x32")
                for o in ("fresh", "rewarmed", "restored")
            }
            - {"pilot_16x32_rewarmed", "pilot_16x32_restored"},
        ),
    ],
)
def test_a_key_moves_the_conditions_that_read_it_and_no_other(path, value, expected):
    before, after = all_settings(MINI), all_settings(changed("mini", f"fork.{path}", value))
    assert {n for n in before | after if before.get(n) != after.get(n)} == expected


# Every condition at its end


def test_rivals_are_gathered_with_the_two_perplexities_side_by_side(tmp_path):
    """A fork counts at its end, OLI at the last end of each phase as well."""
    forks = synthetic.forks()
    audit = synthetic.audit()
    average = audit[audit["step"] == 4000].assign(schedule="run", seed=pd.NA)
    average = average.drop(columns=["tokens_seen", "lr", "lr_fraction"])
    trained = []
    for name, like, seed in (("oli_small", "oli", 0), ("wsd", "cosine", 0), ("wsd", "cosine", 1)):
        rows = forks[(forks["schedule"] == like) & (forks["seed"] == seed)]
        trained.append(rows.assign(schedule=name))
    output = tmp_path / "rivals.csv"
    gather_rivals.main(forks=forks, trained=trained, averages=[average], table=str(output))
    assert ",0," in output.read_text() and ",0.0,0.0,4000" not in output.read_text()
    table = pd.read_csv(output)
    assert list(table.columns) == gather_rivals.COLUMNS
    assert table.groupby("group", sort=False)["schedule"].unique().map(list).to_dict() == {
        "paper": ["cosine", "sgdr", "oli"],
        "rival": ["oli_small", "wsd"],
        "average": ["run"],
    }
    plain = table[~table["schedule"].str.startswith("oli")]
    assert set(plain["step"]) == {4000} and plain["update_phase"].isna().all()
    last_steps, expected_last_steps = (
        part[part["schedule"] == "oli"].groupby("update_phase")["step"] for part in (table, forks)
    )
    assert last_steps.unique().map(list).to_dict() == {
        k: [v] for k, v in expected_last_steps.max().items()
    }
    assert (table["seed"].isna() == (table["group"] == "average")).all()
    side_by_side = plot_rivals.compare(table)
    expected_ppl = side_by_side["fp32_ppl"] * (1 + side_by_side["gap_pct"] / 100)
    np.testing.assert_allclose(side_by_side["low_bit_ppl"], expected_ppl, rtol=1e-9)
    assert side_by_side.groupby("schedule", sort=False).size().to_dict() == {
        "cosine": 3,
        "sgdr": 3,
        "oli": 6,
        "oli_small": 2,
        "wsd": 2,
        "run": 1,
    }


def flat(model) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def test_the_average_is_the_weighted_mean_of_the_weights_and_is_probed(tmp_path):
    folders = [str(tmp_path / f"step{seed}") for seed in range(3)]
    shares = [0.2, 0.3, 0.5]
    models = [build_model(TINY, TINY_VOCABULARY, seed) for seed in range(3)]
    for model, folder in zip(models, folders, strict=True):
        save_model(model, Path(folder))
    average = flat(average_checkpoints.average_model(folders, shares, "cpu"))
    expected = sum(share * flat(model) for share, model in zip(shares, models, strict=True))
    torch.testing.assert_close(average, expected, rtol=1.2e-7, atol=0)  # half a unit of float32
    average_of_one = average_checkpoints.average_model(folders[:1], [1.0], "cpu")
    assert torch.equal(flat(average_of_one), flat(models[0]))
    save_model(build_model({**TINY, "num_layers": 1}, TINY_VOCABULARY, 0), tmp_path / "other")
    with pytest.raises(ValueError, match="other"):
        average_checkpoints.average_model([folders[0], str(tmp_path / "other")], [0.5, 0.5], "cpu")
    tokens = np.random.default_rng(0).integers(0, TINY_VOCABULARY, (6, 16)).astype(np.int32)
    write_tokens(tmp_path / "validation.safetensors", tokens)
    average_checkpoints.main(
        suite="tiny",
        average="lawa",
        definition={"kind": "average", "window": 3},
        folders=folders,
        steps=[0, 10, 20],
        validation=str(tmp_path / "validation.safetensors"),
        probe=PROBE,
        resamples=20,
        threads=1,
        code="abc",
        table=str(tmp_path / "lawa.csv"),
        sequences=str(tmp_path / "lawa.parquet"),
        provenance=str(tmp_path / "lawa.json"),
    )
    table = pd.read_csv(tmp_path / "lawa.csv")
    assert list(table["role"]) == ["fp32", "low_bit", "high_bit"]
    assert set(table["step"]) == {20} and set(table["schedule"]) == {"lawa"}
    assert read_json(tmp_path / "lawa.json")["weights"] == [1 / 3] * 3


# The amplitude from gradient statistics, against numbers worked out by hand


def test_the_mean_step_of_the_grid_is_four_times_the_mean_move_to_it(tiny_model):
    """Errors are uniform within half a step, which ties the step to the quantizer."""
    moved = [
        (w - quantized_weights(tiny_model, INT4)[name]).abs().flatten()
        for name, w in linear_weights(tiny_model).items()
    ]
    expected = amplitude.mean_grid_step(tiny_model, INT4) / 4
    assert torch.cat(moved).mean().item() == pytest.approx(expected, rel=0.05)


def test_gradient_statistics_agree_with_autograd(tiny_model, tiny_tokens):
    weights = linear_weights(tiny_model)
    settings = {"start": 0, "batches": 1, "batch_size": 9, "training": {"eps": 1e-3}}
    statistics = amplitude.gradient_statistics(tiny_model, tiny_tokens, weights, settings)
    tiny_model.zero_grad()
    ids = torch.from_numpy(tiny_tokens.astype(np.int64))
    tiny_model(input_ids=ids, labels=ids).loss.backward()
    sizes = torch.cat([w.grad.abs().flatten() for w in weights.values()])
    assert statistics == pytest.approx(
        {
            "global_norm": torch.cat([p.grad.flatten() for p in tiny_model.parameters()])
            .norm()
            .item(),
            "mean_abs": sizes.mean().item(),
            "adam_fresh": (sizes / (sizes + 1e-3)).mean().item(),
        },
        rel=1e-5,
    )


def test_amplitudes_follow_from_updates_and_the_grid(tmp_path, tiny_model):
    """The update under restored moments is what Adam makes of the gradient they hold."""
    tokens = np.random.default_rng(0).integers(0, TINY_VOCABULARY, (30, 16)).astype(np.int32)
    recipe = Recipe(8, weight_decay=0.0, beta1=0.9, beta2=0.95, eps=1e-8, clip_norm=1.0, seed=0)
    optimizer = build_optimizer(tiny_model, recipe)
    schedule = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=2, total_steps=40)
    list(train(tiny_model, optimizer, tokens, schedule, recipe, start=0, stop=12))
    state, train_file = (tmp_path / f"{name}.safetensors" for name in ("state", "train"))
    save_state(state, tiny_model, optimizer, step=12, fingerprint="", losses=[])
    save_model(tiny_model, tmp_path / "step12")
    write_tokens(train_file, tokens)
    settings = {
        "quantizer": {"bits": 4, "granularity": "group", "group_size": 8, "symmetric": False},
        "start": 12,
        "batch_size": 8,
        "batches": 2,
        "rate": 5e-3,
        "bump": 3,
        "training": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8},
    }
    for restored in (False, True):
        calibrate_amplitude.main(
            folder=str(tmp_path / "step12"),
            train=str(train_file),
            state=str(state) if restored else None,
            suite="tiny",
            settings=settings,
            calibration=str(tmp_path / "calibration.json"),
            device="cpu",
            threads=1,
            code="abc",
        )
        calibration = read_json(tmp_path / "calibration.json")
        amplitudes = calibration["amplitudes"]
        half = calibration["mean_grid_step"] / 2
        assert calibration["assumed"] in amplitudes and ("adam_restored" in amplitudes) == restored
        for name, update in calibration["updates_per_unit_rate"].items():
            assert amplitudes[name] == pytest.approx(half / (5e-3 * update))
    assert amplitudes["adam_bump"] == pytest.approx(amplitudes["adam_fresh"] / 3)
    assert amplitudes["gradient"] > 10 * amplitudes["adam_fresh"]
    by_hand = []
    for w in linear_weights(tiny_model).values():
        m = optimizer.state[w]["exp_avg"].double() / (1 - 0.9**12)
        v = optimizer.state[w]["exp_avg_sq"].double() / (1 - 0.95**12)
        by_hand.append((m.abs() / (v.sqrt() + 1e-8)).flatten())
    size = torch.cat(by_hand).mean().item()
    assert calibration["updates_per_unit_rate"]["adam_restored"] == pytest.approx(size, rel=1e-6)
