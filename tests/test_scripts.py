"""The thin scripts, run as Snakemake runs them, with a stand-in for its object."""

import json
import runpy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.workflow import ROOT
from workflow_scripts.lib.checkpoints import save_model
from workflow_scripts.lib.tokens import write_tokens
from workflow_scripts.lib.training import build_model

ARCHITECTURE = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_length": 16}
PROBE = {
    "quantizers": {
        "int4": {"bits": 4, "granularity": "group", "group_size": 8, "symmetric": False},
        "int8": {"bits": 8, "granularity": "channel", "symmetric": True},
    },
    "roles": {"int4": "low_bit", "int8": "high_bit"},
    "batch_size": 4,
    "resamples": 20,
    "device": "cpu",
}


class Named(dict):
    """Named files or values that can be read as attributes, items or by ``**``."""

    __getattr__ = dict.__getitem__


def run(script: str, folder, *, inputs=(), outputs=(), params=(), wildcards=()) -> None:
    """Run one script with the given named inputs, outputs, params and wildcards."""
    stand_in = SimpleNamespace(
        input=Named(inputs), output=Named(outputs), params=Named(params), threads=1,
        wildcards=Named(wildcards), log=[str(folder / f"{script}.log")],
    )  # fmt: skip
    path = ROOT / "workflow_scripts" / f"{script}.py"
    runpy.run_path(str(path), init_globals={"snakemake": stand_in}, run_name="__main__")


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Two tiny random checkpoints (step 0 and 1 the same) and validation tokens."""
    folder = tmp_path_factory.mktemp("suite")
    for step, seed in [(0, 0), (1, 0), (2, 1)]:
        save_model(build_model(ARCHITECTURE, 64, seed), folder / f"step{step}")
    tokens = np.random.default_rng(0).integers(0, 64, (8, 16)).astype(np.int32)
    write_tokens(folder / "validation.safetensors", tokens)
    return folder


def weights(suite) -> list[str]:
    return [str(suite / f"step{step}" / "model.safetensors") for step in (0, 1, 2)]


def test_probe_and_gather(suite, tmp_path):
    outputs = {
        "table": tmp_path / "p.csv", "sequences": tmp_path / "p.parquet",
        "provenance": tmp_path / "p.json",
    }  # fmt: skip
    folders = {step: str(suite / f"step{step}") for step in (0, 1, 2)}
    run(
        "probe_checkpoints", tmp_path, outputs=outputs,
        inputs={"validation": str(suite / "validation.safetensors")},
        params={"folders": folders, "probe": PROBE, "code": "0" * 16},
    )  # fmt: skip
    probes = pd.read_csv(outputs["table"])
    assert set(probes["role"]) == {"fp32", "low_bit", "high_bit"}
    assert (probes["n_tokens"] == 8 * 15).all()
    by_step = probes.set_index(["step", "role"])["nll_nats_per_token"]
    assert by_step[0].equals(by_step[1])
    assert json.loads(outputs["provenance"].read_text())["code"] == "0" * 16

    schedule = {
        "schedule": "cosine", "lr_max": 0.1, "lr_min": 0.01, "warmup_steps": 1,
    }  # fmt: skip
    audit = tmp_path / "audit.csv"
    run(
        "gather_audit", tmp_path,
        inputs={"tables": [outputs["table"]], "sequences": [outputs["sequences"]]},
        outputs={"audit": audit, "sequences": tmp_path / "all.parquet"},
        params={"schedule": schedule, "training": schedule, "total_steps": 2,
                "tokens_per_step": 100},
        wildcards={"suite": "toy"},
    )  # fmt: skip
    table = pd.read_csv(audit)
    assert table["suite"].eq("toy").all()
    assert table.groupby("step")["tokens_seen"].first().tolist() == [0, 100, 200]
    assert table["lr_fraction"].max() == 1.0
    assert (tmp_path / "gather_audit.log").read_text().startswith("final gap: low bit")


def test_describe_and_gather(suite, tmp_path):
    run(
        "describe_checkpoints", tmp_path, inputs={"weights": weights(suite)},
        outputs={"table": tmp_path / "r.csv"},
        params={"steps": [0, 1, 2], "tokens_per_step": 10},
    )  # fmt: skip
    run(
        "gather_suite", tmp_path, inputs={"tables": [tmp_path / "r.csv"]},
        outputs={"table": tmp_path / "suite.csv"},
    )  # fmt: skip
    table = pd.read_csv(tmp_path / "suite.csv")
    assert table["duplicate_of"].tolist()[1] == 0
    assert table["duplicate_of"].isna().tolist() == [True, False, True]
    assert table["dtype"].eq("F32").all()
    assert (tmp_path / "gather_suite.log").read_text() == "3 revisions, 2 of them distinct\n"


def test_kurtosis_and_gather(suite, tmp_path):
    run(
        "measure_kurtosis", tmp_path, inputs={"weights": weights(suite)},
        outputs={"table": tmp_path / "k.csv"}, params={"steps": [0, 1, 2], "layers": "blocks"},
    )  # fmt: skip
    run(
        "gather_kurtosis", tmp_path, inputs={"tables": [tmp_path / "k.csv"]},
        outputs={"table": tmp_path / "kurtosis.csv"}, wildcards={"suite": "toy"},
    )  # fmt: skip
    table = pd.read_csv(tmp_path / "kurtosis.csv")
    per_tensor = table[(table["step"] == 0) & (table["statistic"] == "per_tensor")]
    assert len(per_tensor) == 8, "four matrices in each of two blocks, no head, no embedding"
    summary = table[(table["step"] == 0) & (table["tensor"] == "all")].set_index("statistic")
    mean = summary.loc["mean_over_tensors", "excess_kurtosis"]
    assert mean == pytest.approx(per_tensor["excess_kurtosis"].mean(), abs=1e-12)
    assert summary.loc["pooled", "n_weights"] == per_tensor["n_weights"].sum()


def test_a_failing_script_leaves_its_traceback_in_the_log(tmp_path):
    with pytest.raises(FileNotFoundError):
        run(
            "gather_forks", tmp_path, inputs={"tables": [tmp_path / "missing.csv"]},
            outputs={"table": tmp_path / "forks.csv"},
        )  # fmt: skip
    log = (tmp_path / "gather_forks.log").read_text()
    assert "Traceback" in log and "missing.csv" in log
    assert not (tmp_path / "forks.csv").exists()
