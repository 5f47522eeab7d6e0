"""Free scales: outputs stay, columns become equal, and a planted collapse is taken back."""

import pytest
import torch

from flatminima.config.loading import ROOT, complete_config, merge, read_yaml
from flatminima.equalization import (
    ROUTES,
    equalize,
    equalizing_scales,
    free_channels,
    rescale,
)
from flatminima.errors import ConfigError
from flatminima.layers import linear_layers
from flatminima.model import load_model, save_model
from flatminima.quantizer_specs import FP32, printed_names, read_spec
from flatminima.quantizers import coverage, coverage_line, quantized_weights
from flatminima.scoring import score_quantized
from tests.conftest import affine, weights_of
from tests.zoo import build
from workflow_scripts import plant_scales

INT4 = {"bits": 4, "granularity": "group", "group_size": 8, "symmetric": False}


@torch.no_grad()
def with_uneven_vectors(model):
    """Gains, biases and columns that are not all alike, in float64."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        noise = torch.rand(parameter.shape, generator=generator)
        parameter += 0.3 * noise if parameter.ndim == 1 else 0.02 * noise
    return model.double().eval()


def logits(model):
    ids = torch.arange(1, 13)[None]
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits


@pytest.fixture
def in_float64(monkeypatch):
    """Nothing is cast to float32: some families do this inside, or make constants of it."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("measure", ["norm", "max"])
@pytest.mark.parametrize("family", ROUTES)
def test_the_function_stays_and_columns_become_equal(family, measure, in_float64):
    model = with_uneven_vectors(build(family))
    model.config._experts_implementation = "eager"  # the fused product has no float64
    before = logits(model)
    assert len(free_channels(model)) == len(ROUTES[family]) * model.config.num_hidden_layers

    equalize(model, measure)
    torch.testing.assert_close(logits(model), before, rtol=1e-10, atol=1e-10)
    layers = linear_layers(model)
    written = {name for channels in free_channels(model) for name, _ in channels.writers}
    for channels in free_channels(model):
        # The rows of the values are scaled last, which changes the columns of their weight.
        if any(name in written for name, _ in channels.readers):
            continue
        scales = equalizing_scales(layers, channels, measure)
        torch.testing.assert_close(scales, torch.ones_like(scales), rtol=1e-9, atol=0)


def test_scaled_channels_change_the_int4_gap_alone_and_equalization_takes_it_back(
    tiny_model, tiny_tokens
):
    """The same function, with some columns eight times as large behind a smaller gain."""
    specs = {
        "int4": read_spec(INT4),
        "int4_equalized": read_spec({**INT4, "equalize": "norm"}),
    }

    def measured():
        """The FP32 loss, and the divergence from FP32 of each quantizer."""
        scores, _ = score_quantized(tiny_model, tiny_tokens, specs, batch_size=4)
        divergences = {name: sum(record.kl_nats) for name, record in scores.items()}
        return divergences | {FP32: scores[FP32].mean_nll()}

    with torch.no_grad():
        for parameter in tiny_model.parameters():
            parameter *= 8.0 if parameter.ndim == 2 else 1.0
    before = measured()
    for channels in free_channels(tiny_model):
        factors = torch.ones(len(channels.readers[0][1]), dtype=torch.float64)
        if "norm" in channels.name:
            factors[:4] = 8.0
        rescale(tiny_model, [(channels, factors)])
    after = measured()
    assert after[FP32] == pytest.approx(before[FP32], rel=1e-5)
    assert after["int4"] > 2 * before["int4"]
    assert after["int4_equalized"] == pytest.approx(before["int4_equalized"], rel=0.05)


def test_a_family_without_routes_is_left_alone_and_a_line_says_so():
    model = build("mamba")
    spec = read_spec({**INT4, "equalize": "max"})
    plain = quantized_weights(model, read_spec(INT4))
    for name, weight in quantized_weights(model, spec).items():
        assert torch.equal(weight, plain[name])
    assert "not equalized" in coverage_line(coverage(model, spec))


def test_experts_keep_their_columns_because_the_router_reads_them_too():
    covered = coverage(build("mixtral"), read_spec({**INT4, "equalize": "norm"}))
    assert any("experts" in kind for kind in covered["not_equalized"])
    assert not any("self_attn.q_proj" in kind for kind in covered["not_equalized"])


def test_a_column_of_zeros_is_left_as_it_is(tiny_model):
    channels = free_channels(tiny_model)[0]
    [(name, _)] = channels.readers
    before = weights_of(tiny_model)[name]
    with torch.no_grad():
        dict(tiny_model.named_parameters())[name][:, 2] = 0.0
    scales = equalizing_scales(linear_layers(tiny_model), channels, "norm")
    assert scales[2] == 1.0 and torch.isfinite(scales).all() and before[:, 2].any()


def test_names_tell_the_repair_and_the_default_has_none():
    plain, equalized = affine(4, "tensor", True), read_spec({**INT4, "equalize": "norm"})
    names = printed_names({"a": plain, "b": equalized})
    assert names["a"] == "INT4" and "equalized" in names["b"]


def test_planted_checkpoints_have_the_same_fp32_and_a_growing_int4_gap(
    tiny_model, tiny_tokens, tmp_path
):
    """The script, with a scale that rises: INT4 is hurt more and more, FP32 not at all."""
    with torch.no_grad():
        for parameter in tiny_model.parameters():
            parameter *= 8.0 if parameter.ndim == 2 else 1.0
    save_model(tiny_model, tmp_path / "run")
    folders = {step: tmp_path / f"step{step}" for step in (0, 1, 2)}
    plant_scales.main(
        sources=dict.fromkeys(folders, str(tmp_path / "run")),
        folders={step: str(folder) for step, folder in folders.items()},
        scales={0: 1.0, 1: 4.0, 2: 16.0},
        channels=4,
    )
    losses = []
    divergences = []
    for folder in folders.values():
        scores, _ = score_quantized(
            load_model(folder), tiny_tokens, {"int4": read_spec(INT4)}, batch_size=4
        )
        losses.append(scores[FP32].mean_nll())
        divergences.append(sum(scores["int4"].kl_nats))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    # Not the added loss: of random weights, rounding may lower it by chance.
    assert divergences[0] < divergences[1] < divergences[2]
    first_weights = (folders[0] / "model.safetensors").read_bytes()
    assert first_weights == (tmp_path / "run/model.safetensors").read_bytes(), "scale 1 changes all"


@pytest.mark.parametrize(
    ("change", "key_word"),
    [
        ({"run": "mimi"}, "scales.run"),
        ({"run": "pythia-160m"}, "scales.run"),
        ({"channels": 100}, "scales.channels"),
        ({"start": 5720}, "scales.start"),
    ],
)
def test_a_mistake_in_the_planted_scales_is_one_line(change, key_word):
    suites = {"planted": {"scales": change}}
    with pytest.raises(ConfigError, match=key_word) as refusal:
        complete_config(merge(read_yaml(ROOT / "config.yaml"), {"suites": suites}))
    assert "\n" not in str(refusal.value)
