"""The README's examples on one's own model and training run, executed as they stand."""

import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from transformers import TrainingArguments

from flatminima.model import build_model, save_model
from flatminima.text.tokens import train_tokenizer
from tests.conftest import TINY
from tests.workflow import ROOT, copy_checkout, planned

FIRST, AFTER = "## Your own model", "## Your own numbers"
TEXT = "the weights of a model are rounded to few values and the loss is what it is\n\n" * 3000


def blocks(language, first=FIRST, after=AFTER):
    """Code blocks of the sections in one language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    sections = text.split(f"\n{first}\n", 1)[1].split(f"\n{after}\n", 1)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", sections, flags=re.M | re.S)


def commands():
    return [line for block in blocks("bash") for line in block.splitlines()]


def test_the_sections_have_their_examples():
    assert len(blocks("python")) == 2
    assert len(commands()) == 3


def test_the_monitor_says_when_a_list_of_losses_has_converged(capsys):
    losses = [1 + 4 / (1 + step) for step in range(30)] + [1.13] * 30
    exec(compile(blocks("python")[0], "README.md", "exec"), {"losses": losses})
    [line] = capsys.readouterr().out.splitlines()
    step = int(re.search(r"converged at step (\d+): save a checkpoint", line)[1])
    assert 30 < step < 50


def test_the_trainer_is_watched(tmp_path):
    model = build_model(TINY, 64, seed=0)
    rows = [{"input_ids": row, "labels": row}
            for row in np.random.default_rng(0).integers(0, 64, (16, 16))]  # fmt: skip
    given = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-9),
        "train": rows,
        "validation": rows,
        "arguments": TrainingArguments(
            str(tmp_path), max_steps=40, eval_strategy="steps", eval_steps=2, use_cpu=True,
            report_to="none", disable_tqdm=True, save_strategy="no", logging_steps=1,
        ),
    }  # fmt: skip
    exec(compile(blocks("python")[1], "README.md", "exec"), given)
    # A rate of nearly zero: ten evaluations fill the window, five more are the patience.
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-28"]
    history = given["trainer"].state.log_history
    rates = {entry["step"]: entry["learning_rate"] for entry in history if "learning_rate" in entry}
    assert rates[25] > 4 * rates[24]
    assert any("eval_int4_gap_pct" in entry for entry in history)


def save_run(folder, **size):
    for step in (10, 20):
        model = build_model(TINY | size, 300, seed=step)
        save_model(model, folder / f"runs/mine/checkpoint-{step}")
    tokenizer = train_tokenizer([TEXT[:1000]], 300).to_str()
    (folder / "runs/mine/tokenizer.json").write_text(tokenizer)


def test_the_audit_command(tmp_path):
    [command] = [line for line in commands() if "flatminima audit" in line]
    save_run(tmp_path)
    (tmp_path / "validation.txt").write_text(TEXT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow_scripts")}
    run = subprocess.run(
        [sys.executable, *command.split()[1:]], cwd=tmp_path, env=environment, text=True,
        capture_output=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert pd.read_csv(tmp_path / "audit-mine/audit.csv").step.unique().tolist() == [10, 20]
    assert (tmp_path / "audit-mine/audit.svg").is_file()
    assert (tmp_path / "audit-mine/deployed.csv").is_file()


@pytest.mark.workflow
def test_the_targets_are_planned(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    made = {"results/mini/deployed.csv": "probe_deployed",
            "results/example/your_run.html": "render_notebook_your_run"}  # fmt: skip
    targets = [line.split()[-1] for line in commands() if line.startswith("snakemake ")]
    assert sorted(targets) == sorted(made)
    for target in targets:
        assert planned(target, folder=folder)[made[target]] == 1


@pytest.mark.workflow
def test_ones_own_run_is_planned_as_a_suite(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    save_run(folder, hidden_size=128, max_length=512)
    (folder / "held_out.txt").write_text(TEXT)
    mine, text = blocks("yaml")
    (folder / "mine.yaml").write_text(mine)
    target = "results/mine/figures/fig1_audit.pdf"
    jobs = planned(target, "--configfile", "mine.yaml", folder=folder)
    assert jobs["probe_checkpoints"] == jobs["plot_audit"] == 1
    # The block about text takes the place of the suite's own.
    own = yaml.safe_load(mine)
    own["suites"]["mine"] |= yaml.safe_load(text)
    (folder / "text").mkdir()
    for name in ("held_out.jsonl.zst", "train.parquet"):
        (folder / "text" / name).touch()
    (folder / "mine.yaml").write_text(yaml.safe_dump(own))
    assert planned(target, "--configfile", "mine.yaml", folder=folder)["collect_text"] == 1


@pytest.mark.workflow
def test_a_quantizer_of_ones_own_is_probed(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    [block] = blocks("yaml", AFTER, "## Where the paper leaves a choice")
    (folder / "mine.yaml").write_text(block)
    target = "results/mini3/figures/fig1_audit.pdf"
    jobs = planned(target, "--configfile", "mine.yaml", folder=folder)
    assert jobs["probe_checkpoints"] == 2 and jobs["plot_audit"] == 1
    assert "pretrain_suite_mini3_step5720" in jobs
