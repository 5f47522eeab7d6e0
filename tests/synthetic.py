"""Invented results in the exact formats of results/{suite}: no model was measured for them.

Curves run through the numbers of the paper's Table 1, scaled to the suite's grid, with a
little seeded noise, so that tables and figures meet values of realistic size. ``phases``
can lack an onset, ``grid`` can be as short as twelve revisions, and INT8 can go negative.
"""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from flatminima.conditions import Condition
from flatminima.config.keys import EvenGrid
from flatminima.equivalents import equivalent_step, grid_steps
from flatminima.paper import PAPER_LAST_STEP, PAPER_SPACING
from flatminima.schedules import (
    CosineNeoxV1,
    ForkSchedule,
    RunSchedule,
    read_kind,
)
from flatminima.statistics_table import all_statistics

ROOT = Path(__file__).resolve().parents[1]
MINI = {
    "name": "mini",
    "label": "mini (embedded suite, not Pythia)",
    "is_paper_model": False,
    "spacing": 40,
    "last": 5720,
    "quantizers": {"int4_g64": "INT4", "int8_channel": "INT8"},
}
PYTHIA = MINI | {
    "name": "pythia-160m",
    "label": "Pythia-160m",
    "is_paper_model": True,
    "spacing": PAPER_SPACING,
    "last": PAPER_LAST_STEP,
}
# As config.yaml has it: its grid is not the paper's on another scale.
FRESH = {
    "name": "fresh",
    "label": "fresh (embedded suite, not Pythia)",
    "is_paper_model": False,
    "spacing": 200,
    "last": 5400,
    "quantizers": {"int4_g16": "INT4", "int8_channel": "INT8"},
}

PAPER_TABLE1 = pd.read_csv(ROOT / "resources/paper/table1.csv")
PAPER_TABLE2 = pd.read_csv(ROOT / "resources/paper/table2.csv")
ROLES = ("fp32", "low_bit", "high_bit")
SEQUENCES = 256
LENGTH = 64


def grid(suite: dict, *, short: bool = False) -> list[int]:
    """The suite's 154 revisions, or twelve of the same extent."""
    powers, spacing = (0, 13 * suite["spacing"]) if short else (10, suite["spacing"])
    return EvenGrid(powers_of_two=powers, spacing=spacing, last=suite["last"]).revisions


def step_at(suite: dict, paper_step: int) -> int:
    """The suite's evenly spaced step nearest to a step of the paper by the share of the run."""
    return equivalent_step(
        paper_step, grid_steps(suite["spacing"], suite["last"]), last=suite["last"]
    )


