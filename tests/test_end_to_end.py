"""The whole of a tiny suite, built for real; and what makes parts of it run again."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow import TINY, copy_checkout, planned, snakemake

# One worker builds the suite once for all tests of this file.
pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("tiny")]
SCHEDULES = ("cosine", "sgdr", "oli")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A checkout in which everything of the tiny suite has been built with two cores."""
    folder = copy_checkout(tmp_path_factory.mktemp("tiny"))
    run = snakemake("--cores", "2", "--configfile", TINY, folder=folder)
    assert run.returncode == 0, run.stdout[-5000:]
    return folder


def plan(folder: Path, *arguments: str) -> dict[str, int]:
    return planned("--configfile", TINY, *arguments, folder=folder)


def results(folder: Path) -> Path:
    return folder / "results" / "tiny"


def test_everything_of_the_design_exists(tiny):
    root = results(tiny)
    wanted = [
        "data/validation.safetensors", "data/validation.json", "data/train.safetensors",
        "data/train.json", "data/tokenizer.json", "checkpoints/step0/model.safetensors",
        "checkpoints/step120/config.json", "suite.csv", "audit.csv", "audit_sequences.parquet",
        "kurtosis.csv", "phases.json", "forks.csv", "statistics.csv", "claims.csv", "claims.md",
        *(f"forks/{s}-seed{n}.{x}" for s in SCHEDULES for n in (0, 1) for x in ("csv", "json")),
        *(f"tables/table{n}.{x}" for n in (1, 2) for x in ("csv", "md", "tex")),
        *(f"figures/{f}.{x}" for f in ("fig1_audit", "fig2_kurtosis", "fig3_forks")
          for x in ("pdf", "svg", "png")),
        *(f"notebooks/{n}.html" for n in ("tour", "audit", "kurtosis", "forks")),
    ]  # fmt: skip
    missing = [name for name in wanted if not (root / name).is_file()]
    assert not missing
    assert not (root / "unfinished").exists() or not list((root / "unfinished").rglob("*.*"))


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
    label = "tiny (test suite, not Pythia)"
    for name in ("tables/table1.md", "tables/table2.md", "claims.md", "figures/fig1_audit.svg"):
        assert label in (root / name).read_text().replace("\n", " "), name
    assert "not comparable" in (root / "tables/table1.csv").read_text()


def test_provenance_stands_beside_what_was_measured(tiny):
    for path in sorted((results(tiny) / "probes").glob("*.json")):
        made_by = json.loads(path.read_text())
        assert made_by["dtype"] == "float32" and made_by["tf32"] is False
        assert made_by["packages"]["torch"].startswith("2.13.0")
        assert len(made_by["code"]) == 16
    fork = json.loads((results(tiny) / "forks" / "oli-seed1.json").read_text())
    assert fork["seed"] == 1 and fork["definition"]["kind"] == "oli"


def test_one_core_gives_the_same_bytes(tiny, tmp_path):
    again = copy_checkout(tmp_path / "again")
    targets = ["results/tiny/statistics.csv", "results/tiny/suite.csv", "results/tiny/claims.csv"]
    run = snakemake(*targets, "--cores", "1", "--configfile", TINY, folder=again)
    assert run.returncode == 0, run.stdout[-5000:]
    compared = 0
    for path in sorted(results(again).rglob("*.csv")):
        other = results(tiny) / path.relative_to(results(again))
        assert path.read_bytes() == other.read_bytes(), path.name
        compared += 1
    assert compared >= 20


def test_asking_again_does_nothing(tiny):
    run = snakemake("--cores", "2", "--configfile", TINY, folder=tiny)
    assert "Nothing to be done" in run.stdout


def test_touching_everything_reruns_nothing(tiny):
    time.sleep(1.1)  # newer by more than a file system's time stamps can blur
    for path in sorted(tiny.rglob("*")):
        if path.is_file() and ".snakemake" not in path.parts:
            os.utime(path)
    assert plan(tiny) == {}


@pytest.fixture
def edited(tiny):
    """Edit a file of the checkout for one test: ``edited(path, old, new)``."""
    saved = {}

    def edit(name: str, change) -> None:
        path = tiny / name
        saved.setdefault(path, path.read_text())
        path.write_text(change(path.read_text()))

    yield edit
    for path, text in saved.items():
        path.write_text(text)


@pytest.mark.parametrize("module", ["plotting", "quantizers", "training", "suite"])
def test_a_comment_reruns_nothing(tiny, edited, module):
    edited(f"workflow_scripts/lib/{module}.py", lambda text: text + "\n# A new comment.\n")
    assert plan(tiny) == {}


def test_a_change_of_the_quantizer_reruns_probes_and_not_training(tiny, edited):
    edited(
        "workflow_scripts/lib/quantizers.py",
        lambda text: text + "\nLARGEST_CODE = 255\n",
    )
    jobs = plan(tiny)
    assert jobs["probe_checkpoints"] == 2 and jobs["train_fork"] == 6
    assert {"gather_audit", "plot_audit", "judge_claims", "tabulate_audit"} <= set(jobs)
    unchanged = {"collect_text", "train_tokenizer", "fix_batches", "describe_checkpoints"}
    assert not unchanged & set(jobs)
    assert not any(rule.startswith("pretrain_suite") for rule in jobs)
    assert "measure_kurtosis" not in jobs


def test_a_change_of_one_schedule_reruns_its_forks_only(tiny, edited):
    edited(TINY, lambda text: text.replace("period: 16", "period: 20"))
    run = snakemake("--dry-run", "--configfile", TINY, folder=tiny)
    forks = set(re.findall(r"Forking tiny: (\w+), seed \d", run.stdout))
    assert forks == {"sgdr"}
    jobs = plan(tiny)
    assert jobs["train_fork"] == 2
    assert {"gather_forks", "test_hypotheses", "tabulate_forks", "plot_forks"} <= set(jobs)
    assert not {"probe_checkpoints", "plot_audit", "detect_phases", "measure_kurtosis"} & set(jobs)


def test_a_failing_cell_fails_the_rule_and_keeps_its_traceback(tiny, edited):
    def plant(text: str) -> str:
        notebook = json.loads(text)
        cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        cell["source"] = [*cell["source"], "\n1 / 0"]
        return json.dumps(notebook)

    edited("notebooks/tour.ipynb", plant)
    target = "results/tiny/notebooks/tour.html"
    shutil.copy(tiny / target, tiny / "kept.html")
    try:
        run = snakemake(target, "--cores", "1", "--configfile", TINY, folder=tiny)
        assert run.returncode != 0
        assert "ZeroDivisionError" in run.stdout
        assert not (tiny / target).exists()
        left = (tiny / "logs/tiny/render_notebook/tour.ipynb").read_text()
        assert "ZeroDivisionError" in left
    finally:
        (tiny / "kept.html").replace(tiny / target)
