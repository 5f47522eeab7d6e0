"""Holm's correction: the step-down by hand, statsmodels, and what belongs to a family."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

from flatminima.hypothesis_tests import Row, adjust, in_family
from tests import synthetic


def row(p, test="Welch t", comparison="a v b", measure="gap_pct"):
    return Row(test, comparison, "seed", measure, "t", p_value=p)


def test_holm_by_hand():
    rows = list(in_family([row(0.04), row(0.01), row(0.03)], "forks"))
    table = adjust(pd.DataFrame([vars(r) for r in rows]))
    # Sorted 0.01, 0.03, 0.04 times 3, 2, 1, and never below the one before.
    assert list(table.p_adjusted) == pytest.approx([0.06, 0.03, 0.06])
    assert set(table.family) == {"forks: Welch t of gap_pct by seed"}


def test_a_family_is_one_test_of_one_measure():
    rows = [row(0.03), row(0.03, test="Student t"), row(0.03, measure="ppl"), row(np.nan)]
    rows = list(in_family(rows, "forks"))
    table = adjust(pd.DataFrame([vars(r) for r in rows]))
    assert table.family.iloc[:3].nunique() == 3 and table.family.iloc[3] == ""
    assert list(table.p_adjusted[:3]) == [0.03] * 3 and np.isnan(table.p_adjusted[3])


def test_every_p_of_a_suite_is_adjusted_in_a_family_of_its_comparisons():
    table = synthetic.statistics()
    assert (table.family != "").equals(table.p_value.notna())
    assert table.p_adjusted.notna().equals(table.p_value.notna())
    for _, family in table[table.family != ""].groupby("family"):
        assert not family.comparison.duplicated().any()
        assert family[["test", "unit", "measure"]].drop_duplicates().shape[0] == 1
        theirs = multipletests(family.p_value, method="holm")[1]
        assert family.p_adjusted.to_numpy() == pytest.approx(theirs, rel=1e-12)
    welch = table[table.family == "forks v cosine: Welch t of mean_gap_pct by seed"]
    assert list(welch.comparison) == [
        "sgdr v cosine", "oli cool v cosine", "oli all v cosine"
    ]  # fmt: skip


def test_no_tests_at_all_are_no_family():
    table = adjust(pd.DataFrame([vars(row(np.nan))]))
    assert table.p_adjusted.isna().all()
