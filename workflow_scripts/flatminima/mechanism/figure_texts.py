"""The figures of this package in words, and single findings as readers see them."""

from collections.abc import Mapping, Sequence

import pandas as pd

SHOWS = {
    "factorial": "the loss that rounding adds by bits, symmetry and granularity; the share of each "
    "in its variance; all cells against one sensitivity times the squared step",
    "layers": "heat maps of matrices by training steps: the loss that a matrix adds alone, and the "
    "loss that leaving it out removes; below, the sum against all together",
    "sensitivity": "the measured loss against its second-order prediction; the growth of noise and "
    "of sensitivity; the cost of rounding against two random noises",
    "curvature": "trace and largest eigenvalue of the Hessian over training, and the loss that "
    "rounding adds against the trace",
    "drift": "the misalignment index with its distribution over groups; codes that flip between "
    "checkpoints and in single phases; distances against those of a random walk",
    "activations": "kurtosis of hidden states and of weights; the loss that rounding weights, "
    "activations and both adds; mean cosines of head, embedding and last state",
    "rivals": "every condition of the forks by its FP32 and its low-bit perplexity at the end, "
    "with lines of equal relative gap and a list ranked by low-bit perplexity",
    "replication": "small runs of several widths and seeds by their distance to their own FP32 "
    "minimum, and the growth of the loss before and after it",
}


def number(row: pd.Series) -> str:
    """A finding with its interval to three significant digits."""
    value = f"{row['value']:.3g}"
    if pd.isna(row["low"]) or row["low"] == row["high"]:
        return value
    return f"{value} [{row['low']:.3g}, {row['high']:.3g}]"


def text(name: str, findings: pd.DataFrame, shown: Sequence[str], *, suite: Mapping) -> str:
    """What figure ``name`` shows and the findings ``shown`` in it, in one paragraph."""
    known = findings.set_index("finding")
    parts = [f"{one.replace('_', ' ')} {number(known.loc[one])}" for one in shown if one in
             known.index]  # fmt: skip
    ending = f" {'; '.join(parts)}." if parts else ""
    return f"{suite['label']}: {SHOWS[name]}.{ending}"


def table(findings: pd.DataFrame, wanted: Mapping[str, str]) -> pd.DataFrame:
    """The findings named in ``wanted`` (by the question they answer), as cells of Markdown.

    The bars of |Δ|² are escaped: they would end a cell.
    """
    rows = findings[findings["finding"].isin(list(wanted))].set_index("finding")
    rows = rows.reindex([name for name in wanted if name in rows.index])
    return pd.DataFrame(
        {
            "question": [wanted[name].replace("|", "\\|") for name in rows.index],
            "value [95 % interval]": [number(row) for _, row in rows.iterrows()],
            "n": [f"{count:.0f}" for count in rows["n"]],
            "unit": rows["unit"].to_numpy(),
            "where": rows["about"].to_numpy(),
        }
    )
