"""The whole of a tiny suite, built for real; test_kills.py kills such runs and compares."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow import ROOT, TINY, planned, snakemake, tiny_checkout

pytestmark = pytest.mark.workflow
SCHEDULES = ("cosine", "sgdr", "oli")
LABEL = "tiny (test suite, not Pythia)"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """The checkout in which everything was built; only read here."""
    return tiny_checkout(tmp_path_factory)


@pytest.fixture(scope="module")
def root(tiny) -> Path:
    return tiny / "results" / "tiny"


@pytest.fixture(scope="module")
def again(tmp_path_factory, tiny) -> Path:
    """A copy in which more is built."""
    return shutil.copytree(tiny, tmp_path_factory.mktemp("again") / "tiny")


def test_everything_of_the_design_exists(root):
    wanted = [
        "data/validation.safetensors", "data/validation.json", "data/train.safetensors",
        "data/train.json", "data/tokenizer.json", "checkpoints/step0/model.safetensors",
        "checkpoints/step120/config.json", "suite.csv", "audit.csv", "audit_sequences.parquet",
        "kurtosis.csv", "phases.json", "forks.csv", "statistics.csv", "claims.csv", "claims.md",
        "claims.html",
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


def test_the_tables_are_whole_and_labelled(root):
    audit = pd.read_csv(root / "audit.csv")
    assert audit.groupby("step").size().eq(3).all()
    assert audit["step"].nunique() == 16
    assert audit.notna().all(axis=None)
    assert len(pd.read_csv(root / "forks.csv")) == 3 * 2 * 10 * 3
    suite = pd.read_csv(root / "suite.csv")
    assert suite.loc[suite["step"] == 1, "duplicate_of"].item() == 0
    assert suite["weights_sha256"].nunique() == 15
    for name in ("tables/table1.md", "tables/table2.md", "claims.md", "figures/fig1_audit.svg"):
        assert LABEL in (root / name).read_text().replace("\n", " "), name
    assert "not comparable" in (root / "tables/table1.csv").read_text()


def test_provenance_stands_beside_what_was_measured(root):
    for path in sorted((root / "probes").glob("*.json")):
        made_by = json.loads(path.read_text())
        assert made_by["dtype"] == "float32" and made_by["tf32"] is False
        assert made_by["packages"]["torch"].startswith("2.13.0")
        assert len(made_by["code"]) == 16
    training = json.loads((root / "forks" / "oli-seed1.json").read_text())["training"]
    assert training["seed"] == 1 and training["definition"]["kind"] == "oli"
    assert len(training["weights_sha256"]) == 10


def test_every_job_left_a_log_and_a_benchmark(tiny):
    logs, marks = (
        {p.relative_to(tiny / top).with_suffix("") for p in (tiny / top).rglob(f"*.{suffix}")}
        for top, suffix in (("logs", "log"), ("benchmarks", "tsv"))
    )
    assert len(logs) > 30 and logs == marks
    for path in (tiny / "logs").rglob("*.log"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if "Traceback" in line or "Warning" in line], path
        assert len(lines) < 40, path


def test_no_claim_about_the_papers_model_is_settled_by_the_test_suite(tiny, root):
    ledger = pd.read_csv(root / "claims.csv", dtype=str, keep_default_na=False)
    printed = pd.read_csv(tiny / "results/paper/claims.csv", dtype=str, keep_default_na=False)
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


def test_a_failing_cell_fails_the_rule_and_keeps_its_traceback(again):
    path, target = again / "notebooks/tour.ipynb", "results/tiny/notebooks/tour.html"
    notebook = json.loads(path.read_text())
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["source"] = [*cell["source"], "\n1 / 0"]
    path.write_text(json.dumps(notebook))
    run = snakemake(target, "--cores", "1", "--configfile", TINY, folder=again)
    assert run.returncode != 0 and "ZeroDivisionError" in run.stdout
    assert not (again / target).exists()
    assert "ZeroDivisionError" in (again / "logs/tiny/render_notebook/tour.log").read_text()
    # Mended, it is rendered again, and nothing is left of the failure.
    shutil.copy2(ROOT / "notebooks/tour.ipynb", path)
    run = snakemake(target, "--cores", "1", "--configfile", TINY, folder=again)
    assert run.returncode == 0 and (again / target).is_file()
    assert planned("--configfile", TINY, folder=again) == {}
