"""Quantizers as configuration entries: what is refused, how they are printed, what they store."""

import pytest

from flatminima.quantizer_specs import fit_group, printed_names, read_spec, read_specs

GROUPS = {"bits": 4, "granularity": "group", "group_size": 128, "symmetric": False}
ROWS = {"bits": 8, "granularity": "channel", "symmetric": True}


@pytest.mark.parametrize(
    ("definition", "label", "description", "bits"),
    [
        (GROUPS, "INT4", "INT4 asymmetric, per group of 128", 4 + 20 / 128),
        (ROWS, "INT8", "INT8 symmetric, per output channel", 8 + 16 / 256),
        (ROWS | {"granularity": "tensor"}, "INT8", "INT8 symmetric, per tensor", 8 + 16 / 768),
        ({"kind": "nf4"}, "NF4", "NF4, per block of 64", 4.5),
        ({"kind": "mxfp4"}, "MXFP4", "MXFP4, per block of 32", 4.25),
        ({"kind": "nvfp4", "layers": "blocks+head"}, "NVFP4", "NVFP4, per block of 16", 4.5),
    ],
)
def test_a_quantizer_is_printed_and_stored_as_its_entry_says(definition, label, description, bits):
    spec = read_spec(definition)
    assert (spec.label, spec.description) == (label, description)
    assert spec.storage_bits(3, 256) == pytest.approx(bits)
    assert read_spec(spec.model_dump()) == spec


@pytest.mark.parametrize(
    ("definition", "word"),
    [
        ({"kind": "nf5"}, "nf4"),
        ({"kind": "nf4", "bits": 4}, "bits"),
        (ROWS | {"bits": 9}, "bits"),
        (ROWS | {"bits": "8"}, "bits"),
        (ROWS | {"granularity": "row"}, "granularity"),
        (ROWS | {"group_size": 64}, "takes no group_size"),
        (GROUPS | {"group_size": None}, "needs group_size"),
        (GROUPS | {"group_size": 0}, "group_size"),
        (GROUPS | {"layers": "heads"}, "layers"),
        ({"bits": 4}, "symmetric"),
    ],
)
def test_no_typo_means_something_else(definition, word):
    with pytest.raises(ValueError, match=word):
        read_spec(definition)


def test_labels_that_are_not_unique_are_printed_in_full():
    specs = read_specs({"a": GROUPS, "b": GROUPS | {"group_size": 64}, "int9": ROWS})
    assert printed_names(specs) == {
        "a": specs["a"].description, "b": specs["b"].description, "int9": "INT8"
    }  # fmt: skip


def test_a_group_is_fitted_to_a_row_that_is_shorter():
    assert [fit_group(128, row) for row in (64, 128, 200)] == [64, 128, 128]
    spec = read_spec(GROUPS)
    assert [spec.count_groups(3, row) for row in (64, 128, 200)] == [3, 3, 6]
