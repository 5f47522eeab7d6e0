"""Real quantized inference: each format against its definition, and what is skipped by name."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from flatminima.intervals import summarise
from flatminima.layers import linear_layers
from flatminima.model import build_model, save_model
from flatminima.quantizers import linear_weights
from flatminima.scoring import Prober
from flatminima.text.tokens import write_tokens
from flatminima.tools import deployed
from flatminima.tools.audit import probe_settings
from flatminima.tools.audit_options import AuditOptions
from flatminima.tools.deployed import (
    FORMATS,
    Format,
    NotHere,
    _linear_modules,
    gguf_model,
    probe_deployed,
    score_format,
)
from workflow_scripts import probe_deployed as probe_deployed_script

SETTINGS = probe_settings(AuditOptions("x", group_size=32, device="cpu"))


def wide_model(hidden=32):
    """Weights as large as a trained model's, so that 4 bits cost something."""
    shape = {"hidden_size": hidden, "num_layers": 2, "num_heads": 2, "max_length": 16}
    model = build_model(shape, 64, seed=1)
    with torch.no_grad():
        for weight in linear_weights(model).values():
            weight.mul_(6.0)
    return model.eval()


@pytest.fixture
def validation(tmp_path):
    path = tmp_path / "validation.safetensors"
    write_tokens(path, np.random.default_rng(0).integers(0, 64, (24, 16)).astype(np.int32))
    return str(path)


@pytest.fixture
def prober(validation):
    return Prober(validation, SETTINGS, torch.get_num_threads())


def q4_1(rows):
    """Q4_1 by its definition: scale and minimum of 32 weights in float16, codes 0 to 15."""
    blocks = rows.reshape(-1, 32)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scale = (high - low) / np.float32(15)
    inverse = np.where(scale == 0, 0, 1 / np.where(scale == 0, 1, scale)).astype(np.float32)
    codes = np.clip(np.trunc((blocks - low) * inverse + np.float32(0.5)), 0, 15)
    half = [part.astype(np.float16).astype(np.float32) for part in (scale, low)]
    return (codes * half[0] + half[1]).reshape(rows.shape)


def test_q4_1_is_its_definition():
    model = wide_model()
    before = {name: w.detach().numpy().copy() for name, w in linear_weights(model).items()}
    head = model.get_output_embeddings().weight.detach().clone()
    changed = gguf_model(model, "blocks", 32, kind="Q4_1")
    for name, weight in linear_weights(changed).items():
        np.testing.assert_array_equal(weight.detach().numpy(), q4_1(before[name]))
    assert torch.equal(changed.get_output_embeddings().weight, head)


def test_q8_0_is_within_half_a_step_whatever_holds_the_weights():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2))
    for model in (wide_model(), gpt2):
        before = {name: layer.matrices().clone() for name, layer in linear_layers(model).items()}
        for name, layer in linear_layers(gguf_model(model, "blocks", 32, kind="Q8_0")).items():
            blocks = before[name].reshape(-1, 32)
            # Half a step, and the rounding of the scale to float16 over up to 127 steps.
            step = blocks.abs().amax(dim=1, keepdim=True) / 127
            error = (layer.matrices().reshape(-1, 32) - blocks).abs()
            assert (error <= step * (0.5 + 127 * 2**-11 + 1e-6)).all()
            assert error.max() > 0
    with pytest.raises(NotHere, match=r"c_attn.weight .* nn.Linear"):
        _linear_modules(gpt2, "blocks")


def zeroed(model, layers, group):
    with torch.no_grad():
        for weight in linear_weights(model, layers).values():
            weight.zero_()
    return model


def fails(model, layers, group):
    raise NotImplementedError("no kernel\nfor this device")


