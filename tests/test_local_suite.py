"""Somebody's own training run: a Trainer's folders, one configuration file, figure 1."""

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.local_run import documents, run_trainer
from tests.workflow import copy_checkout, planned, snakemake

pytestmark = pytest.mark.workflow

MINE = """
suite: mine

quantizers:
  int4_g16: {bits: 4, granularity: group, group_size: 16, symmetric: false, layers: blocks}

suites:
  mine:
    label: my own run
    source: local
    pattern: runs/mine/checkpoint-{step}
    text: {source: files, validation: [{path: held_out.txt}]}
    batches:
      validation: {sequences: 16, length: 32}
    probe: {low_bit: int4_g16, steps_per_job: 3, resamples: 50}
    phases: {resamples: 20}
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    """A checkout beside a finished run of which the last save was cut off."""
    folder = copy_checkout(tmp_path_factory.mktemp("mine"))
    run_trainer(folder / "runs/mine")
    (folder / "mine.yaml").write_text(MINE)
    (folder / "held_out.txt").write_text("\n\n".join(documents(40, seed=1)))
    cut_off = folder / "runs/mine/checkpoint-28"
    shutil.copytree(folder / "runs/mine/checkpoint-24", cut_off)
    whole = (cut_off / "model.safetensors").read_bytes()
    (cut_off / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    run = snakemake("--configfile", "mine.yaml", "--cores", "2", folder=folder)
    assert run.returncode == 0, run.stdout[-5000:]
    (folder / "said.txt").write_text(run.stdout)
    return folder


def test_a_trainers_folders_become_figure_1(mine):
    root = mine / "results/mine"
    for name in ("suite.csv", "audit.csv", "kurtosis.csv", "phases.json", "tables/table1.csv",
                 "figures/fig1_audit.svg", "figures/fig2_kurtosis.svg", "index.html",
                 "figures/fig5_bit_widths.pdf", "notebooks/audit.html"):  # fmt: skip
        assert (root / name).stat().st_size > 0, name
    for name in ("forks.csv", "statistics.csv", "claims.csv", "figures/fig3_forks.pdf"):
        assert not (root / name).exists(), "nothing was forked"
    figure = (root / "figures/fig1_audit.svg").read_text()
    assert "my own run" in figure and "not known" in figure, "the learning rate is nobody's guess"


def test_what_is_not_known_is_empty_and_what_was_skipped_is_said(mine):
    audit = pd.read_csv(mine / "results/mine/audit.csv")
    assert list(audit["step"].unique()) == [4, 8, 12, 16, 20, 24]
    assert audit[["tokens_seen", "lr", "lr_fraction"]].isna().all().all()
    assert audit[["ppl", "gap_pct"]].notna().all().all()
    said = (mine / "said.txt").read_text()
    line = "suite mine: skipped runs/mine/checkpoint-28: model.safetensors is not whole"
    assert said.count(line) == 1
    suite = pd.read_csv(mine / "results/mine/suite.csv")
    assert suite["weights_sha256"].nunique() == 6 and suite["tokens_seen"].isna().all()
    phases = json.loads((mine / "results/mine/phases.json").read_text())
    assert phases["rule"].startswith("All checkpoints after step 0 are used in order")


def test_conv1d_is_quantized_and_measured_by_the_same_selection(mine):
    covered = json.loads((mine / "results/mine/probes/step4-step12.json").read_text())["coverage"]
    assert covered["int4_g16"]["matrices"] == 8
    assert covered["int4_g16"]["weights"] == 2 * 12 * 32 * 32
    measured = pd.read_csv(mine / "results/mine/kurtosis.csv")
    tensors = measured[(measured["step"] == 4) & (measured["statistic"] == "per_tensor")]
    assert tensors["n_weights"].sum() == covered["int4_g16"]["weights"]
    assert "transformer.h.0.attn.c_attn.weight" in set(tensors["tensor"])
    log = next((mine / "logs/mine/probe_checkpoints").glob("*.log")).read_text()
    assert "24,576 of" in log and "transformer.wte.weight" in log


def test_a_second_run_has_nothing_to_do_until_a_checkpoint_changes(mine):
    """Whatever the time stamp of the file that takes its place."""
    assert planned("--configfile", "mine.yaml", folder=mine) == {}
    table = pd.read_csv(mine / "results/mine/suite.csv", index_col="step")
    file = mine / "runs/mine/checkpoint-8/model.safetensors"
    before, kept = file.stat(), file.read_bytes()
    file.write_bytes(kept)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert planned("--configfile", "mine.yaml", folder=mine) == {}, "the same weights once more"
    file.write_bytes(kept[:-4] + bytes(4))
    os.utime(file, (1577836800, 1577836800))  # as cp -p, rsync -a and backups leave it
    jobs = planned("--configfile", "mine.yaml", folder=mine)
    for rule in ("describe_checkpoints", "probe_checkpoints", "measure_kurtosis"):
        assert jobs[rule] == 1, "the range of step 8 and no other"
    target = "results/mine/audit.csv"
    run = snakemake(target, "--configfile", "mine.yaml", "--cores", "2", folder=mine)
    assert run.returncode == 0, run.stdout[-5000:]
    said = "suite mine: runs/mine/checkpoint-8 was replaced since it was measured"
    assert run.stdout.count(said) == 1
    assert planned(target, "--configfile", "mine.yaml", folder=mine) == {}
    after = pd.read_csv(mine / "results/mine/suite.csv", index_col="step")
    assert list(table.index[table["sha256"] != after["sha256"]]) == [8]
