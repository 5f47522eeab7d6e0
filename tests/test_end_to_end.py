"""The whole of a tiny suite, built for real: with one core and with two, killed on the way."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow import ROOT, TINY, copy_checkout, planned, snakemake, tiny_checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]
SCHEDULES = ("cosine", "sgdr", "oli")
LABEL = "tiny (test suite, not Pythia)"


def kill_once_a_fork_is_half_done(folder: Path) -> None:
    """Start to build with one core and take the power away while a fork trains."""
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--configfile", TINY, "--cores", "1"],
        cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    unfinished = folder / "results/tiny/unfinished/train_fork"
    started = time.monotonic()
    while not list(unfinished.glob("forks/*/state.safetensors")):
        assert process.poll() is None and time.monotonic() - started < 600
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    left = list(unfinished.glob("forks/*/state.safetensors"))
    assert len(left) == 1, "the state of the fork that was at work"
    assert not list((folder / "results/tiny/forks").glob("*.csv"))


@pytest.fixture(scope="module")
def again(tmp_path_factory) -> Path:
    """A checkout built from nothing with one core, killed once and continued."""
    folder = copy_checkout(tmp_path_factory.mktemp("again"))
    kill_once_a_fork_is_half_done(folder)
    assert snakemake("--unlock", "--configfile", TINY, folder=folder).returncode == 0
    run = snakemake("--configfile", TINY, "--cores", "1", folder=folder)
    assert run.returncode == 0, run.stdout[-5000:]
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, again) -> Path:
    """The checkout built with two cores, after the other: a worker of its own may be at it."""
    return tiny_checkout(tmp_path_factory)


def results(folder: Path) -> Path:
    return folder / "results" / "tiny"


def test_everything_of_the_design_exists(tiny):
    root = results(tiny)
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


def test_the_tables_are_whole_and_labelled(tiny):
    root = results(tiny)
    audit = pd.read_csv(root / "audit.csv")
    assert audit.groupby("step").size().eq(3).all()
    assert audit["step"].nunique() == 16
    assert audit.notna().all(axis=None)
    forks = pd.read_csv(root / "forks.csv")
    assert len(forks) == 3 * 2 * 10 * 3
    suite = pd.read_csv(root / "suite.csv")
    assert suite.loc[suite["step"] == 1, "duplicate_of"].item() == 0
    assert suite["weights_sha256"].nunique() == 15
    for name in ("tables/table1.md", "tables/table2.md", "claims.md", "figures/fig1_audit.svg"):
        assert LABEL in (root / name).read_text().replace("\n", " "), name
    assert "not comparable" in (root / "tables/table1.csv").read_text()


def test_provenance_stands_beside_what_was_measured(tiny):
    for path in sorted((results(tiny) / "probes").glob("*.json")):
        made_by = json.loads(path.read_text())
        assert made_by["dtype"] == "float32" and made_by["tf32"] is False
        assert made_by["packages"]["torch"].startswith("2.13.0")
        assert len(made_by["code"]) == 16
    training = json.loads((results(tiny) / "forks" / "oli-seed1.json").read_text())["training"]
    assert training["seed"] == 1 and training["definition"]["kind"] == "oli"
    assert len(training["weights_sha256"]) == 10


def test_one_core_and_a_kill_give_the_same_bytes(tiny, again):
    kinds = {".csv", ".md", ".tex", ".json", ".parquet", ".safetensors", ".jsonl"}
    made = [
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.suffix in kinds}
        for root in (results(again), results(tiny))
    ]
    assert made[0].keys() == made[1].keys() and len(made[0]) > 100
    assert {path.suffix for path in made[0]} == kinds
    assert [path for path in made[0] if made[0][path] != made[1][path]] == []


def test_nothing_unfinished_is_left(again, tiny):
    for folder in (again, tiny):
        left = [p for p in (results(folder) / "unfinished").rglob("*") if p.is_file()]
        assert left == []
    assert [p for p in results(tiny).rglob("*") if p.name.endswith((".tmp", ".part"))] == []


def test_every_job_left_a_log_and_a_benchmark(tiny):
    logs = {p.relative_to(tiny / "logs").with_suffix("") for p in (tiny / "logs").rglob("*.log")}
    marks = {
        p.relative_to(tiny / "benchmarks").with_suffix("")
        for p in (tiny / "benchmarks").rglob("*.tsv")
    }
    assert len(logs) > 30
    assert logs == marks
    for path in (tiny / "logs").rglob("*.log"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if "Traceback" in line or "Warning" in line], path
        if path.parent.name == "pretrain_suite":
            continue  # ends with its loss, which a training of a second does not come to say
        assert len(lines) < 40 and re.search(r"\d", lines[-1]), f"{path} ends with no number"


@pytest.mark.parametrize("target", ["probes", "kurtosis", "revisions"])
def test_a_single_step_is_a_target_with_the_rows_of_the_whole(again, target):
    path = f"results/tiny/{target}/step40.csv"
    run = snakemake("--configfile", TINY, "--cores", "1", path, folder=again)
    assert run.returncode == 0, run.stdout[-3000:]
    whole = next(
        p for p in (results(again) / target).glob("step*-step*.csv") if "\n40," in p.read_text()
    )
    rows = [line for line in whole.read_text().splitlines() if line.startswith(("step", "40,"))]
    assert (again / path).read_text().splitlines() == rows


def test_a_claim_is_a_target(again):
    path = "results/tiny/claims/C39.json"
    run = snakemake("--configfile", TINY, "--cores", "1", path, folder=again)
    assert run.returncode == 0, run.stdout[-3000:]
    claim = json.loads((again / path).read_text())
    ledger = pd.read_csv(results(again) / "claims.csv", dtype=str).set_index("id")
    assert claim["id"] == "C39" and claim["self"] == ledger.loc["C39", "self"]


def test_no_claim_about_the_papers_model_is_settled_by_the_test_suite(tiny):
    ledger = pd.read_csv(results(tiny) / "claims.csv", dtype=str, keep_default_na=False)
    printed = pd.read_csv(tiny / "results/paper/claims.csv", dtype=str, keep_default_na=False)
    assert list(ledger["id"]) == list(printed["id"])
    assert set(ledger["measured"]) == {"", "not measured"}
    for column in ("self", "sources", "design"):
        assert list(ledger[column]) == list(printed[column])


def test_a_failing_cell_fails_the_rule_and_keeps_its_traceback(again):
    path = again / "notebooks/tour.ipynb"
    notebook = json.loads(path.read_text())
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cell["source"] = [*cell["source"], "\n1 / 0"]
    path.write_text(json.dumps(notebook))
    target = "results/tiny/notebooks/tour.html"
    run = snakemake(target, "--cores", "1", "--configfile", TINY, folder=again)
    assert run.returncode != 0
    assert "ZeroDivisionError" in run.stdout
    assert not (again / target).exists()
    assert "ZeroDivisionError" in (again / "logs/tiny/render_notebook/tour.log").read_text()
    # Mended, it is rendered again, and nothing is left of the failure.
    shutil.copy2(ROOT / "notebooks/tour.ipynb", path)
    run = snakemake(target, "--cores", "1", "--configfile", TINY, folder=again)
    assert run.returncode == 0 and (again / target).is_file()
    assert planned("--configfile", TINY, folder=again) == {}


def test_every_phase_of_the_last_cycle_is_probed_in_both_orders(again):
    """Last of this file: it adds to the checkout that the tests above compare."""
    target = "results/tiny/cycles.csv"
    run = snakemake(target, "--configfile", TINY, "--cores", "2", folder=again)
    assert run.returncode == 0, run.stdout[-5000:]
    cycles = pd.read_csv(again / target)
    low_bit = cycles[cycles["role"] == "low_bit"]
    counts = low_bit.groupby(["schedule", "seed", "update_phase"]).size().unstack()
    assert set(counts.index) == {(f"oli-{o}first", s) for o in ("bump", "cool") for s in (0, 1)}
    assert counts["bump"].eq(1).all() and counts["cool"].eq(5).all()
    assert not cycles.duplicated(["schedule", "seed", "step", "quantizer"]).any()
