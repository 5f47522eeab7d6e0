"""Families of different build through the audit, held to a plain script; ``make zoo`` has all."""

import pytest

from tests.zoo import FAMILIES, SAMPLE, page, run_family


@pytest.mark.parametrize("family", SAMPLE)
def test_the_losses_are_those_of_a_plain_script(family):
    found = run_family(family)
    assert found["verdict"] == "measured", found["reason"]
    assert 0.4 < found["share"] < 1


def test_a_model_that_looks_ahead_is_refused_in_one_line():
    found = run_family("cpmant")
    assert found["verdict"] == "refused" and "looks ahead" in found["reason"]


def test_the_page_counts_what_was_found():
    results = [
        {"family": name, "kind": kind, "verdict": "refused", "reason": "a|b"}
        for name, kind in FAMILIES.items()
    ]
    text = page(results)
    assert f"{len(FAMILIES)} of {len(FAMILIES)} model types (100.0 %)" in text
    assert text.count("refused: a\\|b |\n") == len(FAMILIES)