def schedule(suite: dict) -> CosineNeoxV1:
    """Pythia's own schedule on the suite's grid."""
    last = suite["last"]
    return CosineNeoxV1(
        lr_max=0.01, lr_min=0.001, warmup_steps=max(1, last // 100), total_steps=last
    )


def fork_schedule(
    definition: dict, *, baseline: RunSchedule, start: int, stop: int, rewarm_steps: int = 0
) -> ForkSchedule:
    """Schedule of a fork that leaves the run of ``baseline`` at ``start`` and ends at ``stop``."""
    return ForkSchedule(read_kind(definition), baseline, start, stop, rewarm_steps)


def fork_schedules(suite: dict) -> dict[str, dict]:
    """Definitions of the three forks on the suite's grid."""
    k = suite["spacing"]
    cycle = {"bump_steps": 3 * k // 40, "cool_steps": 12 * k // 40}
    return {
        "cosine": {"kind": "cosine"},
        "sgdr": {"kind": "sgdr", "period": 10 * k},
        "oli": {"kind": "oli", **cycle, "amplitude": 5.0, "first": "cool"},
    }


def facts(suite: dict) -> dict:
    """``suite`` with what its plan says of training and forks; fits ``audit`` and ``forks``."""
    k = suite["spacing"]
    lr = schedule(suite)
    training = {
        "schedule": "cosine_neox_v1",
        "lr_max": lr.lr_max,
        "lr_min": lr.lr_min,
        "warmup_steps": lr.warmup_steps,
    }
    fork = {
        "start": 70 * k,
        "steps": 30 * k,
        "probe_every": k,
        "batch_size": 16,
        "seeds": [0, 1, 2],
        "schedules": fork_schedules(suite),
    }
    more = {"tokens_per_step": 16 * LENGTH, "powers_of_two": 10}
    trained = {"start": 70 * k, "steps": 30 * k, "probe_every": k, "optimizer_state": "fresh"}
    conditions = {
        name: Condition(
            definition=definition, fork=trained, training=training, total_steps=suite["last"]
        ).dump()
        for name, definition in fork_schedules(suite).items()
    }
    return {**suite, **more, "training": training, "fork": fork, "conditions": conditions}


def _curve(suite: dict, steps: list[int], column: str, at_zero: float) -> np.ndarray:
    """Table 1's column over ``steps``, log-interpolated from ``at_zero`` at step 0."""
    known = np.r_[1.0, PAPER_TABLE1["step"] * suite["last"] / PAPER_LAST_STEP]
    values = np.log(np.r_[at_zero, PAPER_TABLE1[column]])
    return np.exp(np.interp(np.log(np.maximum(steps, 1)), np.log(known), values))


def _rows(suite: dict, keys: pd.DataFrame, ppl: np.ndarray, gaps: dict) -> pd.DataFrame:
    """Rows of all roles, one model per row of ``keys``; ``gaps`` are in percent, by role."""
    quantizers = suite["quantizers"]
    parts = []
    for role, name in zip(ROLES, ("fp32", *quantizers), strict=True):
        gap = np.broadcast_to(gaps.get(role, 0.0), len(keys))
        nll = np.log(ppl) + np.log1p(gap / 100.0)
        half = 0.0 if role == "fp32" else 0.02 + 0.08 * abs(gap)
        parts.append(
            keys.assign(
                quantizer=name,
                role=role,
                nll_nats_per_token=nll,
                ppl=np.exp(nll),
                ppl_low=np.exp(nll - 0.3),
                ppl_high=np.exp(nll + 0.3),
                delta_nll_nats_per_token=nll - np.log(ppl),
                gap_pct=gap,
                gap_low_pct=gap - half,
                gap_high_pct=gap + half,
                kl_nats_per_token=abs(gap) / 150.0,
                top1_changed_pct=np.minimum(60.0, 2.0 * abs(gap) ** 0.7),
                n_sequences=SEQUENCES,
                n_tokens=SEQUENCES * (LENGTH - 1),
            )
        )
    return pd.concat(parts).sort_index(kind="stable").reset_index(drop=True)


def audit(suite: dict = MINI, *, short: bool = False, negative_int8: bool = False) -> pd.DataFrame:
    """audit.csv; with ``negative_int8`` the control's gap scatters around zero."""
    steps = grid(suite, short=short)
    lr = schedule(suite)
    rng = np.random.default_rng(1)
    ppl = _curve(suite, steps, "fp32_ppl", 61441.0) * np.exp(rng.normal(0, 0.003, len(steps)))
    low = _curve(suite, steps, "int4_gap_pct", 0.02) * np.exp(rng.normal(0, 0.03, len(steps)))
    high = _curve(suite, steps, "int8_gap_pct", 0.001) * np.exp(rng.normal(0, 0.2, len(steps)))
    if negative_int8:
        high = high + rng.normal(0, 0.03, len(steps))
    keys = pd.DataFrame({"suite": suite["name"], "step": steps})
    rates = keys["step"].map(lr)
    keys = keys.assign(
        tokens_seen=keys["step"] * 16 * LENGTH, lr=rates, lr_fraction=rates / lr.lr_max
    )
    return _rows(suite, keys, ppl, {"low_bit": low, "high_bit": high})


def phases(suite: dict = MINI, *, onset: bool = True) -> dict:
    """phases.json; without ``onset`` there are two segments and no lag."""
    first, last = suite["spacing"], suite["last"]
    learned, best, diverged = (step_at(suite, step) for step in (7_000, 77_000, 80_000))
    table = audit(suite).pivot(index="step", columns="role", values=["ppl", "gap_pct"])
    edges = [
        (1, "rapid learning", first, learned),
        (2, "plateau", learned, diverged),
        (3, "divergence", diverged, last),
    ]
    if not onset:
        edges = [edges[0], (2, "after rapid learning", learned, last)]
    segments = []
    for phase, name, first_step, last_step in edges:
        part = table.loc[first_step:last_step]
        gap = part["gap_pct", "low_bit"].to_list()
        ppl = part["ppl", "fp32"].to_list()
        segments.append(
            {
                "phase": phase,
                "name": name,
                "first_step": first_step,
                "last_step": last_step,
                "gap_first_pct": gap[0],
                "gap_last_pct": gap[-1],
                "gap_min_pct": min(gap),
                "gap_max_pct": max(gap),
                "ppl_first": ppl[0],
                "ppl_last": ppl[-1],
                "n": len(gap),
            }
        )
    best_ppl, final_ppl = table["ppl", "fp32"].loc[[best, last]]

    def interval(step: int, paper_low: int, paper_high: int) -> dict:
        low, high = (step_at(suite, end) for end in (paper_low, paper_high))
        return {"step": step, "step_low": low, "step_high": high}

    onset_interval = interval(diverged, 78_000, 84_000)
    return {
        "suite": suite["name"],
        "rule": "Invented for tests.",
        "convergence": {
            **interval(best, 70_000, 98_000),
            "ppl": best_ppl,
            "final_ppl": final_ppl,
            "rise_pct": 100 * (final_ppl / best_ppl - 1),
        },
        "rapid_learning_end": interval(learned, 6_000, 9_000),
        "onset": (onset_interval if onset else dict.fromkeys(onset_interval))
        | {
            "detected": onset,
            "delta_bic": 120.0 if onset else -3.0,
            "slope_before_per_1000_steps": 0.01,
            "slope_after_per_1000_steps": 0.5 if onset else None,
            "reason": "" if onset else "the broken line is no better than the straight one",
        },
        "lag_steps": diverged - best if onset else None,
        "lag_low": -18 * first if onset else None,
        "lag_high": 10 * first if onset else None,
        "segments": segments,
    }


def suite_table(suite: dict = MINI, *, missing: tuple = ()) -> pd.DataFrame:
    """The columns of suite.csv that are read beside the audit."""
    steps = grid(suite)
    status = ["missing" if step in missing else "present" for step in steps]
    return pd.DataFrame({"suite": suite["name"], "step": steps, "status": status})


def kurtosis(suite: dict = MINI, *, short: bool = False) -> pd.DataFrame:
    """kurtosis.csv: eight tensors, their mean and the pooled value."""
    steps = grid(suite, short=short)
    known_steps = np.array([0, 30, 70, 87, 100, 120, 143]) * suite["last"] / 143
    mean = np.interp(steps, known_steps, [0.0, 8.0, 22.0, 27.9, 15.0, 8.0, 3.3])
    layers = (
        "attention.query_key_value",
        "attention.dense",
        "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h",
    )
    names = [f"gpt_neox.layers.{i}.{layer}.weight" for i in (0, 1) for layer in layers]
    noise = np.exp(np.random.default_rng(2).normal(0, 0.03, (len(steps), len(names))))
    values = mean[:, None] * np.linspace(0.3, 1.7, len(names)) * noise
    mean = values.mean(axis=1)
    parts = [("per_tensor", name, 12288, values[:, k]) for k, name in enumerate(names)]
    parts += [
        ("mean_over_tensors", "all", 98304, mean),
        ("pooled", "all", 98304, 1.684 + 1.2 * mean),
    ]
    columns = ["statistic", "tensor", "n_weights", "excess_kurtosis"]
    tables = [
        pd.DataFrame({"step": steps} | dict(zip(columns, part, strict=True))) for part in parts
    ]
    return pd.concat(tables).sort_values("step", kind="stable", ignore_index=True)


def forks(suite: dict = MINI) -> pd.DataFrame:
    """forks.csv: three schedules, three seeds, thirty probes each."""
    k = suite["spacing"]
    rng = np.random.default_rng(3)
    baseline = schedule(suite)
    start = 70 * k
    tables = []
    for name, definition in fork_schedules(suite).items():
        lr = fork_schedule(definition, baseline=baseline, start=start, stop=start + 30 * k)
        steps = pd.Series(start + np.arange(1, 31) * k)
        done = (steps - start) / (30 * k)
        rate = (steps - 1).map(lr)
        phase = steps.map(lambda step, of=lr: of.last_update_phase(step) or "")
        bump = phase == "bump"
        fraction = rate / baseline.lr_max
        gap = {"cosine": 4 + 8.3 * done, "sgdr": 4 + 9 * done + 5 * fraction}.get(
            name, (4 + 2 * done).where(~bump, 22)
        )
        ppl = {"cosine": 34 + 10 * done, "sgdr": 34 + 10 * done + 4 * fraction}.get(
            name, (48 + 28 * done) * (1 + 0.1 * bump)
        )
        for seed in range(3):
            keys = pd.DataFrame(
                {
                    "suite": suite["name"],
                    "schedule": name,
                    "seed": seed,
                    "fork_step": start,
                    "step": steps,
                    "tokens_since_fork": (steps - start) * 16 * LENGTH,
                    "lr_last_update": rate,
                    "lr_fraction_last_update": fraction,
                    "update_phase": phase,
                    "train_loss_nats_per_token": np.log(ppl) - 0.3,
                }
            )
            low = gap * np.exp(rng.normal(0, 0.08, 30)) + 0.4 * seed
            gaps = {"low_bit": low, "high_bit": 0.01 * gap}
            tables.append(_rows(suite, keys, ppl * np.exp(rng.normal(0, 0.01, 30)), gaps))
    return pd.concat(tables, ignore_index=True)


def statistics(
    suite: dict = MINI, *, onset: bool = True, primary: dict | None = None
) -> pd.DataFrame:
    """statistics.csv of the tables above, by the project's own tests."""
    return all_statistics(
        forks(suite),
        audit(suite),
        kurtosis(suite),
        phases(suite, onset=onset),
        spacing=suite["spacing"],
        baseline="cosine",
        primary=primary or {},
    )


def replication(suite: dict = FRESH) -> tuple[pd.DataFrame, pd.DataFrame]:
    """replication_runs.csv and replication.csv: two widths, two seeds and two weight decays.

    Each run has curves of its own: perplexities differ by 1 % from one to the next.
    """
    rows = audit(suite)
    rows = rows[rows["step"] % suite["spacing"] == 0]
    rows = rows[(rows["step"] > 0) & (rows["role"] != "high_bit")].drop(columns="suite")
    runs = []
    comparison = []
    for number, (width, seed, decay) in enumerate(product((16, 32), (0, 1), (0.0, 0.1))):
        run_labels = {"suite": suite["name"], "width": width, "seed": seed, "weight_decay": decay}
        added = rows["delta_nll_nats_per_token"] * (1 + 0.05 * number)
        nll = rows["nll_nats_per_token"] + 0.01 * number
        seen = rows["step"] * 32 * LENGTH / (12 * width**2)
        runs.append(
            rows.assign(
                **run_labels,
                weights=12 * width**2,
                tokens_per_weight=seen,
                nll_nats_per_token=nll,
                delta_nll_nats_per_token=added,
            )
        )
        slopes = {"slope_before": 0.1, "slope_after": 0.2 + 0.01 * number, "slope_change": 0.1}
        ends = {
            f"{name}_{end}": slope + shift
            for name, slope in slopes.items()
            for end, shift in (("low", -0.02), ("high", 0.02))
        }
        onset = step_at(suite, 80_000) if number % 2 else np.nan
        best = step_at(suite, 77_000) + number * suite["spacing"]
        comparison.append({**run_labels, "fp32_step": best, "onset_step": onset, **slopes, **ends})
    return pd.concat(runs, ignore_index=True), pd.DataFrame(comparison)


def write(folder: Path, suite: dict = MINI, *, onset: bool = True) -> Path:
    """All of the above under their own names in ``folder``, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"audit": audit(suite), "kurtosis": kurtosis(suite), "forks": forks(suite)}
    tables |= {"statistics": statistics(suite, onset=onset), "suite": suite_table(suite)}
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    (folder / "phases.json").write_text(json.dumps(phases(suite, onset=onset)), encoding="utf-8")
    return folder
