"""The scripts as Snakemake runs them, one after another on a model of a few hundred weights."""

import hashlib
import json
import runpy
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from scipy import stats
from snakemake.iocontainers import Namedlist

from flatminima.model import build_model, save_model
from flatminima.text.corpus import write_documents
from tests.workflow import ROOT

STEPS = (0, 1, 2)
SHAPE = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_length": 16}
PROBE = {
    "quantizers": {
        "int4": {"bits": 4, "granularity": "group", "group_size": 8, "symmetric": False},
        "int8": {"bits": 8, "granularity": "channel", "symmetric": True},
    },
    "roles": {"int4": "low_bit", "int8": "high_bit"},
    "batch_size": 4,
    "device": "cpu",
}
SCHEDULE = {"schedule": "cosine_neox_v1", "lr_max": 0.01, "lr_min": 0.001, "warmup_steps": 2}
AUDIT_COLUMNS = [
    "suite", "step", "tokens_seen", "lr", "lr_fraction", "quantizer", "role",
    "nll_nats_per_token", "ppl", "ppl_low", "ppl_high", "delta_nll_nats_per_token", "gap_pct",
    "gap_low_pct", "gap_high_pct", "kl_nats_per_token", "top1_changed_pct", "n_sequences",
    "n_tokens",
]  # fmt: skip


