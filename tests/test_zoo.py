"""Families of different build through the audit, held to a plain script; ``make zoo`` has all."""

import pytest

from tests.zoo import FAMILIES, page, run_family

SAMPLE = (
    "gpt_neox",
    "llama",
    "gpt2",
    "opt",
    "bloom",
    "mixtral",
    "qwen2_moe",
    "mamba",
    "recurrent_gemma",
    "falcon",
    "gemma2",
    "xglm",
    "jetmoe",
    "deepseek_v3",
    "dbrx",
    "llama4_text",
    "gpt_oss",  # experts stored as the transpose
    "longcat_flash",  # experts that no token reaches in one layer
    "deepseek_v4",  # a table of integers among its weights
)


@pytest.mark.parametrize("family", SAMPLE)
def test_the_losses_are_those_of_a_plain_script(family):
    found = run_family(family)
    assert found["verdict"] == "measured", found["reason"]
    assert 0.4 < found["share"] < 1


def test_a_model_that_looks_ahead_is_refused_in_one_line_and_the_page_counts_it():
    found = run_family("cpmant")
    assert found["verdict"] == "refused" and "looks ahead" in found["reason"]
    text = page([{**found, "family": name, "reason": "a|b"} for name in FAMILIES])
    assert f"{len(FAMILIES)} of {len(FAMILIES)} model types (100.0 %)" in text
    assert text.count("refused: a\\|b |\n") == len(FAMILIES)
