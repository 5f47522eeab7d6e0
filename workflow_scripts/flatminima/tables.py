"""Tables 1 and 2 beside the paper's printed numbers.

Columns of a frame are pairs (group, heading). The paper's group says in its name whose
model it is about, and that it is not comparable unless the suite is that model.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from flatminima.labels import PAPER_MODEL, SCHEDULES, role_labels
from flatminima.revisions.missing import missing_words
from flatminima.table_formats import HIGH, LOW, Table

BASELINE = "cosine"  # the condition that the others are compared with
PAPER_SPACING = 1000  # steps between the paper's evenly spaced checkpoints
PAPER_LAST = 143_000  # the last of them
Column = tuple[str, Iterable]  # how values are printed, and the values


def paper_heading(suite: dict) -> str:
    """Group heading of the paper's columns; ``suite`` has the key is_paper_model."""
    warning = "" if suite["is_paper_model"] else "; not comparable"
    return f"paper ({PAPER_MODEL}{warning})"


def _phase_of(step: int, segments: Iterable[dict]) -> int | None:
    """Phase of a step; a boundary step belongs to the phase that ends there, as in the paper.

    ``None`` for a step after the end of training.
    """
    return next((part["phase"] for part in segments if step <= part["last_step"]), None)


def _nearest_shares(
    steps: np.ndarray, last: int, paper: pd.DataFrame
) -> tuple[pd.Series, pd.DataFrame]:
    """The suite's step nearest to each of the paper's shares of training, once each.

    Returns them with the rows of ``paper`` that they stand beside: of several the nearest.
    """
    steps = np.sort(steps[steps > 0])
    wanted = paper["step"] * last / PAPER_LAST
    nearest = wanted.map(lambda step: int(steps[np.argmin(np.abs(steps - step))]))
    distance = (nearest - wanted).abs()
    kept = distance.groupby(nearest).idxmin().sort_index()
    return nearest[kept].reset_index(drop=True), paper.loc[kept].reset_index(drop=True)


def audit_table(audit: pd.DataFrame, phases: dict, paper: pd.DataFrame, *, suite: dict) -> Table:
    """Table 1: the audit at the suite's equivalents of the paper's ten steps.

    ``audit`` and ``phases`` are audit.csv and phases.json of ``suite`` (keys label,
    is_paper_model, spacing in steps); ``paper`` has the columns phase, step, fp32_ppl,
    int4_gap_pct, int8_gap_pct, lr_pct. The equivalent of a step is step x spacing / 1000;
    where the suite has no such checkpoint its cells are empty, and where its revision could
    not be had they are NA. A suite without an even grid
    (key ``last``) has a row for each checkpoint that is nearest to one of the paper's
    shares of training.
    """
    names = role_labels(audit)
    low, high = names["low_bit"], names["high_bit"]
    if "last" in suite:
        steps, paper = _nearest_shares(audit["step"].unique(), suite["last"], paper)
        said = "those nearest to the paper's shares of training"
    else:
        steps = paper["step"] * suite["spacing"] // PAPER_SPACING
        said = f"the paper's step times {suite['spacing']}/{PAPER_SPACING}"
    lost = set(phases.get("missing", ()))
    by_role = {role: part.set_index("step").reindex(steps) for role, part in audit.groupby("role")}
    fp32, low_bit, high_bit = by_role["fp32"], by_role["low_bit"], by_role["high_bit"]
    measured = {
        "phase": (
            "{:.0f}",
            [None if step in lost else _phase_of(step, phases["segments"]) for step in steps],
        ),
        "step": ("{:,.0f}", steps),
        "FP32 PPL": ("{:.2f}", fp32["ppl"]),
        f"{low} gap (%)": ("{:z.1f}", low_bit["gap_pct"]),
        f"{low} gap {LOW} (%)": ("{:z.1f}", low_bit["gap_low_pct"]),
        f"{low} gap {HIGH} (%)": ("{:z.1f}", low_bit["gap_high_pct"]),
        f"{high} gap (%)": ("{:z.2f}", high_bit["gap_pct"]),
        f"{low} PPL": ("{:.2f}", low_bit["ppl"]),
        f"{low} delta NLL (nats/token)": ("{:z.4f}", low_bit["delta_nll_nats_per_token"]),
        "LR (% of max)": ("{:.1f}", 100.0 * fp32["lr_fraction"]),
    }
    printed = {
        "phase": ("{:.0f}", paper["phase"]),
        "step": ("{:,.0f}", paper["step"]),
        "FP32 PPL": ("{:.1f}", paper["fp32_ppl"]),
        "INT4 gap (%)": ("{:.1f}", paper["int4_gap_pct"]),
        "INT8 gap (%)": ("{:.2f}", paper["int8_gap_pct"]),
        "LR (% of max)": ("{:.1f}", paper["lr_pct"]),
    }
    text = (
        f"FP32 perplexity (PPL) and the relative perplexity gap of {low} and {high} at "
        f"{'ten' if len(steps) == 10 else len(steps)} steps ({said}). Intervals: 95 %, paired "
        "bootstrap over validation sequences. Phases are the suite's own."
    )
    missing = tuple(row for row, step in enumerate(steps) if step in lost)
    if lost:
        text += f" NA: the revision could not be had ({missing_words(phases)})."
    table = _side_by_side(measured, printed, suite=suite, text=text, label="tab:audit", key="step")
    return replace(table, missing=missing)


