"""The whole of a tiny suite, built for real; test_kills.py kills such runs and compares."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow import TINY, snakemake, tiny_checkout

pytestmark = pytest.mark.workflow
SCHEDULES = ("cosine", "sgdr", "oli")
LABEL = "tiny (test suite, not Pythia)"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """The checkout in which everything was built; only read here."""
    return tiny_checkout(tmp_path_factory)


@pytest.fixture(scope="module")
def again(tmp_path_factory, tiny) -> Path:
    """A copy in which more is built."""
    return shutil.copytree(tiny, tmp_path_factory.mktemp("again") / "tiny")


def test_everything_of_the_design_exists_and_nothing_else(tiny):
    root = tiny / "results/tiny"
    wanted = [
        *(f"data/{s}.{x}" for s in ("validation", "train") for x in ("safetensors", "json")),
        *("data/tokenizer.json", "checkpoints/step0/model.safetensors"),
        *("checkpoints/step120/config.json", "audit_sequences.parquet", "phases.json"),
        *(f"{n}.csv" for n in ("suite", "audit", "kurtosis", "forks", "statistics")),
        *(f"claims.{x}" for x in ("csv", "md", "html")),
        *(f"forks/{s}-seed{n}.{x}" for s in SCHEDULES for n in (0, 1) for x in ("csv", "json")),
        *(f"forks/losses/{s}-seed{n}.csv" for s in SCHEDULES for n in (0, 1)),
        *(f"tables/table{n}.{x}" for n in (1, 2) for x in ("csv", "md", "tex")),
        *(f"figures/{f}.{x}" for x in ("pdf", "svg", "png")
          for f in ("fig1_audit", "fig2_kurtosis", "fig3_forks", "fig14_scaling_law")),
        *(f"notebooks/{n}.html" for n in ("tour", "audit", "kurtosis", "forks")),
    ]  # fmt: skip
    assert [name for name in wanted if not (root / name).is_file()] == []
    assert [p for p in (root / "unfinished").rglob("*") if p.is_file()] == []
    assert [p for p in root.rglob("*") if p.name.endswith((".tmp", ".part"))] == []
    # Every job left a log without a traceback, and a benchmark.
    logs, marks = (
        {p.relative_to(tiny / top).with_suffix("") for p in (tiny / top).rglob(f"*.{suffix}")}
        for top, suffix in (("logs", "log"), ("benchmarks", "tsv"))
    )
    assert len(logs) > 30 and logs == marks
    for path in (tiny / "logs").rglob("*.log"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if "Traceback" in line or "Warning" in line], path
        assert len(lines) < 40, path


def test_the_tables_are_whole_and_labelled_and_say_what_made_them(tiny):
    root = tiny / "results/tiny"
    audit, suite = pd.read_csv(root / "audit.csv"), pd.read_csv(root / "suite.csv")
    assert audit.groupby("step").size().eq(3).all() and audit["step"].nunique() == 16
    assert audit.notna().all(axis=None)
    assert len(pd.read_csv(root / "forks.csv")) == 3 * 2 * 10 * 3
    assert suite.loc[suite["step"] == 1, "duplicate_of"].item() == 0
    assert suite["weights_sha256"].nunique() == 15
    for name in ("tables/table1.md", "tables/table2.md", "claims.md", "figures/fig1_audit.svg"):
        assert LABEL in (root / name).read_text().replace("\n", " "), name
    assert "not comparable" in (root / "tables/table1.csv").read_text()
    for path in sorted((root / "probes").glob("*.json")):
        made_by = json.loads(path.read_text())
        assert made_by["dtype"] == "float32" and made_by["tf32"] is False
        assert made_by["packages"]["torch"].startswith("2.13.0")
        assert len(made_by["code"]) == 16
    training = json.loads((root / "forks" / "oli-seed1.json").read_text())["training"]
    assert training["seed"] == 1 and training["definition"]["kind"] == "oli"
    assert len(training["weights_sha256"]) == 10
    # No claim about the paper's model is settled by the test suite.
    ledger, printed = (
        pd.read_csv(tiny / f"results/{name}/claims.csv", dtype=str, keep_default_na=False)
        for name in ("tiny", "paper")
    )
    assert set(ledger["measured"]) == {"", "not measured"}
    for column in ("id", "self", "sources", "design"):
        assert list(ledger[column]) == list(printed[column])


def test_a_single_step_and_a_claim_are_targets_with_the_rows_of_the_whole(again):
    root = again / "results/tiny"
    steps = {target: root / target / "step40.csv" for target in ("probes", "kurtosis", "revisions")}
    claim = root / "claims/C39.json"
    targets = [str(path.relative_to(again)) for path in (*steps.values(), claim)]
    run = snakemake("--configfile", TINY, "--cores", "2", "--", *targets, folder=again)
    assert run.returncode == 0, run.stdout[-3000:]
    for target, path in steps.items():
        series = (p.read_text() for p in (root / target).glob("step*-step*.csv"))
        whole = next(text for text in series if "\n40," in text).splitlines()
        rows = [line for line in whole if line.startswith(("step", "40,"))]
        assert path.read_text().splitlines() == rows
    found = json.loads(claim.read_text())
    ledger = pd.read_csv(root / "claims.csv", dtype=str).set_index("id")
    assert found["id"] == "C39" and found["self"] == ledger.loc["C39", "self"]
