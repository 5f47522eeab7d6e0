"""What README and docs/ show: examples run as they stand, and what they name is there."""

import re
import shlex

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from snakemake.cli import get_argument_parser
from transformers import TrainingArguments

from flatminima.__main__ import parser
from flatminima.model import build_model, save_model
from flatminima.text.tokens import train_tokenizer
from tests.conftest import TINY
from tests.workflow import ROOT, copy_checkout, flatminima, planned, rule_names

PAGES = {path.stem: path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
TEXT = "the weights of a model are rounded to few values and the loss is what it is\n\n" * 3000
FOLDERS = "bench|rules|workflow_scripts|docs|resources|tests|profiles|envs|notebooks|benchmarks"
CALLBACK, MONITOR = 0, 1  # Python examples of docs/training.md, in their order
OWN_SUITES = ("results/mine/", "results/mini3/", "results/pythia-160m/", "results/example/run")


def blocks(language: str, page: str) -> list[str]:
    """Code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], flags=re.M | re.S)


def commands() -> list[str]:
    """Every command of every page, from fenced and indented blocks and from the text."""
    found = []
    for page in PAGES:
        text = re.sub(r"^```(?!bash)\w+\n.*?^```$", "", PAGES[page], flags=re.M | re.S)
        shown = r"^(?: {4}|)((?:make|snakemake|flatminima|pytest)\b.*)$"
        lines = re.findall(shown, text, flags=re.M)
        inline = re.findall(r"`((?:make|snakemake|flatminima|pytest) [^`\n]+)`", text)
        found += [shlex.split(line, comments=True) for line in (*lines, *inline)]
    return [words for words in found if not {"…", "FILE"} & set(words)]


def called(name: str) -> list[list[str]]:
    return [words[1:] for words in commands() if words[0] == name]


# What pages name


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_and_paths_lead_somewhere(page):
    folder = ROOT if page == "README" else ROOT / "docs"
    for link in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        place, _, anchor = link.partition("#")
        if not place.startswith("http"):
            target = (folder / place).resolve() if place else folder / f"{page}.md"
            assert target.exists(), link
            heads = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.M) if anchor else []
            anchors = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}
            assert not anchor or anchor in anchors, link
    for path in re.findall(rf"[` ]((?:{FOLDERS})/[\w./-]+\w)", PAGES[page]):
        made = path.startswith("benchmarks/mini") or path.endswith(".html")
        assert made or (ROOT / path).exists(), path


def test_commands_are_such():
    known = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)[1].split()
    assert {w for words in called("make") for w in words if "=" not in w} <= {*known, ".venv/ready"}
    assert len(called("snakemake")) > 10 and len(called("flatminima")) >= 2
    for words in called("snakemake"):
        get_argument_parser().parse_args(words)
    for words in called("flatminima"):
        parser().parse_args(words)
    for words in called("pytest"):
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/")), words


def test_rules_are_such():
    named = re.findall(r"^\|.*`results/.*\| ((?:`\w+`(?:, )?)+) \|", PAGES["README"], flags=re.M)
    named = [rule for cell in named for rule in re.findall(r"\w+", cell)]
    assert len(named) > 20 and set(named) <= rule_names()


@pytest.mark.workflow
def test_every_target_is_planned(tmp_path):
    found = {
        target
        for text in PAGES.values()
        for target in re.findall(r"results/[\w.-]+/[\w./-]+\.\w+", text)
        if not target.startswith(OWN_SUITES)
    }
    beyond = re.findall(r"`([\w/]+\.(?:pdf|csv|html))`.* \| `\w+`", PAGES["mechanism"])
    assert len(beyond) > 8 and len(found) > 15
    found |= {f"results/mini/{target}" for target in beyond if not target.startswith("results/")}
    assert planned(*sorted(found), folder=copy_checkout(tmp_path / "checkout"))


# Examples


def test_the_monitor_says_when_a_list_of_losses_has_converged(capsys):
    losses = [1 + 4 / (1 + step) for step in range(30)] + [1.13] * 30
    exec(compile(blocks("python", "training")[MONITOR], "training.md", "exec"), {"losses": losses})
    [line] = capsys.readouterr().out.splitlines()
    step = int(re.search(r"converged at step (\d+): save a checkpoint", line)[1])
    assert 30 < step < 50


def test_the_trainer_is_watched(tmp_path):
    model = build_model(TINY, 64, seed=0)
    rows = [
        {"input_ids": row, "labels": row}
        for row in np.random.default_rng(0).integers(0, 64, (16, 16))
    ]
    namespace = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-9),
        "train": rows,
        "validation": rows,
        "arguments": TrainingArguments(
            str(tmp_path),
            max_steps=40,
            eval_strategy="steps",
            eval_steps=2,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=1,
        ),
    }
    exec(compile(blocks("python", "training")[CALLBACK], "training.md", "exec"), namespace)
    # A rate of nearly zero: no loss is lower than the first.
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    history = namespace["trainer"].state.log_history
    # Ten evaluations fill the window, five more are the patience.
    [probed] = [entry["step"] for entry in history if "eval_int4_gap_pct" in entry]
    assert probed == 28
    rates = {entry["step"]: entry["learning_rate"] for entry in history if "learning_rate" in entry}
    assert rates[25] > 4 * rates[24]
    assert any("eval_int4_gap_pct" in entry for entry in history)


def save_run(folder, **size):
    for step in (10, 20):
        model = build_model(TINY | size, 300, seed=step)
        save_model(model, folder / f"runs/mine/checkpoint-{step}")
    tokenizer = train_tokenizer([TEXT[:1000]], 300).to_str()
    (folder / "runs/mine/tokenizer.json").write_text(tokenizer)


@pytest.mark.parametrize("page", ["README", "own-model"])
def test_the_audit_command(page, tmp_path):
    [command] = [
        line
        for block in blocks("bash", page)
        for line in block.splitlines()
        if line.startswith("flatminima audit ")
    ]
    save_run(tmp_path)
    (tmp_path / "validation.txt").write_text(TEXT)
    words = command.split()[1:]
    run = flatminima(*words, folder=tmp_path, PYTHONPATH=str(ROOT / "workflow_scripts"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert pd.read_csv(tmp_path / "audit-mine/audit.csv").step.unique().tolist() == [10, 20]
    assert (tmp_path / "audit-mine/audit.svg").is_file()
    assert (tmp_path / "audit-mine/deployed.csv").is_file() == ("--deployed" in command)


@pytest.mark.workflow
def test_ones_own_run_and_quantizer_are_planned_as_a_suite(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    save_run(folder, hidden_size=128, max_length=512)
    (folder / "held_out.txt").write_text(TEXT)
    (folder / "text").mkdir()
    for name in ("held_out.jsonl.zst", "train.parquet"):
        (folder / "text" / name).touch()

    def jobs_of(suite: str, written: str) -> dict[str, int]:
        (folder / "mine.yaml").write_text(written)
        target = f"results/{suite}/figures/fig1_audit.pdf"
        return planned(target, "--configfile", "mine.yaml", folder=folder)

    mine, text, *others = blocks("yaml", "own-model")
    [quantizer] = [block for block in others if "mini3:" in block]
    jobs = jobs_of("mine", mine)
    assert jobs["probe_checkpoints"] == jobs["plot_audit"] == 1
    # The block about text takes the place of the suite's own.
    configuration = yaml.safe_load(mine)
    configuration["suites"]["mine"] |= yaml.safe_load(text)
    assert jobs_of("mine", yaml.safe_dump(configuration))["collect_split"] == 1
    jobs = jobs_of("mini3", quantizer)
    assert jobs["probe_checkpoints"] == 2 and jobs["plot_audit"] == 1
    assert "pretrain_suite_mini3_step5720" in jobs
