"""The scripts as Snakemake runs them, one after another on a model of a few hundred weights."""

import hashlib
import json
import runpy
import shutil
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


def run_script(name: str, folder: Path, *, input, output, params=(), wildcards=()) -> Path:
    """Run a script as its rule does, its files in ``folder``; returns its log."""

    def files(part):
        return {k: [str(folder / f) for f in v] if isinstance(v, list) else str(folder / v)
                for k, v in part.items()}  # fmt: skip

    log = folder / f"{name}.log"
    job = SimpleNamespace(
        input=Namedlist(fromdict=files(input)), output=Namedlist(fromdict=files(output)),
        params=Namedlist(fromdict={"code": "abc", **dict(params)}),
        wildcards=SimpleNamespace(**{"suite": "tiny", **dict(wildcards)}),
        threads=1, log=[str(log)],
    )  # fmt: skip
    script = ROOT / "workflow_scripts" / f"{name}.py"
    runpy.run_path(str(script), init_globals={"snakemake": job}, run_name="__main__")
    return log


def sha256(path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


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
    run_script("train_tokenizer", folder, input={"train": "train.jsonl"},
               output={"tokenizer": "tokenizer.json"}, params={"vocab_size": 300})  # fmt: skip
    run_script(
        "fix_batches", folder,
        input={"train_text": "train.jsonl", "validation_text": "validation.jsonl",
               "manifest": "text.json", "tokenizer": "tokenizer.json"},
        output={"validation": "validation.safetensors", "validation_manifest": "validation.json",
                "train": "train.safetensors", "train_manifest": "train.json"},
        params={"batches": {"validation": {"sequences": 6, "length": 16},
                            "train": {"sequences": 20, "length": 16}}, "vocabulary": {}},
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


def test_batches_know_where_they_come_from(data):
    tokenizer = json.loads((data / "tokenizer.json").read_text())
    assert len(tokenizer["model"]["vocab"]) == 300
    for split, sequences in (("validation", 6), ("train", 20)):
        record = json.loads((data / f"{split}.json").read_text())
        assert record["sha256"] == sha256(data / f"{split}.safetensors")
        assert record["tokenizer_sha256"] == sha256(data / "tokenizer.json")
        assert record["sequences"] == sequences and record["text"] == {"source": "a test"}
        assert load_file(data / f"{split}.safetensors")["tokens"].shape == (sequences, 16)


def test_the_suite_table_says_what_each_checkpoint_is(weights, tmp_path):
    for steps in ([1, 2], [0]):  # two jobs, the later steps first
        run_script(
            "describe_checkpoints", tmp_path, input={"weights": [weights[step] for step in steps]},
            output={"table": f"{steps[0]}.csv", "fingerprints": f"{steps[0]}.parquet"},
            params={"steps": steps, "tokens_per_step": 128},
        )  # fmt: skip
    run_script(
        "gather_suite", tmp_path, output={"table": "suite.csv"},
        input={"tables": ["1.csv", "0.csv"], "fingerprints": ["1.parquet", "0.parquet"]},
        params={"severity": {}, "refused": str(tmp_path / "refused.csv"), "measured_by": None},
    )  # fmt: skip
    suite = pd.read_csv(tmp_path / "suite.csv").set_index("step")
    assert list(suite.index) == [0, 1, 2]
    assert list(suite["sha256"]) == [sha256(weights[step]) for step in STEPS]
    assert list(suite["bytes"]) == [Path(weights[step]).stat().st_size for step in STEPS]
    assert list(suite["tokens_seen"]) == [0, 128, 256]
    assert list(suite["revision"]) == ["step0", "step1", "step2"]
    assert set(suite["dtype"]) == {"F32"} and set(suite["n_tensors"]) == {
        len(load_file(weights[0]))
    }
    assert suite["duplicate_of"].isna().tolist() == [True, False, True]
    assert suite.loc[1, "duplicate_of"] == 0
    # Integers stay integers although most of the column is empty.
    text = (tmp_path / "suite.csv").read_text()
    assert ",16192,0,0.0," in text and ",16192.0" not in text
    assert list(suite["status"]) == ["present"] * 3 and suite["findings"].isna().all()
    moved = suite["distance_to_previous"]
    assert np.isnan(moved[0]) and moved[1] == 0.0 and 0.5 < moved[2] < 2.0
    assert not (tmp_path / "refused.csv").exists()


def test_kurtosis_of_every_matrix_of_the_blocks(weights, tmp_path):
    for steps in ([2], [0, 1]):
        run_script(
            "measure_kurtosis", tmp_path, input={"weights": [weights[step] for step in steps]},
            output={"table": f"{steps[0]}.csv"}, params={"steps": steps, "layers": "blocks"},
        )  # fmt: skip
    run_script(
        "gather_tables", tmp_path, input={"tables": ["2.csv", "0.csv"]},
        output={"table": "kurtosis.csv"},
        params={"in_step_order": True, "labels": {"suite": "tiny"}},
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


def probe(folder: Path, data: Path, stem: str, folders: dict) -> Path:
    """Probe checkpoints and summarise their scores; returns the log."""
    log = run_script(
        "probe_checkpoints", folder, input={"validation": data / "validation.safetensors"},
        output={"sequences": f"{stem}.parquet", "provenance": f"{stem}.json"},
        params={"folders": folders, "probe": PROBE},
    )  # fmt: skip
    run_script("summarise_probes", folder, input={"sequences": f"{stem}.parquet"},
               output={"table": f"{stem}.csv"}, params={"resamples": 50})  # fmt: skip
    return log


@pytest.fixture(scope="module")
def probed(data, checkpoints, tmp_path_factory) -> Path:
    """The audit of three steps, probed in two jobs."""
    folder = tmp_path_factory.mktemp("probes")
    for steps in ([2], [0, 1]):
        probe(folder, data, f"step{steps[0]}", {step: checkpoints[step] for step in steps})
    run_script(
        "gather_audit", folder, output={"audit": "audit.csv", "sequences": "all.parquet"},
        input={"tables": ["step2.csv", "step0.csv"], "scores": ["step2.parquet", "step0.parquet"]},
        params={"schedule": SCHEDULE, "total_steps": 40, "tokens_per_step": 128},
    )  # fmt: skip
    return folder


def test_the_audit_is_tidy_and_agrees_with_the_scores_of_single_sequences(probed):
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
    scores = [c for c in audit if not c.startswith(("lr", "step", "tokens_seen"))]
    equal = audit[scores][3:6].reset_index(drop=True)  # of equal weights
    pd.testing.assert_frame_equal(audit[scores][:3], equal, check_exact=True)

    audit = audit.set_index(["step", "role"])
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


def test_a_probe_says_what_made_it_and_a_single_step_has_the_row_of_a_range(
    probed, data, checkpoints, tmp_path
):
    made_by = json.loads((probed / "step0.json").read_text())
    assert made_by["validation_sha256"] == sha256(data / "validation.safetensors")
    assert made_by["probe"] == PROBE and made_by["code"] == "abc"
    assert made_by["threads"] == 1 and made_by["device"] == "cpu"
    assert made_by["packages"]["torch"] == metadata.version("torch")
    probe(tmp_path, data, "1", {1: checkpoints[1]})
    lines = (probed / "step0.csv").read_text().splitlines()
    assert (tmp_path / "1.csv").read_text().splitlines() == [lines[0], *lines[4:]]


def test_a_model_that_has_diverged_is_named_and_the_others_are_probed(data, checkpoints, tmp_path):
    folder = Path(shutil.copytree(checkpoints[2], tmp_path / "step7"))
    tensors, name = (
        load_file(folder / "model.safetensors"),
        "gpt_neox.layers.0.mlp.dense_h_to_4h.weight",
    )
    tensors[name][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    log = probe(tmp_path, data, "s", {7: str(folder), 1: checkpoints[1]})
    line = f"{folder}: 1 of 1024 {name} are not finite"
    assert f"not measured: {line}" in log.read_text()
    assert json.loads((tmp_path / "s.json").read_text())["left_out"] == {"7": line}
    assert set(pd.read_parquet(tmp_path / "s.parquet").step) == {1}


def test_tables_are_gathered_in_the_order_given_and_a_log_holds_the_traceback(tmp_path):
    names = ["sgdr.csv", "cosine.csv"]
    for name in names:
        phase = {"update_phase": ["", "bump"], "gap_pct": [0.1, 1 / 3]}
        table = pd.DataFrame({"schedule": name, "step": [2, 1], "role": "low_bit", **phase})
        table.to_csv(tmp_path / name, index=False)
    job = {"output": {"table": "forks.csv"}, "params": {"in_step_order": False, "labels": {}}}
    run_script("gather_tables", tmp_path, input={"tables": names}, **job)
    first, second = ((tmp_path / name).read_text().splitlines() for name in names)
    gathered = (tmp_path / "forks.csv").read_text().splitlines()
    assert gathered == [*first, *second[1:]], "to the last digit"

    (tmp_path / "forks.csv").unlink()
    with pytest.raises(FileNotFoundError):
        run_script("gather_tables", tmp_path, input={"tables": ["missing.csv"]}, **job)
    log = (tmp_path / "gather_tables.log").read_text()
    assert "Traceback" in log and "missing.csv" in log
    assert not (tmp_path / "forks.csv").exists()
