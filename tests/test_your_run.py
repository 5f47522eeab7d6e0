"""Somebody's own run, as the Trainer leaves it: the audit, the notebook, and a suite of its own."""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from flatminima.errors import UserError
from tests.workflow import ROOT, copy_checkout, planned, snakemake
from workflow_scripts import audit_example, render_notebook, train_example

NOTEBOOK = ROOT / "notebooks/your_run.ipynb"
SHORT = {
    "steps": 24,
    "every": 4,
    "hidden_size": 32,
    "vocab_size": 300,
    "length": 32,
    "train_sequences": 32,
    "validation_sequences": 16,
    "batch_size": 8,
}
MINE = """
suite: mine

quantizers:
  int4_g16: {bits: 4, granularity: group, group_size: 16, symmetric: false, layers: blocks}

suites:
  mine:
    label: my own run
    source: local
    pattern: results/example/run/checkpoint-{step}
    text: {source: files, validation: [{path: results/example/validation.jsonl}]}
    batches:
      validation: {sequences: 16, length: 32}
    probe: {low_bit: int4_g16, steps_per_job: 3, resamples: 50}
    phases: {resamples: 20}
"""
OWN = ("--configfile", "mine.yaml")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A checkout in which the scripts of the example have trained and audited 24 updates."""
    folder = copy_checkout(tmp_path_factory.mktemp("own"))
    example = Path("results/example")
    (folder / example).mkdir(parents=True)
    run = str(example / "run")
    validation = str(example / "validation.jsonl")
    options = {"length": 32, "batch_size": 4, "sequences": 16, "resamples": 20}
    with contextlib.chdir(folder):
        train_example.main(run, validation, str(example / "monitor.json"), **SHORT)
        audit_example.main(run, validation, str(example / "audit/audit.csv"), options)
    return folder


@pytest.fixture(scope="module")
def example(checkout) -> Path:
    return checkout / "results/example"


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
        audit_example.main(str(tmp_path), "none", str(tmp_path / "a/audit.csv"), options={})


def test_the_notebook_shows_the_training_and_the_curve(example, tmp_path):
    executed = tmp_path / "your_run.ipynb"
    html = tmp_path / "your_run.html"
    render_notebook.main(
        str(NOTEBOOK), str(executed), str(html), suite="example", folder=str(example.parent)
    )
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
    assert pd.read_csv(folder / "audit/audit.csv").step.nunique() == 30
    assert os.path.getsize(folder / "your_run.html") > 100_000


@pytest.fixture(scope="module")
def mine(checkout, tmp_path_factory) -> Path:
    """Results of a suite of a copy of the run, once the last save of it was cut off."""
    checkout = shutil.copytree(checkout, tmp_path_factory.mktemp("mine") / "checkout")
    (checkout / "mine.yaml").write_text(MINE)
    run = checkout / "results/example/run"
    cut_off = shutil.copytree(run / "checkpoint-24", run / "checkpoint-28") / "model.safetensors"
    cut_off.write_bytes(cut_off.read_bytes()[: cut_off.stat().st_size // 2])
    run = snakemake(*OWN, "--cores", "2", folder=checkout)
    assert run.returncode == 0, run.stdout[-5000:]
    line = "suite mine: skipped results/example/run/checkpoint-28: model.safetensors is incomplete"
    assert run.stdout.count(line) == 1
    return checkout / "results/mine"


@pytest.mark.workflow
def test_a_trainers_folders_become_figure_1_and_what_is_not_known_is_empty(mine):
    for name in (
        "suite.csv",
        "audit.csv",
        "kurtosis.csv",
        "phases.json",
        "tables/table1.csv",
        "figures/fig1_audit.svg",
        "figures/fig2_kurtosis.svg",
        "index.html",
        "figures/fig5_bit_widths.pdf",
        "notebooks/audit.html",
    ):
        assert (mine / name).stat().st_size > 0, name
    for name in ("forks.csv", "statistics.csv", "claims.csv", "figures/fig3_forks.pdf"):
        assert not (mine / name).exists(), "nothing was forked"
    figure = (mine / "figures/fig1_audit.svg").read_text()
    assert "my own run" in figure and "% of max" not in figure, "the learning rate is not known"
    audit = pd.read_csv(mine / "audit.csv")
    suite = pd.read_csv(mine / "suite.csv")
    assert list(audit["step"].unique()) == [4, 8, 12, 16, 20, 24]
    assert audit[["tokens_seen", "lr", "lr_fraction"]].isna().all().all()
    assert audit[["ppl", "gap_pct"]].notna().all().all()
    assert suite["weights_sha256"].nunique() == 6 and suite["tokens_seen"].isna().all()
    phases = json.loads((mine / "phases.json").read_text())
    assert phases["rule"].startswith("All checkpoints after step 0 are used in order")
    # What is quantized and what its kurtosis is measured of are the same matrices.
    covered = json.loads((mine / "probes/step4-step12.json").read_text())["coverage"]["int4_g16"]
    assert covered["matrices"] == 8 and covered["weights"] == 2 * 12 * 32 * 32
    measured = pd.read_csv(mine / "kurtosis.csv").query("step == 4 and statistic == 'per_tensor'")
    assert measured["n_weights"].sum() == covered["weights"]
    log = next((mine.parents[1] / "logs/mine/probe_checkpoints").glob("*.log")).read_text()
    assert "24,576 of" in log and "embed_in.weight" in log


@pytest.mark.workflow
def test_a_second_run_has_nothing_to_do_until_a_checkpoint_changes(mine):
    """Whatever the time stamp of the file that takes its place."""
    checkout = mine.parents[1]
    assert planned(*OWN, folder=checkout) == {}
    before = pd.read_csv(mine / "suite.csv", index_col="step")
    file = checkout / "results/example/run/checkpoint-8/model.safetensors"
    kept = file.read_bytes()
    file.write_bytes(kept[:-4] + bytes(4))
    os.utime(file, (1577836800, 1577836800))  # as cp -p, rsync -a and backups leave it
    jobs = planned(*OWN, folder=checkout)
    for rule in ("describe_checkpoints", "probe_checkpoints", "measure_kurtosis"):
        assert jobs[rule] == 1, "the range of step 8 and no other"
    target = ("results/mine/audit.csv", *OWN)
    run = snakemake(*target, "--cores", "2", folder=checkout)
    assert run.returncode == 0, run.stdout[-5000:]
    message = "suite mine: results/example/run/checkpoint-8 was changed since it was measured"
    assert run.stdout.count(message) == 1
    assert planned(*target, folder=checkout) == {}
    after = pd.read_csv(mine / "suite.csv", index_col="step")
    assert list(before.index[before["sha256"] != after["sha256"]]) == [8]