def forks_table(statistics: pd.DataFrame, paper: pd.DataFrame, *, suite: dict, low: str) -> Table:
    """Table 2: the forks' conditions, with the seed as the unit.

    ``statistics`` is statistics.csv of ``suite`` (keys label, is_paper_model); ``paper``
    has the columns condition, schedule, probes, mean_gap_pct, sd_gap_pct, fp32_ppl, wins,
    pairs. ``low`` is the printed name of the low-bit quantizer. Conditions that the suite
    did not run have empty cells.
    """
    by_seed = statistics[statistics["unit"] == "seed"]
    summary = by_seed[by_seed["test"] == "summary"].set_index(["comparison", "measure"])
    versus = by_seed[by_seed["test"] == "pairwise wins"].set_index(["comparison", "measure"])
    # A schedule without phases has all its probes in one condition of its own name.
    tested = set(summary.index.get_level_values("comparison"))
    names = [
        f"{schedule} {probes}"
        for schedule, probes in zip(paper["schedule"], paper["probes"], strict=True)
    ]
    names = [name if name in tested else name.removesuffix(" all") for name in names]

    def over_seeds(measure: str, column: str) -> pd.Series:
        return summary[column].reindex([(name, measure) for name in names])

    def won(measure: str) -> list[str | None]:
        rows = versus.reindex([(f"{name} v {BASELINE}", measure) for name in names])
        return _wins(rows["value"], rows["n_a"] * rows["n_b"])

    measured = {
        "condition": ("{}", paper["condition"]),
        "schedule": ("{}", paper["schedule"].map(SCHEDULES)),
        "probes": ("{}", paper["probes"]),
        "seeds": ("{:.0f}", over_seeds("final_gap_pct", "n_a").astype("Int64")),
        f"final {low} gap (%)": ("{:z.2f}", over_seeds("final_gap_pct", "mean_a")),
        "sd, final": ("{:.2f}", over_seeds("final_gap_pct", "sd_a")),
        "wins, final": ("{}", won("final_gap_pct")),
        f"mean {low} gap (%)": ("{:z.2f}", over_seeds("mean_gap_pct", "mean_a")),
        "sd, mean": ("{:.2f}", over_seeds("mean_gap_pct", "sd_a")),
        "wins, mean": ("{}", won("mean_gap_pct")),
        "FP32 PPL": ("{:.2f}", over_seeds("final_fp32_ppl", "mean_a")),
        f"{low} PPL": ("{:.2f}", over_seeds("final_low_bit_ppl", "mean_a")),
    }
    printed = {
        "gap (%)": ("{:.1f}", paper["mean_gap_pct"]),
        "sd": ("{:.1f}", paper["sd_gap_pct"]),
        "FP32 PPL": ("{:.1f}", paper["fp32_ppl"]),
        "wins": ("{}", _wins(paper["wins"], paper["pairs"])),
    }
    text = (
        f"relative {low} perplexity gap of the forks: mean and standard deviation (sd) over seeds "
        "of the gap at each fork's last probe (final) and of its mean over all probes (mean). "
        "Conditions with cool probes leave out probes whose last update was a bump. Perplexities "
        "are means at the last probe. Wins: pairs of seeds in which the condition has the lower "
        "gap than cosine at the same steps. The gap is relative to each fork's own FP32 model."
    )
    return _side_by_side(
        measured, printed, suite=suite, text=text, label="tab:forks", key="condition"
    )


def _wins(wins: Iterable[float], pairs: Iterable[float]) -> list[str | None]:
    return [
        None if pd.isna(won) else f"{won:.0f}/{of:.0f}" for won, of in zip(wins, pairs, strict=True)
    ]


def _side_by_side(
    measured: dict[str, Column],
    printed: dict[str, Column],
    *,
    suite: dict,
    text: str,
    label: str,
    key: str,
) -> Table:
    """Columns of the suite and of the paper, each a format and values, as one table."""
    groups = {suite["label"]: measured, paper_heading(suite): printed}
    columns, formats = {}, {}
    for group, named in groups.items():
        for heading, (pattern, values) in named.items():
            columns[group, heading] = pd.array(list(values))  # keeps integers beside gaps
            formats[group, heading] = pattern
    caption = f"{suite['label']}: {text}"
    return Table(pd.DataFrame(columns), formats, caption, label, key, suite["is_paper_model"])