def test_a_converted_model_is_scored_beside_its_own_full_precision(prober, monkeypatch, caplog):
    model = wide_model()
    formats = {
        "same": Format("numpy", "low_bit", lambda model, *_: model),
        "zeroed": Format("numpy", "high_bit", zeroed),
        "fails": Format("numpy", "low_bit", fails),
        "not here": Format("none_such", "low_bit", fails),
    }
    monkeypatch.setattr(deployed, "FORMATS", formats)
    before = {name: weight.detach().clone() for name, weight in linear_weights(model).items()}
    simulated = prober(model, 5)
    table = probe_deployed(model, prober, 5, simulated, resamples=20).set_index("format")
    for name, weight in linear_weights(model).items():
        assert torch.equal(weight, before[name])
    same = table.loc["same"]
    assert same.gap_pct == 0.0 and same.kl_nats_per_token == 0.0 and same.top1_changed_pct == 0.0
    gaps = summarise(simulated, ["step"], resamples=20, seed=0).set_index("role")["gap_pct"]
    assert same.simulated_gap_pct == gaps["low_bit"] == -same.difference_points
    assert table.loc["zeroed"].counterpart == "int8_channel"
    fp32_nll = prober(zeroed(wide_model(), "blocks", 0), 5).query("role == 'fp32'")["nll_nats"]
    expected = fp32_nll.sum() / (24 * 15)
    assert table.loc["zeroed"].nll_nats_per_token == pytest.approx(expected, rel=1e-12)
    assert table.n_sequences.tolist()[:2] == [24, 24] and table.n_tokens["same"] == 24 * 15
    # What cannot be run is a row with its reason.
    assert table.status.tolist() == ["measured", "measured", "skipped", "skipped"]
    assert table.gap_pct.isna().tolist() == [False, False, True, True]
    assert table.reason["fails"] == "no kernel for this device"
    assert table.reason["not here"] == "the package none_such is not installed"
    assert "step 5: fails skipped: no kernel" in caplog.text


def test_script_writes_the_same_bytes_twice(validation, tmp_path):
    folders = {step: str(tmp_path / f"step{step}") for step in (4, 9)}
    for folder in folders.values():
        save_model(wide_model(), Path(folder))
    for name in ("a.csv", "b.csv"):
        probe_deployed_script.main(folders, validation, SETTINGS, 20, 1, "tiny", tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    table = pd.read_csv(tmp_path / "a.csv")
    assert table.groupby("step").format.apply(list).to_dict() == {4: [*FORMATS], 9: [*FORMATS]}
    assert set(table.suite) == {"tiny"}
    for _, rows in table.set_index("format").groupby("step"):
        q4 = rows.loc["gguf_q4_1"]
        q8 = rows.loc["gguf_q8_0"]
        assert (q4.status, q8.status, q4.version) == ("measured", "measured", q8.version)
        assert q4.difference_points == pytest.approx(q4.gap_pct - q4.simulated_gap_pct)
        assert q4.kl_nats_per_token > 50 * q8.kl_nats_per_token > 0
    # Q4_1 of 32 is the simulated quantizer of the same groups but for a zero point and float16.
    scores = Prober(validation, SETTINGS, 1)(wide_model(), 4)
    low = summarise(scores, ["step"], resamples=20, seed=0).set_index("role").loc["low_bit"]
    assert q4.kl_nats_per_token == pytest.approx(low.kl_nats_per_token, rel=0.5)


def installed(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed"
    )


@installed("torchao")
def test_torchaos_unpacked_4_bits_are_the_simulated_quantizer(prober):
    model = wide_model()
    table = probe_deployed(model, prober, 7, prober(model, 7), resamples=20).set_index("format")
    row = table.loc["torchao_intx4"]
    assert row.status == "measured"
    assert row.gap_pct == pytest.approx(row.simulated_gap_pct, rel=1e-4)
    assert table.loc["torchao_int8"].status == "measured"
    if not torch.cuda.is_available():
        assert table.loc["torchao_int4"].reason == "its packed 4-bit kernels need a CUDA device"


@installed("bitsandbytes")
def test_bitsandbytes_is_measured(prober):
    with pytest.raises(NotHere, match="has 32 inputs"):
        score_format(wide_model(), prober, "bitsandbytes_nf4")
    model = wide_model(hidden=64)
    for name in ("bitsandbytes_nf4", "bitsandbytes_int8"):
        assert max(score_format(model, prober, name).kl_nats) > 0
    assert isinstance(dict(model.named_modules())["gpt_neox.layers.0.mlp.dense_h_to_4h"], nn.Linear)
