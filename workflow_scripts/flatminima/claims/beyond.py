"""The same claims by what was measured beyond the paper (mechanism/findings.csv)."""

import pandas as pd

from flatminima.claims.model import Claim, Finding, Measurements, NotMeasured, measured


def number(row: pd.Series, digits: int = 2, *, percent: bool = False) -> str:
    """A finding with its interval, ``0.82 [0.80, 0.82]``."""
    scale, unit = (100, " %") if percent else (1, "")
    value, low, high = (scale * row[name] for name in ("value", "low", "high"))
    if pd.isna(low):
        return f"{value:.{digits}f}{unit}"
    return f"{value:.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]"


@measured("C46")
def factors_apart(m: Measurements, claim: Claim) -> Finding:
    """Shares of bits, symmetry and granularity, and the one line through all cells."""
    shares = [
        f"{name} {number(m.finding(f'variance_added_loss_{name}_share'), 0, percent=True)}"
        for name in ("bits", "symmetry", "granularity")
    ]
    fit = m.finding("prediction_added_loss_papers_layers_r2")
    factor = m.finding("prediction_added_loss_papers_layers_factor")
    return Finding(
        f"{', '.join(shares)} of the variance; one sensitivity times step²: R² {number(fit)} over "
        f"{fit['n']} cells, off by a factor of {number(factor, 1)}",
        bool(fit["high"] < claim.tolerance["below"]),
        "fewer bits cost as much as their wider step predicts; 4 is no special number",
    )


@measured("C71")
def flips_by_phase(m: Measurements, claim: Claim) -> Finding:
    """Codes that one bump and one cool phase change, and the baseline over the same updates."""
    rows = {
        f"{arm} {phase}": m.finding(f"{arm}_{phase}_flips")
        for arm in ("oli", "baseline")
        for phase in ("bump", "cool")
    }
    text = ", ".join(f"{name} {number(row, 1, percent=True)}" for name, row in rows.items())
    bump = rows["oli bump"]
    return Finding(
        f"codes changed: {text}",
        bool(bump["low"] > 0),
        "every phase changes codes, the baseline's as well",
    )


@measured("C72")
def positions(m: Measurements, claim: Claim) -> Finding:
    """The misalignment index at the end and at its largest."""
    last, largest = m.finding("misalignment_last"), m.finding("misalignment_largest")
    near = m.finding("near_midpoint_last")
    return Finding(
        f"index {number(last, 3)} at the end, largest of all checkpoints {number(largest, 3)}; "
        f"{100 * near['value']:.1f} % of the weights lie in the outer fifth of their cell",
        bool(last["low"] > claim.tolerance["above"]),
        "1: positions as good as random; 3: all at midpoints",
    )


@measured("C73")
def walk(m: Measurements, claim: Claim) -> Finding:
    """Angle of successive moves and growth of the distance since the best step."""
    cosine, exponent = m.finding("move_cosine"), m.finding("walk_exponent")
    random = [row["low"] <= at <= row["high"] for row, at in ((cosine, 0.0), (exponent, 0.5))]
    return Finding(
        f"cosine {number(cosine)}, exponent {number(exponent)} over {cosine['n']:.0f} moves",
        all(random),
        "below 0 and below 1/2 weights turn back",
    )


@measured("C76")
def curvature(m: Measurements, claim: Claim) -> Finding:
    """Growth of trace and largest eigenvalue beside that of the added loss."""
    trace, top = m.finding("trace_growth"), m.finding("top_eigenvalue_growth")
    cost = m.finding("cost_growth")
    return Finding(
        f"trace × {number(trace)}, largest eigenvalue × {number(top)} ({trace['about']}); "
        f"added loss × {number(cost)} ({cost['about']})",
        bool(trace["high"] <= 1.0),
        "a minimum that grows sharper explains the loss without the grid",
    )


@measured("C75")
def averages(m: Measurements, claim: Claim) -> Finding:
    """INT4 gap and perplexity of every average of the run's own checkpoints."""
    rows = m.rivals[(m.rivals["group"] == "average") & (m.rivals["role"] == "low_bit")]
    if rows.empty:
        raise NotMeasured("averages in rivals.csv")
    text = [
        f"{row.schedule} {row.gap_pct:.1f} % [{row.gap_low_pct:.1f}, {row.gap_high_pct:.1f}], "
        f"perplexity {row.ppl:.2f}"
        for row in rows.itertuples()
    ]
    return Finding(
        "; ".join(text),
        None,
        "windows that stay late in the run hold no early Phase 2 weights: what they gain has "
        "another reason",
    )
