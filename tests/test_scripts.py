"""The scripts as Snakemake runs them, on a model of a few hundred weights."""

import json
import runpy
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from snakemake.iocontainers import Namedlist

from flatminima.files import read_content
from flatminima.model import build_model, save_model
from flatminima.text.corpus import write_documents
from tests.conftest import PROBE
from tests.conftest import TINY as SHAPE
from tests.workflow import ROOT
from workflow_scripts import gather_audit, gather_tables


def run_script(name: str, folder: Path, *, input, output, params=(), wildcards=()) -> Path:
    """Run a script as its rule does, its files in ``folder``; returns its log."""

    def files(part):
        return {
            k: [str(folder / f) for f in v] if isinstance(v, list) else str(folder / v)
            for k, v in part.items()
        }

    log = folder / f"{name}.log"
    job = SimpleNamespace(
        input=Namedlist(fromdict=files(input)),
        output=Namedlist(fromdict=files(output)),
        params=Namedlist(fromdict={"code": "abc", **dict(params)}),
        wildcards=SimpleNamespace(**{"suite": "tiny", **dict(wildcards)}),
        threads=1,
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
    run_script(
        "train_tokenizer",
        folder,
        input={"train": "train.jsonl"},
        output={"tokenizer": "tokenizer.json"},
        params={"vocab_size": 300},
    )
    run_script(
        "fix_batches",
        folder,
        input={
            "train_text": "train.jsonl",
            "validation_text": "validation.jsonl",
            "manifest": "text.json",
            "tokenizer": "tokenizer.json",
        },
        output={
            "validation": "validation.safetensors",
            "validation_manifest": "validation.json",
            "train": "train.safetensors",
            "train_manifest": "train.json",
        },
        params={
            "batches": {
                "validation": {"sequences": 6, "length": 16},
                "train": {"sequences": 20, "length": 16},
            },
            "vocabulary": {},
        },
    )
    return folder


DIVERGED_TENSOR = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"


@pytest.fixture
def folders(tmp_path) -> dict[int, str]:
    """Checkpoints by step; that of step 7 has diverged."""
    folders = {step: str(tmp_path / f"step{step}") for step in (7, 1)}
    for step, folder in folders.items():
        save_model(build_model(SHAPE, 300, seed=step), Path(folder))
    file = f"{folders[7]}/model.safetensors"
    tensors = load_file(file)
    tensors[DIVERGED_TENSOR][0, :2] = torch.tensor([float("nan"), float("inf")])
    save_file(tensors, file, metadata={"format": "pt"})
    return folders


def test_a_model_that_has_diverged_is_named_and_the_others_are_probed(data, folders, tmp_path):
    log = run_script(
        "probe_checkpoints",
        tmp_path,
        input={"validation": data / "validation.safetensors"},
        output={"sequences": "s.parquet", "provenance": "s.json"},
        params={"folders": folders, "probe": PROBE},
    )
    line = f"{folders[7]}: 2 of 1024 {DIVERGED_TENSOR} are not finite"
    assert f"not measured: {line}" in log.read_text()
    assert json.loads((tmp_path / "s.json").read_text())["left_out"] == {"7": line}
    assert set(pd.read_parquet(tmp_path / "s.parquet").step) == {1}


MECHANISM = {"batch_size": 4, "resamples": 5, "device": "cpu", "sequences": 4}
INT4 = {"bits": 4, "granularity": "group", "symmetric": False, "group_size": 16, "layers": "blocks"}
INT8 = {"bits": 8, "granularity": "channel", "symmetric": True, "layers": "blocks"}
SETTINGS = {
    "layers": {"low_bit": INT4},
    "activations": {"low_bit": INT4, "bits": 4},
    "curvature": {"layers": "blocks", "draws": 2},
    "sensitivity": {"low_bit": INT4, "high_bit": INT8, "draws": 1},
    "factorial": {
        "bits": [4],
        "group_sizes": [16],
        "formats": [],
        "low": {"bits": 4, "symmetric": False, "granularity": "g16"},
    },
}


@pytest.mark.parametrize(
    ("measure", "steps"),
    # Drift is one job: there is nothing to follow where it has no other checkpoint.
    [("drift", (7, 1)), *product(["kurtosis", *SETTINGS], [(7, 1), (7,)])],
)
def test_no_measurement_ends_at_a_model_that_has_diverged(
    measure, steps, data, folders, tmp_path, caplog
):
    folders = {step: folders[step] for step in steps}
    files = {step: f"{folder}/model.safetensors" for step, folder in folders.items()}
    table = f"{measure}.csv"
    outputs = {"table": table}
    inputs = {"validation": data / "validation.safetensors"}
    params = {"folders": folders, "settings": MECHANISM | SETTINGS.get(measure, {})}
    if measure == "kurtosis":
        inputs = {"weights": list(files.values())}
        params = {"steps": list(steps), "layers": "blocks"}
    if measure == "drift":
        inputs = {}
        outputs = {"drift": table, "displacement": "displacement.csv"}
        params = {"weights": files, "quantizer": INT4, "layers": "blocks", "spacing": 1}
    if measure == "factorial":
        outputs["sequences"] = "factorial.parquet"
    log = run_script(f"measure_{measure}", tmp_path, input=inputs, output=outputs, params=params)
    messages = log.read_text() + caplog.text
    assert "step 7 is left out" in messages and DIVERGED_TENSOR in messages
    assert set(read_content(tmp_path / table)["step"]) == set(steps) - {7}


def test_ranges_that_come_in_any_order_are_gathered_in_step_order(tmp_path):
    for first in (0, 40):
        pd.DataFrame({"step": [first, first + 20]}).to_csv(tmp_path / f"{first}.csv", index=False)
    turned = [tmp_path / "40.csv", tmp_path / "0.csv"]
    gathered = tmp_path / "gathered.csv"
    gather_tables.main(turned, gathered, in_step_order=True, labels={})
    assert pd.read_csv(gathered)["step"].to_list() == [0, 20, 40, 60]
    gather_audit.main(turned, turned, [], "tiny", None, 60, 512, gathered, tmp_path / "scores.csv")
    assert pd.read_csv(gathered)["step"].to_list() == [0, 20, 40, 60]


def test_a_job_that_fails_leaves_its_traceback_in_its_log_and_no_file(tmp_path):
    with pytest.raises(SystemExit):
        run_script(
            "gather_tables",
            tmp_path,
            input={"tables": ["missing.csv"]},
            output={"table": "all.csv"},
            params={"in_step_order": False, "labels": {}},
        )
    log = (tmp_path / "gather_tables.log").read_text()
    assert "Traceback" in log and "missing.csv" in log
    assert not (tmp_path / "all.csv").exists()
