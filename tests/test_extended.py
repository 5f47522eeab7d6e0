"""What goes beyond the paper, built for the tiny suite: the target extended, and cycles.csv."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow import TINY, planned, snakemake, tiny_checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]
FIGURES = (
    "fig6_factorial",
    "fig7_layers",
    "fig9_sensitivity",
    "fig10_curvature",
    "fig11_drift",
    "fig12_activations",
    "fig13_replication",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Results of the tiny suite with everything beyond the paper; none of it belongs to all."""
    whole = tiny_checkout(tmp_path_factory)
    folder = shutil.copytree(whole, tmp_path_factory.mktemp("extended") / "tiny")
    assert not (folder / "results/tiny/mechanism").exists()
    target = ("extended", "results/tiny/cycles.csv", "--configfile", TINY)
    run = snakemake(*target, "--cores", "2", folder=folder)
    assert run.returncode == 0, run.stdout[-5000:]
    assert planned(*target, folder=folder) == {}
    return folder / "results" / "tiny"


def test_figures_and_notebook_are_there_and_the_measurements_agree_with_the_audit(built):
    for name in FIGURES:
        for suffix in ("pdf", "svg", "png"):
            assert (built / f"figures/{name}.{suffix}").stat().st_size > 1000
    page = (built / "notebooks/mechanism.html").read_text(encoding="utf-8")
    described = re.findall(r'<img[^>]*alt="([^"]*)"', page)
    assert len(described) == 8 and all(text.startswith("Figure ") for text in described)
    audit, sensitivity, drift, layers = (
        pd.read_csv(built / f"{name}.csv")
        for name in ("audit", "mechanism/sensitivity", "mechanism/drift", "mechanism/layers")
    )
    low_bit_rows = sensitivity.query("perturbation == 'low_bit' and tensor == 'all'")
    assert set(low_bit_rows["step"]) <= set(audit["step"])
    # To second order and at this size the prediction is the measurement.
    off = (low_bit_rows["predicted_nats"] - low_bit_rows["measured_nats"]).abs().max()
    assert off < 0.1 * low_bit_rows["measured_nats"].abs().max() + 1e-4
    assert list(drift["step"]) == sorted(audit["step"].unique())
    assert drift["index"].between(0.8, 1.2).all()
    assert set(layers["probe"]) == {"fp32", "all", "in", "out"}


def test_findings_have_intervals_and_the_ledger_points_to_them(built):
    findings = pd.read_csv(built / "mechanism/findings.csv")
    known = findings.dropna(subset=["low", "high"])
    assert findings["finding"].is_unique and len(known) > 40
    assert (known["low"] <= known["high"]).all()
    ledger = pd.read_csv(built / "claims_extended.csv", keep_default_na=False).set_index("id")
    for claim in ("C71", "C72", "C73", "C76", "C84"):
        assert "the bound" in ledger.loc[claim, "analogue"], ledger.loc[claim]
        assert "mechanism/findings.csv" in ledger.loc[claim, "suite_evidence"]
    # On so little text some quantizer may add no loss at all, which has no logarithm.
    factors = pd.read_csv(built / "mechanism/factors.csv")
    analysed = ((factors["response"] == "added_loss") & (factors["analysis"] == "variance")).any()
    assert bool(ledger.loc["X46", "analogue"]) == analysed
    assert not ledger.loc["C46", "analogue"], "the tiny suite has no 5 to 8 bits"
    assert "mechanism/findings.csv" in (built / "claims_extended.md").read_text(encoding="utf-8")


def test_every_phase_of_the_last_cycle_is_probed_in_both_orders(built):
    cycles = pd.read_csv(built / "cycles.csv")
    low_bit = cycles[cycles["role"] == "low_bit"]
    counts = low_bit.groupby(["schedule", "seed", "update_phase"]).size().unstack()
    assert set(counts.index) == {(f"oli-{o}first", s) for o in ("bump", "cool") for s in (0, 1)}
    assert counts["bump"].eq(1).all() and counts["cool"].eq(5).all()
    assert not cycles.duplicated(["schedule", "seed", "step", "quantizer"]).any()


def test_another_quantizer_plans_no_training_at_all(built):
    """Not pretraining, not a fork, not a rival: their weights are probed again."""
    folder = built.parents[1]
    path = folder / "workflow_scripts/flatminima/quantizers.py"
    path.write_text(path.read_text() + "\nANOTHER_NAME = 1\n")
    target = ("extended", "results/tiny/cycles.csv", "--configfile", TINY)
    jobs = planned(*target, folder=folder)
    assert jobs["probe_fork"] == 12 + 15 and jobs["average_checkpoints"] == 3
    trained = {rule for rule in jobs if rule.startswith(("train", "cool", "pretrain"))}
    assert trained == {"train_replica"}, "whose weights are temporary"
