"""What is told of forks: a fork's trajectory, and every condition at its end (section 5)."""

from collections.abc import Iterable, Mapping

import pandas as pd

from flatminima.intervals import summarise
from flatminima.quantizer_specs import FP32
from flatminima.schedules import Condition

RIVAL_COLUMNS = [
    "suite", "group", "schedule", "seed", "step", "update_phase", "quantizer", "role",
    "nll_nats_per_token", "ppl", "delta_nll_nats_per_token", "gap_pct", "gap_low_pct",
    "gap_high_pct", "kl_nats_per_token", "top1_changed_pct",
]  # fmt: skip


def trajectory(
    condition: Condition,
    scores: pd.DataFrame,
    losses: pd.DataFrame,
    *,
    suite: str,
    name: str,
    seed: int,
    labels: Mapping[str, object],
    sequence_length: int,
    resamples: int,
) -> pd.DataFrame:
    """One row per probe and quantizer of one condition and one seed: ``forks/*.csv``.

    ``scores`` are the per-sequence scores of all probes, ``losses`` has step and
    loss_nats_per_token of every update; ``labels`` become columns of their own. The
    learning rate and the phase of a row are those of the last update before the probe.
    """
    table = summarise(scores, ["step"], resamples=resamples, seed=0)
    steps, schedule = table["step"], condition.schedule
    lr = steps.map(lambda step: schedule(step - 1))
    tokens_per_step = condition.fork["batch_size"] * sequence_length
    by_step = losses.set_index("step")["loss_nats_per_token"]
    before = {
        "suite": suite, "schedule": name, **labels, "seed": seed, "fork_step": condition.start,
        "step": steps,
        "tokens_since_fork": (steps - condition.start) * tokens_per_step,
        "lr_last_update": lr,
        "lr_fraction_last_update": lr / condition.training["lr_max"],
        "update_phase": steps.map(lambda step: schedule.last_update_phase(step) or ""),
        "train_loss_nats_per_token": steps.map(by_step),
    }  # fmt: skip
    return pd.concat([pd.DataFrame(before), table.drop(columns="step")], axis=1)


def settled_rows(trajectories: pd.DataFrame) -> pd.DataFrame:
    """Rows of the last probe of each condition and seed, for OLI of the last one of each phase.

    ``trajectories`` are in the format of forks.csv. A fork that ends on a bump is not at
    rest, so that its last cool probe stands beside its last probe.
    """
    table = trajectories.astype({"update_phase": object}).fillna({"update_phase": ""})
    keys = ["schedule", "seed", "update_phase"]
    last = table.groupby(keys)["step"].transform("max")
    return table[table["step"] == last]


def rival_table(
    forks: pd.DataFrame, variants: Iterable[pd.DataFrame], averages: Iterable[pd.DataFrame]
) -> pd.DataFrame:
    """rivals.csv: one row per condition, seed, phase and quantizer, in the order given.

    ``group`` is ``paper``, ``rival`` or ``average``; averages are of the suite's own run and
    have no seed.
    """
    parts = [settled_rows(forks).assign(group="paper")]
    parts += [settled_rows(table).assign(group="rival") for table in variants]
    parts += [table.assign(group="average", update_phase="") for table in averages]
    table = pd.concat([part.reindex(columns=RIVAL_COLUMNS) for part in parts], ignore_index=True)
    return table.astype({"seed": "Int64", "step": "int64"})


def compare(rivals: pd.DataFrame) -> pd.DataFrame:
    """One row per condition, phase and seed: fp32_ppl and low_bit_ppl side by side.

    Columns: group, schedule, update_phase, seed, fp32_ppl, low_bit_ppl, gap_pct.
    """
    keys = ["group", "schedule", "update_phase", "seed"]
    rivals = rivals.astype({"update_phase": object}).fillna({"update_phase": ""})
    fp32 = rivals.loc[rivals["role"] == FP32, [*keys, "ppl"]].rename(columns={"ppl": "fp32_ppl"})
    low_bit = rivals.loc[rivals["role"] == "low_bit", [*keys, "ppl", "gap_pct"]]
    low_bit = low_bit.rename(columns={"ppl": "low_bit_ppl"})
    return fp32.merge(low_bit, on=keys, how="left", validate="one_to_one")