def run_script(name: str, folder: Path, *, wildcards=(), threads=1, **parts) -> Path:
    """Run a script as its rule does; ``parts`` are input, output and params. Returns its log."""
    log = folder / f"{name}.log"
    job = SimpleNamespace(
        **{part: Namedlist(fromdict=names) for part, names in parts.items()},
        wildcards=SimpleNamespace(**{"suite": "tiny", **dict(wildcards)}),
        threads=threads,
        log=[str(log)],
    )
    script = ROOT / "workflow_scripts" / f"{name}.py"
    runpy.run_path(str(script), init_globals={"snakemake": job}, run_name="__main__")
    return log


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Tokenizer and batches, made by the scripts from documents of a few words."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    vocabulary = [f"word{n}" for n in range(40)]
    texts = [" ".join(random.choice(vocabulary, 60)) + f" number {n}" for n in range(40)]
    write_documents(folder / "train.jsonl", texts[:30])
    write_documents(folder / "validation.jsonl", texts[30:])
    (folder / "text.json").write_text('{"source": "a test"}')
    tokenizer = str(folder / "tokenizer.json")
    run_script(
        "train_tokenizer", folder,
        input={"train": str(folder / "train.jsonl")},
        output={"tokenizer": tokenizer},
        params={"vocab_size": 300, "code": "abc"},
    )  # fmt: skip
    run_script(
        "fix_batches", folder,
        input={
            "train_text": str(folder / "train.jsonl"),
            "validation_text": str(folder / "validation.jsonl"),
            "manifest": str(folder / "text.json"),
            "tokenizer": tokenizer,
        },
        output={
            "validation": str(folder / "validation.safetensors"),
            "validation_manifest": str(folder / "validation.json"),
            "train": str(folder / "train.safetensors"),
            "train_manifest": str(folder / "train.json"),
        },
        params={
            "batches": {"validation": {"sequences": 6, "length": 16},
                        "train": {"sequences": 20, "length": 16}},
            "vocabulary": {},
            "code": "abc",
        },
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[int, str]:
    """Checkpoints of three steps; those of 0 and 1 hold the same weights, as in Pythia."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for step in STEPS:
        save_model(build_model(SHAPE, 300, seed=step // 2), folder / f"step{step}")
    return {step: str(folder / f"step{step}") for step in STEPS}


@pytest.fixture(scope="module")
def weights(checkpoints) -> dict[int, str]:
    return {step: f"{folder}/model.safetensors" for step, folder in checkpoints.items()}


def sha256(path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_batches_know_where_they_come_from(data):
    tokenizer = json.loads((data / "tokenizer.json").read_text())
    assert len(tokenizer["model"]["vocab"]) == 300
    for split, sequences in (("validation", 6), ("train", 20)):
        record = json.loads((data / f"{split}.json").read_text())
        assert record["sha256"] == sha256(data / f"{split}.safetensors")
        assert record["tokenizer_sha256"] == sha256(data / "tokenizer.json")
        assert record["sequences"] == sequences and record["text"] == {"source": "a test"}
        assert load_file(data / f"{split}.safetensors")["tokens"].shape == (sequences, 16)


# Revisions


@pytest.fixture(scope="module")
def described(weights, tmp_path_factory) -> list[Path]:
    """Tables of two ranges, one of a single step, the later steps first."""
    folder = tmp_path_factory.mktemp("revisions")
    tables = []
    for steps in ([1, 2], [0]):
        tables.append(folder / f"step{steps[0]}.csv")
        run_script(
            "describe_checkpoints", folder,
            input={"weights": [weights[step] for step in steps]},
            output={"table": str(tables[-1]),
                    "fingerprints": str(tables[-1].with_suffix(".parquet"))},
            params={"steps": steps, "tokens_per_step": 128, "code": "abc"},
        )  # fmt: skip
    return tables


def test_the_suite_table_says_what_each_checkpoint_is(described, weights, tmp_path):
    output = tmp_path / "suite.csv"
    run_script(
        "gather_suite", tmp_path,
        input={"tables": [str(table) for table in described],
               "fingerprints": [str(table.with_suffix(".parquet")) for table in described]},
        output={"table": str(output)},
        params={"severity": {}, "refused": str(tmp_path / "refused.csv"),
                "measured_by": None, "code": "abc"},
    )  # fmt: skip
    suite = pd.read_csv(output).set_index("step")
    assert list(suite.index) == [0, 1, 2]
    assert list(suite["sha256"]) == [sha256(weights[step]) for step in STEPS]
    assert list(suite["bytes"]) == [Path(weights[step]).stat().st_size for step in STEPS]
    assert list(suite["tokens_seen"]) == [0, 128, 256]
    assert list(suite["revision"]) == ["step0", "step1", "step2"]
    assert set(suite["dtype"]) == {"F32"}
    assert suite["duplicate_of"].isna().tolist() == [True, False, True]
    assert suite.loc[1, "duplicate_of"] == 0
    # Integers stay integers although most of the column is empty.
    assert ",16192,0,0.0," in output.read_text() and ",16192.0" not in output.read_text()
    assert list(suite["status"]) == ["present"] * 3 and suite["findings"].isna().all()
    assert set(suite["n_tensors"]) == {len(load_file(weights[0]))}
    moved = suite["distance_to_previous"]
    assert np.isnan(moved[0]) and moved[1] == 0.0 and 0.5 < moved[2] < 2.0
    assert not (tmp_path / "refused.csv").exists()


# Kurtosis


def test_kurtosis_of_every_matrix_of_the_blocks(weights, tmp_path):
    tables = []
    for steps in ([2], [0, 1]):
        tables.append(str(tmp_path / f"k{steps[0]}.csv"))
        run_script(
            "measure_kurtosis", tmp_path,
            input={"weights": [weights[step] for step in steps]},
            output={"table": tables[-1]},
            params={"steps": steps, "layers": "blocks", "code": "abc"},
        )  # fmt: skip
    run_script(
        "gather_tables", tmp_path, input={"tables": tables},
        output={"table": str(tmp_path / "kurtosis.csv")},
        params={"in_step_order": True, "labels": {"suite": "tiny"}, "code": "abc"},
    )  # fmt: skip
    table = pd.read_csv(tmp_path / "kurtosis.csv")
    columns = ["suite", "step", "statistic", "tensor", "n_weights", "excess_kurtosis"]
    assert list(table.columns) == columns
    assert list(table["step"].unique()) == [0, 1, 2]
    for step, rows in table.groupby("step"):
        stored = {
            name: tensor.double().numpy()
            for name, tensor in load_file(weights[step]).items()
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


# Probes and audit


def summarise(folder: Path, sequences: str, table: str) -> None:
    """The script that turns scores of sequences into a table."""
    run_script(
        "summarise_probes", folder, input={"sequences": sequences}, output={"table": table},
        params={"resamples": 50, "code": "abc"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def probed(data, checkpoints, tmp_path_factory) -> Path:
    """The audit of three steps, probed in two jobs."""
    folder = tmp_path_factory.mktemp("probes")
    for steps in ([2], [0, 1]):
        stem = folder / f"step{steps[0]}"
        run_script(
            "probe_checkpoints", folder,
            input={"validation": str(data / "validation.safetensors"), "checkpoints": ["unread"]},
            output={"sequences": f"{stem}.parquet", "provenance": f"{stem}.json"},
            params={"folders": {s: checkpoints[s] for s in steps}, "probe": PROBE, "code": "abc"},
        )  # fmt: skip
        summarise(folder, f"{stem}.parquet", f"{stem}.csv")
    run_script(
        "gather_audit", folder,
        input={"tables": [str(folder / f"step{s}.csv") for s in (2, 0)],
               "scores": [str(folder / f"step{s}.parquet") for s in (2, 0)]},
        output={"audit": str(folder / "audit.csv"), "sequences": str(folder / "all.parquet")},
        params={"schedule": SCHEDULE, "total_steps": 40, "tokens_per_step": 128, "code": "abc"},
    )  # fmt: skip
    return folder


def test_the_audit_is_tidy_and_in_order(probed):
    audit = pd.read_csv(probed / "audit.csv")
    assert list(audit.columns) == AUDIT_COLUMNS
    assert list(audit["step"]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert list(audit["role"][:3]) == ["fp32", "low_bit", "high_bit"]
    assert list(audit["quantizer"][:3]) == ["fp32", "int4", "int8"]
    assert set(audit["suite"]) == {"tiny"}
    assert list(audit["tokens_seen"][::3]) == [0, 128, 256]
    # The rate of the update that leaves the step: a warm-up of two steps, then the maximum.
    assert list(audit["lr"][::3]) == [0.0, 0.005, 0.01]
    assert list(audit["lr_fraction"][::3]) == [0.0, 0.5, 1.0]
    assert set(audit["n_sequences"]) == {6} and set(audit["n_tokens"]) == {6 * 15}


def test_the_audit_agrees_with_the_scores_of_single_sequences(probed):
    audit = pd.read_csv(probed / "audit.csv").set_index(["step", "role"])
    sequences = pd.read_parquet(probed / "all.parquet")
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
    fp32 = audit.xs("fp32", level="role")
    zero = ["delta_nll_nats_per_token", "gap_pct", "gap_low_pct", "gap_high_pct",
            "kl_nats_per_token", "top1_changed_pct"]  # fmt: skip
    assert (fp32[zero] == 0).all(axis=None)
    assert (audit["gap_low_pct"] <= audit["gap_high_pct"]).all()
    assert (audit.drop("fp32", level="role")["kl_nats_per_token"] > 0).all()


def test_equal_weights_get_equal_rows_and_a_single_step_the_row_of_a_range(
    probed, data, checkpoints, tmp_path
):
    audit = pd.read_csv(probed / "audit.csv").drop(columns=["step", "tokens_seen"])
    scores = [c for c in audit if not c.startswith("lr")]
    first, second = audit[scores][:3], audit[scores][3:6]
    pd.testing.assert_frame_equal(first, second.reset_index(drop=True), check_exact=True)
    run_script(
        "probe_checkpoints", tmp_path,
        input={"validation": str(data / "validation.safetensors")},
        output={"sequences": str(tmp_path / "1.parquet"), "provenance": str(tmp_path / "1.json")},
        params={"folders": {1: checkpoints[1]}, "probe": PROBE, "code": "abc"},
    )  # fmt: skip
    summarise(tmp_path, str(tmp_path / "1.parquet"), str(tmp_path / "table"))
    lines = (probed / "step0.csv").read_text().splitlines()
    assert (tmp_path / "table").read_text().splitlines() == [lines[0], *lines[4:]]


def test_a_probe_says_what_made_it(probed, data):
    made_by = json.loads((probed / "step0.json").read_text())
    assert made_by["validation_sha256"] == sha256(data / "validation.safetensors")
    assert made_by["probe"] == PROBE and made_by["code"] == "abc"
    assert made_by["threads"] == 1 and made_by["device"] == "cpu"
    assert made_by["packages"]["torch"] == metadata.version("torch")


def test_a_model_that_has_diverged_is_named_and_the_others_are_probed(data, checkpoints, tmp_path):
    folder = tmp_path / "step7"
    folder.mkdir()
    tensors = load_file(f"{checkpoints[2]}/model.safetensors")
    name = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"
    tensors[name][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(Path(f"{checkpoints[2]}/config.json").read_text())
    run_script(
        "probe_checkpoints", tmp_path,
        input={"validation": str(data / "validation.safetensors")},
        output={"sequences": str(tmp_path / "s.parquet"), "provenance": str(tmp_path / "s.json")},
        params={"folders": {7: str(folder), 1: checkpoints[1]}, "probe": PROBE, "code": "abc"},
    )  # fmt: skip
    line = f"{folder}: 1 of 1024 {name} are not finite"
    assert f"not measured: {line}" in (tmp_path / "probe_checkpoints.log").read_text()
    assert json.loads((tmp_path / "s.json").read_text())["left_out"] == {"7": line}
    assert set(pd.read_parquet(tmp_path / "s.parquet").step) == {1}


def test_forks_are_gathered_in_the_order_given(tmp_path):
    tables = []
    for name in ("sgdr", "cosine"):
        tables.append(str(tmp_path / f"{name}.csv"))
        phase = {"update_phase": ["", "bump"], "gap_pct": [0.1, 1 / 3]}
        table = pd.DataFrame({"schedule": name, "step": [2, 1], "role": "low_bit", **phase})
        table.to_csv(tables[-1], index=False)
    run_script(
        "gather_tables", tmp_path, input={"tables": tables},
        output={"table": str(tmp_path / "forks.csv")},
        params={"in_step_order": False, "labels": {}, "code": "abc"},
    )  # fmt: skip
    parts = [Path(table).read_text().splitlines() for table in tables]
    expected = [parts[0][0], *parts[0][1:], *parts[1][1:]]
    assert (tmp_path / "forks.csv").read_text().splitlines() == expected, "to the last digit"


# Logs


def test_a_log_holds_what_was_said_and_the_traceback(tmp_path, capsys):
    with pytest.raises(FileNotFoundError):
        run_script(
            "gather_tables", tmp_path, input={"tables": [str(tmp_path / "missing.csv")]},
            output={"table": str(tmp_path / "forks.csv")},
            params={"in_step_order": False, "labels": {}, "code": "abc"},
        )  # fmt: skip
    log = (tmp_path / "gather_tables.log").read_text()
    assert "Traceback" in log and "missing.csv" in log
    assert not (tmp_path / "forks.csv").exists()
