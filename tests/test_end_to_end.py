"""The whole of a tiny suite, built for real and held against what its own files say.

test_kills.py kills such runs and compares.
"""

import hashlib
import json
import shutil
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from scipy import stats

from flatminima.config.loading import read_config
from flatminima.files import read_digests
from tests.workflow import TINY, snakemake, tiny_checkout

pytestmark = pytest.mark.workflow
SCHEDULES = ("cosine", "sgdr", "oli")
STEPS = [0, 1, 2, 4, *range(10, 121, 10)]
LABEL = "tiny (test suite, not Pythia)"
AUDIT_COLUMNS = [
    "suite",
    "step",
    "tokens_seen",
    "lr",
    "lr_fraction",
    "quantizer",
    "role",
    "nll_nats_per_token",
    "ppl",
    "ppl_low",
    "ppl_high",
    "delta_nll_nats_per_token",
    "gap_pct",
    "gap_low_pct",
    "gap_high_pct",
    "kl_nats_per_token",
    "top1_changed_pct",
    "n_sequences",
    "n_tokens",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """The checkout in which everything was built; only read here."""
    return tiny_checkout(tmp_path_factory)


@pytest.fixture(scope="module")
def root(tiny) -> Path:
    return tiny / "results/tiny"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_everything_of_the_design_exists_and_nothing_else(tiny, root):
    wanted = [
        *(f"data/{s}.{x}" for s in ("validation", "train") for x in ("safetensors", "json")),
        *("data/tokenizer.json", "checkpoints/step0/model.safetensors"),
        *("checkpoints/step120/config.json", "audit_sequences.parquet", "phases.json"),
        *(f"{n}.csv" for n in ("suite", "audit", "kurtosis", "forks", "statistics")),
        *(f"claims.{x}" for x in ("csv", "md", "html")),
        *(f"forks/{s}-seed{n}.{x}" for s in SCHEDULES for n in (0, 1) for x in ("csv", "json")),
        *(f"forks/losses/{s}-seed{n}.csv" for s in SCHEDULES for n in (0, 1)),
        *(f"tables/table{n}.{x}" for n in (1, 2) for x in ("csv", "md", "tex")),
        *(
            f"figures/{f}.{x}"
            for x in ("pdf", "svg", "png")
            for f in ("fig1_audit", "fig2_kurtosis", "fig3_forks", "fig14_scaling_law")
        ),
        *(f"notebooks/{n}.html" for n in ("tour", "audit", "kurtosis", "forks")),
    ]
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
    for name in ("tables/table1.md", "tables/table2.md", "claims.md", "figures/fig1_audit.svg"):
        assert LABEL in (root / name).read_text().replace("\n", " "), name
    assert "not comparable" in (root / "tables/table1.csv").read_text()


def test_batches_probes_and_forks_say_what_made_them(root):
    data = root / "data"
    assert len(json.loads((data / "tokenizer.json").read_text())["model"]["vocab"]) == 300
    for split, sequences in (("validation", 32), ("train", 64)):
        record = json.loads((data / f"{split}.json").read_text())
        assert record["sha256"] == sha256(data / f"{split}.safetensors")
        assert record["tokenizer_sha256"] == sha256(data / "tokenizer.json")
        assert [p["package"] for p in record["text"]["packages"]] == ["seaborn"]
        assert load_file(data / f"{split}.safetensors")["tokens"].shape == (sequences, 32)
    quantizers = read_config().quantizers
    for path in (root / "probes").glob("*.json"):
        made_by = json.loads(path.read_text())
        assert made_by["validation_sha256"] == sha256(data / "validation.safetensors")
        assert made_by["dtype"] == "float32" and made_by["tf32"] is False
        assert made_by["threads"] == 1 and made_by["device"] == "cpu"
        assert made_by["packages"]["torch"] == metadata.version("torch")
        assert made_by["probe"] == {
            "quantizers": {name: quantizers[name].dump() for name in ("int4_g16", "int8_channel")},
            "roles": {"int4_g16": "low_bit", "int8_channel": "high_bit"},
            "batch_size": 16,
            "device": "cpu",
        }
        assert len(made_by["code"]) == 16
    training = json.loads((root / "forks/oli-seed1.json").read_text())["training"]
    assert training["seed"] == 1 and training["definition"]["kind"] == "oli"
    assert len(training["weights_sha256"]) == 10


def test_the_suite_table_says_what_each_checkpoint_is(root):
    suite = pd.read_csv(root / "suite.csv").set_index("step")
    assert list(suite.index) == STEPS
    for step, row in suite.iterrows():
        weights = root / f"checkpoints/step{step}/model.safetensors"
        assert row["sha256"] == sha256(weights) == read_digests(weights.parent)[weights.name]
        assert row["bytes"] == weights.stat().st_size
        assert row["n_tensors"] == len(load_file(weights))
        assert row["tokens_seen"] == 8 * 32 * step and row["revision"] == f"step{step}"
    assert set(suite["dtype"]) == {"F32"} and set(suite["status"]) == {"present"}
    # The first update of the warm-up has a rate of zero, as in Pythia.
    assert suite["duplicate_of"].dropna().to_dict() == {1: 0}
    assert suite["weights_sha256"].nunique() == 15 and suite["findings"].isna().all()
    moved = suite["distance_to_previous"]
    assert np.isnan(moved[0]) and moved[1] == 0.0 and moved[2:].between(1e-3, 2.0).all()
    # Integers stay integers although most of the column is empty.
    assert ",0,0.0,\n" in (root / "suite.csv").read_text()


def test_kurtosis_is_that_of_every_matrix_of_the_blocks(root):
    table = pd.read_csv(root / "kurtosis.csv")
    columns = ["suite", "step", "statistic", "tensor", "n_weights", "excess_kurtosis"]
    assert list(table.columns) == columns and list(table["step"].unique()) == STEPS
    for step, rows in table.groupby("step"):
        stored = {
            name: tensor.astype(float)
            for name, tensor in load_file(
                root / f"checkpoints/step{step}/model.safetensors"
            ).items()
            if tensor.ndim == 2 and "embed" not in name
        }
        assert len(stored) == 2 * 4  # query/key/value, dense and two MLP matrices of each block
        tensors = rows[rows["statistic"] == "per_tensor"].set_index("tensor")["excess_kurtosis"]
        expected = {name: stats.kurtosis(w, axis=None) for name, w in stored.items()}
        assert tensors.to_dict() == pytest.approx(expected, abs=1e-12)
        summary = rows[rows["tensor"] == "all"].set_index("statistic")["excess_kurtosis"]
        pooled = np.concatenate([w.ravel() for w in stored.values()])
        assert summary["pooled"] == pytest.approx(stats.kurtosis(pooled), abs=1e-12)
        assert summary["mean_over_tensors"] == pytest.approx(np.mean(list(expected.values())))


def test_the_audit_is_tidy_and_agrees_with_the_scores_of_single_sequences(root):
    audit = pd.read_csv(root / "audit.csv")
    assert list(audit.columns) == AUDIT_COLUMNS and audit.notna().all(axis=None)
    assert list(audit["step"]) == [step for step in STEPS for _ in range(3)]
    assert list(audit["role"]) == ["fp32", "low_bit", "high_bit"] * 16
    assert list(audit["quantizer"]) == ["fp32", "int4_g16", "int8_channel"] * 16
    assert set(audit["suite"]) == {"tiny"} and set(audit["n_sequences"]) == {32}
    assert set(audit["n_tokens"]) == {32 * 31}
    # The rate of the update that leaves the step: a warm-up of two steps, then the cosine.
    rates = audit.groupby("step")["lr"].first()
    assert list(rates[:3]) == [0.0, 0.005, 0.01] and rates[120] == 0.001
    assert list(audit["lr_fraction"]) == list(audit["lr"] / 0.01)
    scores = audit.columns[audit.columns.get_loc("quantizer") :]
    equal = audit[scores][3:6].reset_index(drop=True)  # of equal weights
    pd.testing.assert_frame_equal(audit[scores][:3], equal, check_exact=True)

    assert (audit["tokens_seen"] == 8 * 32 * audit["step"]).all()
    audit = audit.set_index(["step", "role"])
    sequences = pd.read_parquet(root / "audit_sequences.parquet")
    sums = sequences.groupby(["step", "role"])[["nll_nats", "kl_nats", "top1_changed", "scored"]]
    sums = sums.sum()
    assert len(sums) == len(audit)
    per_token = sums.div(sums["scored"], axis=0).reindex(audit.index)
    reference = per_token["nll_nats"].xs("fp32", level="role").reindex(audit.index, level="step")
    for column, expected in {
        "nll_nats_per_token": per_token["nll_nats"],
        "ppl": np.exp(per_token["nll_nats"]),
        "delta_nll_nats_per_token": per_token["nll_nats"] - reference,
        "gap_pct": 100 * np.expm1(per_token["nll_nats"] - reference),
        "kl_nats_per_token": per_token["kl_nats"],
        "top1_changed_pct": 100 * per_token["top1_changed"],
    }.items():
        np.testing.assert_allclose(audit[column], expected, rtol=1e-9, atol=1e-12, err_msg=column)
    zero = [
        "delta_nll_nats_per_token",
        "gap_pct",
        "gap_low_pct",
        "gap_high_pct",
        "kl_nats_per_token",
        "top1_changed_pct",
    ]
    assert (audit.xs("fp32", level="role")[zero] == 0).all(axis=None)
    assert (audit["gap_low_pct"] <= audit["gap_high_pct"]).all()
    assert (audit.drop("fp32", level="role")["kl_nats_per_token"] > 0).all()


def test_forks_are_gathered_and_tested_and_no_claim_about_the_paper_is_settled(tiny, root):
    runs = [
        (root / f"forks/{schedule}-seed{seed}.csv").read_text().splitlines()
        for schedule in SCHEDULES
        for seed in (0, 1)
    ]
    rows = [row for run in runs for row in run[1:]]
    assert (root / "forks.csv").read_text().splitlines() == [runs[0][0], *rows]
    assert len(rows) == 3 * 2 * 10 * 3
    tests = pd.read_csv(root / "statistics.csv").query("family == 'primary'")
    primary = ["paired t", "sgdr v cosine", "seed", "cooled_gap_pct"]
    assert tests[["test", "comparison", "unit", "measure"]].to_numpy().tolist() == [primary]
    ledger, printed = (
        pd.read_csv(tiny / f"results/{name}/claims.csv", dtype=str, keep_default_na=False)
        for name in ("tiny", "paper")
    )
    assert set(ledger["measured"]) == {"", "not measured"}
    paper_columns = ["id", "self", "sources", "design"]
    pd.testing.assert_frame_equal(ledger[paper_columns], printed[paper_columns])


def test_a_single_step_and_a_claim_are_targets_with_the_rows_of_the_whole(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "tiny")
    root = folder / "results/tiny"
    steps = {target: root / target / "step40.csv" for target in ("probes", "kurtosis", "revisions")}
    claim = root / "claims/C39.json"
    targets = [str(path.relative_to(folder)) for path in (*steps.values(), claim)]
    run = snakemake("--configfile", TINY, "--cores", "2", "--", *targets, folder=folder)
    assert run.returncode == 0, run.stdout[-3000:]
    for target, path in steps.items():
        series = (p.read_text() for p in (root / target).glob("step*-step*.csv"))
        series_lines = next(text for text in series if "\n40," in text).splitlines()
        rows = [line for line in series_lines if line.startswith(("step", "40,"))]
        assert path.read_text().splitlines() == rows
    claim_row = json.loads(claim.read_text())
    ledger = pd.read_csv(root / "claims.csv", dtype=str).set_index("id")
    assert claim_row["id"] == "C39" and claim_row["self"] == ledger.loc["C39", "self"]
