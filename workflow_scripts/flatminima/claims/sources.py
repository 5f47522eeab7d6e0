"""Claims that other people's work decides: definitions, literature, published results."""

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.claims.model import Claim, Finding, Measurements, printed


def int8_codes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric 8-bit codes of each row, and the row's scale (largest value on 127)."""
    scale = np.abs(rows).max(axis=1, keepdims=True) / 127
    return np.rint(rows / scale), scale


@printed("C28", "X23")
def llm_int8(m: Measurements, claim: Claim) -> Finding:
    """One product by the weight-only probe and by LLM.int8(), on a seeded example.

    LLM.int8() also rounds the activations, except for features that go beyond a
    threshold, which stay in 16 bits.
    """
    rng = np.random.default_rng(0)
    weight, activations = rng.normal(0, 0.02, (32, 64)), rng.normal(0, 1, (16, 64))
    activations[:, 7] *= 30
    codes, scale = int8_codes(weight)
    probe = activations @ (codes * scale).T
    outlier = np.abs(activations).max(axis=0) > claim.reference["activation_threshold"]
    kept = activations[:, outlier] @ (codes * scale)[:, outlier].T
    inputs, input_scale = int8_codes(activations[:, ~outlier])
    other = kept + (inputs @ codes[:, ~outlier].T) * input_scale * scale.T
    apart = float(np.abs(other - probe).max() / np.abs(probe).max())
    return Finding(
        f"same weight codes; outputs apart by up to {100 * apart:.2g} % of the largest",
        apart < 1e-12,
        "activations are rounded as well, except where a feature goes beyond the threshold",
        against="source",
    )


@printed("C53", "X25")
def osp_kurtosis(m: Measurements, claim: Claim) -> Finding:
    """Centred excess kurtosis of weights against the measure of outlier-safe pre-training.

    That one is taken of activations, token by token: fourth moment about zero over the
    squared variance, minus 3, values below 0 set to 0. A uniform sample off zero tells
    them apart.
    """
    sample = np.random.default_rng(0).uniform(0, 1, 100_000)
    centred = float(stats.kurtosis(sample))
    osp = max(0.0, float((sample**4).mean() / sample.std() ** 4 - 3))
    return Finding(
        f"{centred:.2f} and {osp:.2f} on the same uniform sample",
        bool(np.isclose(centred, osp)),
        "theirs is of activations, the paper's of weights",
        against="source",
    )


@printed("X24")
def deployed_groups(m: Measurements, claim: Claim) -> Finding:
    """Group size of the probe against the block of the deployed formats."""
    own, theirs = claim.paper["group_size"], claim.reference["group_size"]
    return Finding(f"{own} against {theirs}", own == theirs, against="source")


@printed("X26")
def qbert(m: Measurements, claim: Claim) -> Finding:
    """Name in the text against the title in the list."""
    cited, listed = claim.paper["cited"], claim.paper["listed"]
    return Finding(f"{cited} in the text, {listed} in the list", cited == listed)


@printed("X27")
def int8_levels(m: Measurements, claim: Claim) -> Finding:
    """Codes of symmetric INT8 and the weights that share one of its scales."""
    levels = 2 * 127 + 1
    groups = [width // claim.paper["group_size"] for width in m.pythia["input_widths"]]
    return Finding(
        f"{levels} levels, shared by {groups[0]} or {groups[1]} groups (one scale per output "
        "channel, appendix A)",
        levels == claim.paper["levels"] and set(groups) == {1},
    )


@printed("X28")
def trailing_window(m: Measurements, claim: Claim) -> Finding:
    """Checkpoints from the end back to Phase 2, against the window of the method."""
    needed = (claim.paper["last"] - claim.paper["phase_3"]) // m.pythia["spacing"] + 1
    return Finding(
        f"{needed} checkpoints back to Phase 2, {claim.reference['window']} averaged",
        needed <= claim.reference["window"],
        against="source",
    )


@printed("C76", "X32")
def curvature_measured(m: Measurements, claim: Claim) -> Finding:
    """Columns of the printed tables that hold a curvature."""
    names = [*m.table1.columns, *m.table2.columns]
    found = [n for n in names if any(w in n for w in ("curv", "hess", "sharp", "flat", "eigen"))]
    holds = bool(found) if claim.id == "X32" else None
    return Finding(f"{len(found)} of {len(names)} columns", holds)


@printed("X31")
def addresses(m: Measurements, claim: Claim) -> Finding:
    """Addresses of a repository in the paper."""
    return Finding(f"{claim.paper['addresses']} addresses", None)


@printed("C79", "X33")
def earlier_works(m: Measurements, claim: Claim) -> Finding:
    """Works on the subject from before the paper's year."""
    earlier = [w for w in m.ledger.prior_work if w["year"] < m.ledger.paper_year]
    cited = sum(w["cited"] for w in earlier)
    names = "; ".join(f"{w['work']} (arXiv {w['arxiv']})" for w in earlier)
    return Finding(
        f"{len(earlier)} earlier works, {cited} of them in its own list",
        not earlier,
        names,
        against="source",
    )


def lambada(m: Measurements, model: str) -> pd.Series:
    """Published LAMBADA perplexity of a model by step."""
    rows = m.lambada[m.lambada["model"] == model]
    return rows.set_index("step")["lambada_openai_ppl"].sort_index()


@printed("L01")
def best_published(m: Measurements, claim: Claim) -> Finding:
    """Best published step and the interval between its neighbours."""
    curve = lambada(m, claim.paper["model"])
    best, steps = int(curve.idxmin()), list(curve.index)
    at = steps.index(best)
    low, high = steps[max(0, at - 1)], steps[min(len(steps) - 1, at + 1)]
    return Finding(
        f"{curve.min():.2f} at step {best:,}, evaluated also at {low:,} and {high:,}",
        low < claim.paper["step"] < high,
        against="source",
    )


@printed("L02")
def published_rise(m: Measurements, claim: Claim) -> Finding:
    """Rise of the published perplexity from its best to its last step."""
    curve = lambada(m, claim.paper["model"])
    rise = 100 * (curve.iloc[-1] / curve.min() - 1)
    return Finding(
        f"{curve.min():.2f} at step {curve.idxmin():,} to {curve.iloc[-1]:.2f} at "
        f"{curve.index[-1]:,} is {rise:+.0f} % (worst after the best: "
        f"{curve.loc[curve.idxmin() :].max():.2f})",
        bool(rise < claim.tolerance["below"]),
        against="source",
    )


@printed("L03")
def larger_model(m: Measurements, claim: Claim) -> Finding:
    """Is the larger model best late, and close to its best at the end?"""
    curve = lambada(m, claim.paper["model"])
    rise = 100 * (curve.iloc[-1] / curve.min() - 1)
    return Finding(
        f"{curve.min():.2f} at step {curve.idxmin():,}, {curve.iloc[-1]:.2f} at the end "
        f"({rise:+.1f} %)",
        bool(curve.idxmin() > claim.paper["late_step"] and rise < claim.tolerance["below"]),
        against="source",
    )
