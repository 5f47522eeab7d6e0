"""The number that matters of each table of the mechanism, in one line: how a job's log ends.

Each function takes the table (a CSV of the same name) that was written or drawn.
"""

import pandas as pd

from flatminima.labels import quantizer_label
from flatminima.quantizer_specs import LOW_BIT


def last_step(table: pd.DataFrame) -> tuple[int, pd.DataFrame]:
    """The last step of a table and its rows."""
    step = int(table["step"].max())
    return step, table[table["step"] == step]


def rows(table: pd.DataFrame) -> str:
    """How much was gathered."""
    return f"{len(table)} rows of {table['step'].nunique()} steps to {table['step'].max():,}"


def factors(table: pd.DataFrame) -> str:
    """Shares of the three factors in the variance of the added loss, at the last step."""
    asked = (table["response"] == "added_loss") & (table["analysis"] == "variance")
    if not asked.any():
        return "too few quantizers to divide the variance of the added loss"
    step, last = last_step(table[asked])
    shares = last.set_index("term")["value"]
    found = ", ".join(
        f"{term} {100 * shares[term]:.0f} %" for term in ("bits", "symmetry", "granularity")
    )
    return f"variance of the added loss at step {step:,}: {found}"


def sensitivity(table: pd.DataFrame, low: str) -> str:
    """Measured and predicted loss of the low-bit quantizer called ``low``, at the last step."""
    step, last = last_step(table[table["tensor"] == "all"])
    row = last[last["perturbation"] == LOW_BIT].iloc[0]
    return (
        f"loss {quantizer_label(low)} adds at step {step:,}: "
        f"{row['measured_nats']:.4f} nats/token measured, "
        f"{row['predicted_nats']:.4f} predicted"
    )


def curvature(table: pd.DataFrame) -> str:
    """Trace of the Hessian at the first and the last step."""
    first, last = table.loc[table["step"].idxmin()], table.loc[table["step"].idxmax()]
    return (
        f"trace of the Hessian {first['trace']:.1f} at step {int(first['step']):,}, "
        f"{last['trace']:.1f} at step {int(last['step']):,}"
    )


def drift(table: pd.DataFrame) -> str:
    """Misalignment index at the last step."""
    last = table.loc[table["step"].idxmax()]
    return (
        f"misalignment index {last['index']:.3f} at step {int(last['step']):,} "
        "(1: weights lie anywhere between the points of the grid)"
    )


def activations(table: pd.DataFrame) -> str:
    """Loss added by rounding weights, activations and both, at the last step."""
    step, last = last_step(table[table["measure"] == "added_loss"])
    loss = last.set_index("name")["value"]
    found = ", ".join(f"{name} {loss[name]:.4f}" for name in ("W", "A", "W+A"))
    return f"added loss at step {step:,} in nats/token: {found}"


def replication(comparison: pd.DataFrame) -> str:
    """In how many runs an onset was found, and the gaps they end with."""
    gaps = comparison["gap_last_pct"]
    return (
        f"onset found in {comparison['onset_step'].notna().sum()} of {len(comparison)} runs; "
        f"final gaps {gaps.min():.1f} to {gaps.max():.1f} %"
    )
