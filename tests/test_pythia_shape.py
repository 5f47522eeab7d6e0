"""A checkpoint of the very shape of Pythia-160m goes through the probe's script once."""

import json
import runpy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from snakemake.iocontainers import Namedlist

from flatminima.intervals import summarise
from flatminima.model import build_model, save_model
from flatminima.text.tokens import write_tokens
from tests.workflow import ROOT

PROBE = {
    "quantizers": {
        "int4_g128": {"bits": 4, "granularity": "group", "group_size": 128, "symmetric": False},
        "int8_channel": {"bits": 8, "granularity": "channel", "symmetric": True},
    },
    "roles": {"int4_g128": "low_bit", "int8_channel": "high_bit"},
    "batch_size": 1, "resamples": 20, "device": "cpu",
}  # fmt: skip


def test_the_probe_of_a_checkpoint_as_large_as_pythia_160m(tmp_path):
    """Fresh weights in float16, as published: 48 matrices in 663,552 groups."""
    torch.set_num_threads(1)
    shape = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "max_length": 2048}
    folder = tmp_path / "step0"
    save_model(build_model(shape, 50304, seed=0).half(), folder)
    assert 324e6 < (folder / "model.safetensors").stat().st_size < 326e6
    write_tokens(tmp_path / "validation.safetensors",
                 np.random.default_rng(0).integers(0, 50277, (2, 32)).astype(np.int32))  # fmt: skip
    outputs = {"sequences": "step0.parquet", "provenance": "step0.json"}
    job = SimpleNamespace(
        input=Namedlist(fromdict={"validation": str(tmp_path / "validation.safetensors")}),
        output=Namedlist(fromdict={key: str(tmp_path / name) for key, name in outputs.items()}),
        params=Namedlist(fromdict={"folders": {0: str(folder)}, "probe": PROBE, "code": "abc"}),
        threads=1,
        log=[str(tmp_path / "log")],
    )
    script = ROOT / "workflow_scripts" / "probe_checkpoints.py"
    runpy.run_path(str(script), init_globals={"snakemake": job}, run_name="__main__")

    covered = json.loads((tmp_path / "step0.json").read_text())["coverage"]
    assert covered["int4_g128"]["matrices"] == covered["int8_channel"]["matrices"] == 48
    assert covered["int4_g128"]["groups"] == 663_552
    assert covered["int4_g128"]["weights"] == 84_934_656
    assert covered["int4_g128"]["of"] == 162_322_944
    assert sum(covered["int4_g128"]["left"].values()) == 162_322_944 - 84_934_656
    assert "84,934,656 of 162,322,944 weights quantized (52.3 %)" in (tmp_path / "log").read_text()

    scores = pd.read_parquet(tmp_path / "step0.parquet")
    table = summarise(scores, ["step"], resamples=20, seed=0).set_index("role")
    assert list(table["n_tokens"]) == [2 * 31] * 3
    # A fresh GPT-NeoX has logits of variance 0.4: ln(50304) + 0.2 nats in the mean.
    nll = table["nll_nats_per_token"]
    assert abs(nll["fp32"] - (np.log(50304) + 0.2)) < 0.3
    assert 0 < abs(nll["high_bit"] - nll["fp32"]) < abs(nll["low_bit"] - nll["fp32"]) < 0.3
