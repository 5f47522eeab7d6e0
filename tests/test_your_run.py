"""The notebook "audit your own run": from Trainer.train() to the finished curve."""

import contextlib
import copy
import json
import os
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from flatminima.errors import UserError
from flatminima.figures import figure_monitor
from flatminima.notebooks.rendering import strip
from tests import synthetic
from tests.workflow import ROOT, copy_checkout, snakemake
from workflow_scripts import audit_example, train_example

NOTEBOOK = ROOT / "notebooks/your_run.ipynb"
SHORT = {"steps": 24, "every": 4, "hidden_size": 32, "vocab_size": 300, "length": 32,
         "train_sequences": 32, "validation_sequences": 16, "batch_size": 8}  # fmt: skip


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """What the two rules leave, from a run of 24 updates."""
    root = tmp_path_factory.mktemp("checkout")
    folder = root / "results/example"
    folder.mkdir(parents=True)
    with contextlib.chdir(root):
        make(Path("results/example"))
    return folder


def make(folder):
    train_example.main(
        run=str(folder / "run"), validation=str(folder / "validation.jsonl"),
        record=str(folder / "monitor.json"), settings=SHORT,
    )  # fmt: skip
    audit_example.main(
        run=str(folder / "run"), validation=str(folder / "validation.jsonl"),
        table=str(folder / "audit/audit.csv"),
        options={"length": 32, "batch_size": 4, "sequences": 16, "resamples": 20},
    )  # fmt: skip


def test_the_run_is_one_as_the_trainer_leaves_it(example):
    names = sorted(path.name for path in (example / "run").iterdir())
    assert set(names) >= {f"checkpoint-{step}" for step in range(4, 28, 4)}
    assert (example / "run/checkpoint-24/tokenizer.json").is_file()
    state = json.loads((example / "run/checkpoint-24/trainer_state.json").read_text())
    kept = state["stateful_callbacks"]["ConvergenceCallback"]["attributes"]["saved"]
    assert kept["monitor"]["state"]["step"] == 24
    record = json.loads((example / "monitor.json").read_text())
    assert record["events"] == kept["events"]
    assert not any("runtime" in key for entry in record["history"] for key in entry)


def test_its_audit_has_a_learning_rate(example):
    audited = pd.read_csv(example / "audit/audit.csv")
    assert audited.step.unique().tolist() == list(range(4, 28, 4))
    assert audited.lr_fraction.max() == 1.0 and audited.lr_fraction.notna().all()
    losses = {e["step"]: e["eval_loss"] for e in json.loads(
        (example / "monitor.json").read_text())["history"] if "eval_loss" in e}  # fmt: skip
    fp32 = audited[audited.role == "fp32"].set_index("step").nll_nats_per_token
    # The audit scores the same held-out text as the Trainer's own evaluation.
    assert fp32.to_numpy() == pytest.approx([losses[step] for step in fp32.index], rel=1e-5)


def test_a_failed_audit_fails_its_job(tmp_path):
    with pytest.raises(UserError, match="the audit failed"):
        audit_example.main(
            run=str(tmp_path), validation="none", table=str(tmp_path / "a/audit.csv"), options={}
        )


def test_the_figure_marks_where_it_converged():
    steps = range(10, 310, 10)
    history = [{"step": s, "eval_loss": 3 + (s - 150) ** 2 / 1e5} for s in steps]
    history += [
        {"step": s, figure_monitor.SLOPE: (s - 150) / 50, figure_monitor.ERROR: 0.1}
        for s in steps if s > 40
    ]  # fmt: skip
    events = [{"step": 170, "loss": 3.004}]
    figure = figure_monitor.draw(history, events, label="mine")
    top, bottom = figure.axes
    assert figure.get_suptitle().startswith("mine")
    assert any("converged: step 170" in text.get_text() for text in top.texts)
    assert list(top.lines[0].get_xdata()) == list(steps)
    assert bottom.get_ylim()[1] > 3
    text = figure_monitor.monitor_text(history, events, label="mine")
    assert "lowest, 3.000 nats per token, at step 150" in text and text.endswith("converged: 170.")
    assert figure_monitor.monitor_text(history, [], label="mine").endswith("converged: none.")


def test_the_notebook_is_committed_bare_and_trains_nothing():
    text = NOTEBOOK.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert strip(copy.deepcopy(notebook)) == notebook
    assert "**This is not Pythia.**" in notebook.cells[0].source
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    imported = set(re.findall(r"^ *(?:from|import) (\w+)", code, flags=re.M))
    assert imported <= {"IPython", "json", "os", "pandas", "pathlib", "sys", "flatminima"}
    assert not re.search(r"/home/|/root/|/tmp/|https?://|\.train\(\)", code)
    for rule in re.findall(r"\| `([a-z_]+)` \|$", notebook.cells[-1].source, flags=re.M):
        assert (ROOT / f"workflow_scripts/{rule}.py").is_file()


def test_the_notebook_shows_the_training_and_the_curve(example, tmp_path):
    from workflow_scripts import render_notebook

    html = tmp_path / "your_run.html"
    render_notebook.main(
        notebook=str(NOTEBOOK), html=str(html), log=str(tmp_path / "log"),
        suite={"name": "example"}, results=str(example.parent),
    )  # fmt: skip
    page = html.read_text(encoding="utf-8")
    images = re.findall(r"<img[^>]*>", page)
    assert len(images) == 2 and all('alt="example run (not Pythia): ' in i for i in images)
    assert "ConvergenceCallback" in page and "get_cosine_neox_schedule" in page
    assert "The INT4 gap: <strong>" in page
    for place in (str(synthetic.ROOT), str(tmp_path), str(example)):
        assert place not in page


@pytest.mark.workflow
def test_from_train_to_the_finished_curve(tmp_path):
    copy_checkout(tmp_path / "checkout")
    target = "results/example/your_run.html"
    run = snakemake("--cores", "1", target, folder=tmp_path / "checkout")
    assert run.returncode == 0, run.stdout[-3000:]
    folder = tmp_path / "checkout/results/example"
    record = json.loads((folder / "monitor.json").read_text())
    losses = {e["step"]: e["eval_loss"] for e in record["history"] if "eval_loss" in e}
    best = min(losses, key=losses.get)
    # It sees its text many times: validation loss converges, is noticed, and rises.
    [event] = record["events"]
    assert best <= event["step"] <= best + 160
    assert losses[600] > losses[best] + 0.1
    audited = pd.read_csv(folder / "audit/audit.csv")
    assert audited.step.nunique() == 30
    assert os.path.getsize(folder / "your_run.html") > 100_000
