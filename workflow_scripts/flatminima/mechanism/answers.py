"""The findings as answers: a question, what follows from its interval, and the numbers.

An answer is ``yes`` or ``no`` only where a 95 % interval lies on one side of what it is held
against; it is ``not decided`` where it does not, or where there is no interval.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from flatminima.forks import compare
from flatminima.mechanism.figure_texts import number

COLUMNS = ["question", "answer", "because"]
UNDECIDED = "not decided"
MISALIGNED = 1.02  # as in the ledger's row C72: more than 2 % above random positions
ADDITIVE = 0.95  # sum of single losses over all together: within 5 % they add up
FITS = 0.9  # as in its row C46: R² of one sensitivity times step²

Row = tuple[str, str, str]
Known = Callable[[str], pd.Series]


def above(row: pd.Series, at: float) -> str:
    """Whether a finding lies above ``at``: yes, no or not decided, by its interval."""
    if row["low"] > at:
        return "yes"
    return "no" if row["high"] < at else UNDECIDED


def noise_share(row: pd.Series, noise: pd.Series) -> str:
    """Share of the growth of noise times sensitivity (``row``) that is noise, in logarithms.

    Empty where one of the two does not grow: shares mean nothing there.
    """
    if not (noise["value"] > 1 and row["low"] > 1):
        return ""
    ends = row[["value", "low", "high"]].astype(float)
    part = 100 * np.log(noise["value"]) / np.log(noise["value"] * ends)
    return f"; noise is {part['value']:.0f} % [{part['high']:.0f}, {part['low']:.0f}] of it"


def _growth(known: Known, prefix: str) -> Row:
    cost, noise, relative, sensitivity = (
        known(f"{prefix}{name}_growth")
        for name in ("cost", "noise", "relative_noise", "sensitivity")
    )
    grows = [name for name, row in (("noise", noise), ("sensitivity", sensitivity))
             if above(row, 1.0) == "yes"]  # fmt: skip
    return (
        f"Which factor grows {cost['about']}?",
        " and ".join(grows) or UNDECIDED,
        f"added loss × {number(cost)}, noise × {number(noise)} (relative to the weights "
        f"× {number(relative)}), sensitivity × {number(sensitivity)}"
        f"{noise_share(sensitivity, noise)}",
    )


def _rows(known: Known) -> Iterator[Callable[[], Row]]:
    yield lambda: _growth(known, "run_")
    yield lambda: _growth(known, "")
    ratio = "predicted_over_measured"
    yield lambda: (
        "Is the added loss more than 90 % explained by gradient and curvature?",
        above(known(ratio), 0.9),
        f"prediction over measurement {number(known(ratio))}",
    )
    worst = "misalignment_largest"
    yield lambda: (
        "Do weights drift to places that fit the grid worse than random ones?",
        above(known("misalignment_last"), MISALIGNED),
        f"misalignment index {number(known('misalignment_last'))} at the end, at its largest "
        f"{number(known(worst))} (1: random, 3: all at midpoints); random positions in the same "
        f"cells cost {number(known('dither_over_rounding'))} times as much",
    )
    fit = "prediction_added_loss_all_layer_sets_r2"
    yield lambda: (
        "Does one sensitivity times step² predict every number of bits, 4 included?",
        above(known(fit), FITS),
        f"R² {number(known(fit))} over {known(fit)['n']:.0f} cells; bits carry "
        f"{number(known('variance_added_loss_bits_share'))} of the variance, granularity "
        f"{number(known('variance_added_loss_granularity_share'))}, symmetry "
        f"{number(known('variance_added_loss_symmetry_share'))}",
    )
    yield lambda: (
        "Do errors in different matrices compound (their sum more than 5 % below all together)?",
        {"yes": "no", "no": "yes"}.get(above(known("layers_sum_over_all"), ADDITIVE), UNDECIDED),
        f"sum over all {number(known('layers_sum_over_all'))}; worst alone "
        f"{known('layers_worst_alone_nats')['about']}, "
        f"{number(known('layers_worst_alone_nats'))} nats/token",
    )
    yield lambda: (
        "Does the minimum get sharper after FP32 convergence?",
        above(known("trace_growth"), 1.0),
        f"trace × {number(known('trace_growth'))}, largest eigenvalue × "
        f"{number(known('top_eigenvalue_growth'))}; rank correlation of the trace with the "
        f"added loss {number(known('trace_rank_r'))} (neighbours depend on each other)",
    )
    yield lambda: (
        "Do activation outliers rise with the added loss?",
        above(known("activation_kurtosis_rank_r"), 0.0),
        f"rank correlation {number(known('activation_kurtosis_rank_r'))}; rounding weights costs "
        f"{number(known('added_loss_W_last'))}, activations {number(known('added_loss_A_last'))}, "
        f"both {number(known('added_loss_WA_last'))} nats/token at the end",
    )
    change = "replica_slope_change"
    yield lambda: (
        "Over widths and seeds, does growth speed up at each run's own FP32 minimum?",
        above(known(change), 0.0),
        f"change of growth {number(known(change))} nats/token in 1,000 steps over "
        f"{known(change)['n']:.0f} runs; faster in "
        f"{known('replicas_faster_after_minimum')['value']:.0f} by their own interval; the rule "
        f"finds an onset in {known('replicas_with_onset')['value']:.0f}",
    )


def answers(findings: pd.DataFrame) -> pd.DataFrame:
    """One row per question that the findings can speak to (columns ``COLUMNS``)."""
    table = findings.set_index("finding")
    found = []
    for make in _rows(lambda name: table.loc[name]):
        try:
            found.append(make())
        except KeyError:  # a measurement that the suite does not make
            continue
    return pd.DataFrame(found, columns=COLUMNS)


def rival_answer(rivals: pd.DataFrame) -> str:
    """Which condition ends best, by absolute low-bit perplexity and by relative gap."""
    table = compare(rivals)
    table = table[table["update_phase"] != "bump"]
    means = table.groupby("schedule")[["fp32_ppl", "low_bit_ppl", "gap_pct"]].mean()
    best, narrow = means["low_bit_ppl"].idxmin(), means["gap_pct"].idxmin()
    parts = [
        f"{what}: `{name}` (low-bit {means.loc[name, 'low_bit_ppl']:.2f}, FP32 "
        f"{means.loc[name, 'fp32_ppl']:.2f}, gap {means.loc[name, 'gap_pct']:.1f} %)"
        for what, name in (("Lowest low-bit perplexity", best), ("smallest gap", narrow))
    ]
    same = "The two criteria agree." if best == narrow else "The two criteria do not agree."
    return f"{'; '.join(parts)}. {same} Means over seeds, of {len(means)} conditions."
