"""The quantizers against an oracle that shares no code with them, and on hostile input."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flatminima.errors import UserError
from flatminima.layers import kind_of
from flatminima.model import build_model
from flatminima.quantizer_specs import (
    CODE_BOOKS,
    named_quantizer,
    printed_names,
    read_spec,
    read_specs,
)
from flatminima.quantizers import (
    affine_codes,
    coverage,
    coverage_line,
    fake_quantize,
    linear_weights,
    quantized_weights,
)
from tests.conftest import affine
from tests.oracles import nf4_book, quantize_code_book, quantize_group, quantize_matrix

INT4 = affine(4, "group", symmetric=False, group_size=128)
INT8 = affine(8, "channel", symmetric=True)
TENSOR = affine(3, "tensor", symmetric=False)

# The code book that QLoRA's authors publish (appendix E).
PUBLISHED_NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip
HOSTILE = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-6, -1e-6, 1e-30, -1e-30, 1e-38, 1e-40, -1e-45, 1e30]
HOSTILE = [float(np.float32(x)) for x in HOSTILE]
ELEMENTS = {
    "ordinary": st.floats(-1, 1, width=32),
    "any size": st.floats(-(2.0**100), 2.0**100, width=32),
    "hostile": st.sampled_from(HOSTILE),
    "halves": st.integers(-20, 20).map(lambda k: k / 2),  # ties, where the range is 2^b - 1
    "zero and one": st.sampled_from([0.0, 1.0]),
}


@st.composite
def matrices(draw, kinds=tuple(ELEMENTS)):
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 20)))
    elements = ELEMENTS[draw(st.sampled_from(kinds))]
    return draw(arrays(np.float32, shape, elements=elements))


@st.composite
def specs(draw, granularities=("tensor", "channel", "group")):
    granularity = draw(st.sampled_from(granularities))
    size = draw(st.integers(1, 20)) if granularity == "group" else None
    return affine(draw(st.integers(2, 8)), granularity, draw(st.booleans()), size)


def quantize(weight, spec):
    return fake_quantize(torch.from_numpy(np.ascontiguousarray(weight)), spec).numpy()


def oracle(weight, spec):
    return quantize_matrix(weight, spec.bits, spec.granularity, spec.symmetric, spec.group_size)


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


# Agreement with the oracle, bit for bit


@given(matrices(), specs())
def test_values_agree_with_the_oracle_to_the_bit(weight, spec):
    assert_same_bits(quantize(weight, spec), oracle(weight, spec)[0])


@given(matrices(), st.integers(2, 8), st.booleans())
def test_codes_zero_point_and_scale_agree_with_the_oracle_to_the_bit(weight, bits, symmetric):
    spec = affine(bits, "channel", symmetric)
    codes, zero, scale = affine_codes(torch.from_numpy(weight), spec)
    for row, weights in enumerate(weight):
        _, expected_codes, expected_zero, expected_scale = quantize_group(weights, bits, symmetric)
        assert scale[row].item() == expected_scale
        if expected_codes is not None:
            assert zero[row].item() == expected_zero
            assert codes[row].tolist() == expected_codes


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_weights_on_the_edge_between_two_codes_agree_with_the_oracle(bits):
    """Multiples of half a scale: multiplying by 1 / scale would round some another way."""
    scales = np.random.default_rng(bits).uniform(0.5, 1.0, (200, 1))
    for symmetric in (False, True):
        top = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
        halves = np.arange(-2 * top, 2 * top + 1) if symmetric else np.arange(2 * top + 1)
        weight = (scales * halves / 2).astype(np.float32)
        spec = affine(bits, "channel", symmetric)
        expected, groups = oracle(weight, spec)
        scale = np.array([scale for *_, scale in groups], np.float32)[:, None]
        assert (weight / scale != np.round(weight / scale)).mean() > 0.2  # ties, most of them exact
        assert_same_bits(quantize(weight, spec), expected)


def test_a_strided_matrix_with_remainders_agrees_with_the_oracle():
    weight = np.random.default_rng(0).normal(0, 0.02, (300, 6)).astype(np.float32).T
    for spec in (INT4, INT8, TENSOR):
        found = fake_quantize(torch.from_numpy(weight), spec).numpy()
        assert_same_bits(found, oracle(weight, spec)[0])


def test_hand_computed_groups():
    """Worked on paper: scale 1 and zero point 2, then scale 1 over three negative codes."""
    for symmetric, weight, values in (
        (False, [-2.0, 0.4, 0.5, 1.5, 13.0], [-2.0, 0.0, 0.0, 2.0, 13.0]),
        (True, [-7.0, 2.5, 3.5, -0.5, 6.6], [-7.0, 2.0, 4.0, 0.0, 7.0]),
    ):
        spec = affine(4, "channel", symmetric)
        assert quantize(np.array([weight], np.float32), spec).tolist() == [values]


# Code books


@pytest.mark.parametrize("columns", [128, 100, 10])
def test_code_books_agree_with_the_oracle(columns):
    """Rows of whole blocks, with a remainder, and shorter than a block; one row of zeros."""
    weight = np.random.default_rng(columns).standard_normal((7, columns)).astype(np.float32)
    weight[2] = 0.0
    for kind in CODE_BOOKS:
        found = quantize(weight, read_spec({"kind": kind}))
        np.testing.assert_allclose(found, quantize_code_book(weight, kind), rtol=1e-6)


def test_code_books_are_those_of_others():
    # QLoRA's went through float32 before the quantiles were taken: 4e-4 at most.
    assert np.abs(np.array(nf4_book()) - PUBLISHED_NF4).max() < 4e-4
    quants = pytest.importorskip("gguf.quants")
    kind = quants.GGMLQuantizationType.MXFP4
    weight = np.random.default_rng(0).standard_normal((7, 128)).astype(np.float32)
    theirs = quants.dequantize(quants.quantize(weight, kind), kind)
    np.testing.assert_allclose(quantize(weight, read_spec({"kind": "mxfp4"})), theirs, atol=1e-7)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_constant_groups_and_those_with_a_subnormal_scale(bits):
    """Asymmetric: kept to the bit. Symmetric: within two roundings (w / n, then times n)."""
    values = np.array([*HOSTILE, 0.1, -0.3, 1 / 3, -1e30, 3.3e38], np.float32)
    weight = np.repeat(values[:, None], 10, axis=1)
    tiny = np.array([[1e-40, -1e-40, 0.0, 3e-39]], np.float32)
    for granularity, size in (("channel", None), ("group", 3)):
        exact, rounded = (affine(bits, granularity, symmetric, size) for symmetric in (False, True))
        assert_same_bits(quantize(weight, exact), weight)
        error = abs(quantize(weight, rounded).astype(float) - weight)
        assert (error <= 2.0**-23 * abs(weight.astype(float)) + 1e-45).all()
        for spec in (exact, rounded):
            assert_same_bits(quantize(tiny, spec), tiny)


@given(matrices(("ordinary", "halves", "zero and one")), specs())
def test_flushing_subnormals_changes_nothing_where_weights_are_not_tiny(weight, spec):
    weight[abs(weight) < 1e-30] = 0.0
    plain = quantize(weight, spec)
    assert torch.set_flush_denormal(True)
    try:
        flushed = quantize(weight, spec)
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(flushed, plain)


@pytest.mark.parametrize(("bad", "spec"), [(np.nan, INT4), (-np.inf, INT8), (3.4e38, TENSOR)])
def test_weights_without_a_finite_range_or_in_half_precision_are_refused_by_name(
    tiny_model, bad, spec
):
    """A remainder is looked at as well; the range of 3.4e38 and -1e38 overflows."""
    weight = tiny_model.gpt_neox.layers[0].attention.query_key_value.weight
    with torch.no_grad():
        weight[3, 3] = bad
        weight[3, 4] = -1e38
    with pytest.raises(ValueError, match="^gpt_neox.layers.0.attention.* not a finite range"):
        quantized_weights(tiny_model, spec)
    with pytest.raises(TypeError, match="layers.0.attention.query_key_value.weight: .*float16"):
        quantized_weights(tiny_model.half(), spec)


GROUPS = {"bits": 4, "granularity": "group", "group_size": 128, "symmetric": False}
ROWS = {"bits": 8, "granularity": "channel", "symmetric": True}


def test_a_quantizer_is_printed_and_stored_as_its_entry_says_and_no_typo_means_another():
    for definition, label, description, bits in (
        (GROUPS, "INT4", "INT4 asymmetric, per group of 128", 4 + 20 / 128),
        (ROWS, "INT8", "INT8 symmetric, per output channel", 8 + 16 / 256),
        (ROWS | {"granularity": "tensor"}, "INT8", "INT8 symmetric, per tensor", 8 + 16 / 768),
        ({"kind": "nf4"}, "NF4", "NF4, per block of 64", 4.5),
        ({"kind": "mxfp4"}, "MXFP4", "MXFP4, per block of 32", 4.25),
        ({"kind": "nvfp4", "layers": "blocks+head"}, "NVFP4", "NVFP4, per block of 16", 4.5),
    ):
        spec = read_spec(definition)
        assert (spec.label, spec.description) == (label, description)
        assert spec.storage_bits(3, 256) == pytest.approx(bits)
        assert read_spec(spec.model_dump()) == spec
    for definition, word in (
        ({"kind": "nf5"}, "nf4"),
        ({"kind": "nf4", "bits": 4}, "bits"),
        (ROWS | {"bits": 9}, "bits"),
        (ROWS | {"group_size": 64}, "takes no group_size"),
        (GROUPS | {"group_size": None}, "needs group_size"),
    ):
        with pytest.raises(ValueError, match=word):
            read_spec(definition)
    # Labels that are not unique are printed in full.
    specs = read_specs({"a": GROUPS, "b": GROUPS | {"group_size": 64}, "int9": ROWS})
    full = {name: specs[name].description for name in "ab"}
    assert printed_names(specs) == full | {"int9": "INT8"}


def test_the_model_is_untouched_and_shares_no_memory(tiny_model):
    with torch.no_grad():
        tiny_model.gpt_neox.layers[0].attention.dense.weight.fill_(0.25)  # kept as it is
    before = copy.deepcopy(tiny_model.state_dict())
    for spec in (INT4, INT8, affine(3, "tensor", False, layers="blocks+head")):
        for weight in quantized_weights(tiny_model, spec).values():
            assert not weight.requires_grad
            weight.fill_(99.0)
    torch.testing.assert_close(dict(tiny_model.state_dict()), dict(before), rtol=0, atol=0)


# Pythia-160m, on the meta device: shapes without weights


@pytest.mark.parametrize(
    ("layers", "matrices", "weights", "groups", "rows"),
    [
        ("blocks", 48, 84_934_656, 663_552, 82_944),
        ("blocks+head", 49, 123_568_128, 965_376, 82_944 + 50_304),
    ],
)
def test_groups_of_pythia_160m(layers, matrices, weights, groups, rows):
    shape = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "max_length": 2048}
    with torch.device("meta"):
        model = build_model(shape, 50304, seed=0)
    found, of_rows = (
        coverage(model, spec.model_copy(update={"layers": layers})) for spec in (INT4, INT8)
    )
    assert (found["matrices"], found["weights"], found["of"]) == (matrices, weights, 162_322_944)
    assert (found["groups"], of_rows["groups"]) == (groups, rows)


@given(st.integers(1, 5), st.integers(1, 50), st.integers(1, 50))
def test_counted_groups_are_the_groups(rows, columns, size):
    """A row shorter than a group is one; the last group of a row holds the remainder."""
    spec = affine(4, "group", False, size)
    _, groups = oracle(np.ones((rows, columns), np.float32), spec)
    assert spec.count_groups(rows, columns) == len(groups)


# What is quantized


def test_a_narrow_layer_gets_a_narrow_group_and_is_named(tiny_model):
    """Rows of 16 are one group; rows of 64 are quantized in groups of 32 as they are asked for."""
    spec = affine(4, "group", False, 32)
    found = coverage(tiny_model, spec)
    quantized = quantized_weights(tiny_model, spec)
    for name, weight in linear_weights(tiny_model).items():
        expected, groups = oracle(weight.detach().numpy(), spec)
        assert_same_bits(quantized[name].numpy(), expected)
        assert (kind_of(name) in found["narrowed"]) == (len(groups) == weight.shape[0])
    assert set(found["narrowed"].values()) == {16} and len(found["narrowed"]) == 3
    line = coverage_line(found)
    assert "layers.*.attention.dense.weight 16" in line and "dense_4h_to_h.weight 64" not in line
    assert "narrowed" not in coverage_line(coverage(tiny_model, affine(4, "group", False, 16)))
    assert found["bits_per_weight"] == pytest.approx(4 + 20 * found["groups"] / found["weights"])


def test_a_name_on_the_command_line_is_the_quantizer_of_the_configuration():
    configured = yaml.safe_load(Path("config.yaml").read_text())["quantizers"]
    for name, definition in configured.items():
        assert read_spec(named_quantizer(name)) == read_spec(definition), name
    assert read_spec(named_quantizer("nf4")).label == "NF4"
    for name in ("int1_g64", "int4", "int4_g0", "int9_channel", "mxfp8"):
        with pytest.raises(UserError, match=name):
            named_quantizer(name)
