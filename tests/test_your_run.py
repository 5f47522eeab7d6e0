"""The notebook "audit your own run": from Trainer.train() to the finished curve."""

import contextlib
import json
import os
import re
from pathlib import Path

import pandas as pd
import pytest

from flatminima.errors import UserError
from tests.workflow import ROOT, copy_checkout, snakemake
from workflow_scripts import audit_example, render_notebook, train_example

NOTEBOOK = ROOT / "notebooks/your_run.ipynb"
SHORT = {"steps": 24, "every": 4, "hidden_size": 32, "vocab_size": 300, "length": 32,
         "train_sequences": 32, "validation_sequences": 16, "batch_size": 8}  # fmt: skip


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """What the two rules leave, from a run of 24 updates."""
    root = tmp_path_factory.mktemp("checkout")
    folder = Path("results/example")
    (root / folder).mkdir(parents=True)
    run, validation = str(folder / "run"), str(folder / "validation.jsonl")
    options = {"length": 32, "batch_size": 4, "sequences": 16, "resamples": 20}
    with contextlib.chdir(root):
        train_example.main(run, validation, str(folder / "monitor.json"), **SHORT)
        audit_example.main(run, validation, str(folder / "audit/audit.csv"), options)
    return root / folder


def losses_of(folder):
    history = json.loads((folder / "monitor.json").read_text())["history"]
    return {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}


def test_the_run_is_one_as_the_trainer_leaves_it_and_its_audit_has_a_learning_rate(example):
    assert (example / "run/checkpoint-24/tokenizer.json").is_file()
    state = json.loads((example / "run/checkpoint-24/trainer_state.json").read_text())
    kept = state["stateful_callbacks"]["ConvergenceCallback"]["saved"]
    assert kept["monitor"]["state"]["step"] == 24
    record = json.loads((example / "monitor.json").read_text())
    assert record["events"] == kept["events"]
    assert not any("runtime" in key for entry in record["history"] for key in entry)
    audited = pd.read_csv(example / "audit/audit.csv")
    assert audited.step.unique().tolist() == list(range(4, 28, 4))
    assert audited.lr_fraction.max() == 1.0 and audited.lr_fraction.notna().all()
    fp32 = audited[audited.role == "fp32"].set_index("step").nll_nats_per_token
    # The audit scores the same held-out text as the Trainer's own evaluation.
    losses = losses_of(example)
    assert fp32.to_numpy() == pytest.approx([losses[step] for step in fp32.index], rel=1e-5)


def test_a_failed_audit_fails_its_job(tmp_path):
    with pytest.raises(UserError, match="the audit failed"):
        audit_example.main(
            run=str(tmp_path), validation="none", table=str(tmp_path / "a/audit.csv"), options={}
        )


def test_the_notebook_shows_the_training_and_the_curve(example, tmp_path):
    html = tmp_path / "your_run.html"
    render_notebook.main(str(NOTEBOOK), str(html), "example", str(example.parent))
    page = html.read_text(encoding="utf-8")
    assert len(re.findall(r"<img[^>]*>", page)) == 3
    assert "ConvergenceCallback" in page and "The INT4 gap: <strong>" in page


@pytest.mark.workflow
def test_from_train_to_the_finished_curve(tmp_path):
    copy_checkout(tmp_path / "checkout")
    target = "results/example/your_run.html"
    run = snakemake("--cores", "1", target, folder=tmp_path / "checkout")
    assert run.returncode == 0, run.stdout[-3000:]
    folder = tmp_path / "checkout/results/example"
    losses = losses_of(folder)
    best = min(losses, key=losses.get)
    # It sees its text many times: validation loss converges, is noticed, and rises.
    [event] = json.loads((folder / "monitor.json").read_text())["events"]
    assert best <= event["step"] <= best + 160
    assert losses[600] > losses[best] + 0.1
    audited = pd.read_csv(folder / "audit/audit.csv")
    assert audited.step.nunique() == 30
    assert os.path.getsize(folder / "your_run.html") > 100_000
