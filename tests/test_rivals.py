"""Every condition at its end, and the figure that shows it."""

import re

import numpy as np
import pandas as pd
import pytest

from flatminima.forks.rivals import COLUMNS, compare, rival_table, settled_rows
from tests import synthetic
from workflow_scripts import gather_rivals, plot_rivals


def average(name: str) -> pd.DataFrame:
    rows = synthetic.audit()
    rows = rows[rows["step"] == 4000].assign(schedule=name, seed=pd.NA)
    return rows.drop(columns=["tokens_seen", "lr", "lr_fraction"])


def variant(name: str, like: str, seed: int) -> pd.DataFrame:
    rows = synthetic.forks()
    return rows[(rows["schedule"] == like) & (rows["seed"] == seed)].assign(schedule=name)


@pytest.fixture
def table() -> pd.DataFrame:
    variants = [variant("wsd", "cosine", seed) for seed in (0, 1)]
    variants += [variant("oli_small", "oli", 0)]
    return rival_table(synthetic.forks(), variants, [average("run"), average("lawa_5")])


def test_a_fork_counts_at_its_end_and_oli_at_the_last_end_of_each_phase():
    forks = synthetic.forks()
    rows = settled_rows(forks)
    plain = rows[rows["schedule"] != "oli"]
    assert set(plain["step"]) == {4000} and set(plain["update_phase"]) == {""}
    oli = rows[rows["schedule"] == "oli"].groupby("update_phase")["step"].unique()
    own = forks[forks["schedule"] == "oli"].groupby("update_phase")["step"].max()
    assert {phase: list(steps) for phase, steps in oli.items()} == {
        phase: [step] for phase, step in own.items()
    }
    assert max(own) == 4000


def test_rows_of_all_groups_in_the_columns_of_the_file(table):
    assert list(table.columns) == COLUMNS
    assert list(table["group"].unique()) == ["paper", "rival", "average"]
    assert table.loc[table["group"] == "average", "seed"].isna().all()
    assert table.loc[table["group"] != "average", "seed"].notna().all()
    assert table.groupby(["schedule", "seed", "update_phase"], dropna=False).size().eq(3).all()


def test_the_two_perplexities_side_by_side(table, tmp_path):
    table.to_csv(tmp_path / "rivals.csv", index=False)
    found = compare(pd.read_csv(tmp_path / "rivals.csv"))
    np.testing.assert_allclose(
        found["low_bit_ppl"], found["fp32_ppl"] * (1 + found["gap_pct"] / 100), rtol=1e-9
    )
    assert list(found["schedule"].unique()) == [
        "cosine", "sgdr", "oli", "wsd", "oli_small", "run", "lawa_5",
    ]  # fmt: skip
    assert found.groupby("schedule", sort=False).size().tolist() == [3, 3, 6, 2, 2, 1, 1]


def test_the_script_tells_trained_from_averaged_by_the_folder(tmp_path):
    for path, rows in (
        ("forks.csv", synthetic.forks()),
        ("variants/wsd-seed0.csv", variant("wsd", "cosine", 0)),
        ("averages/run.csv", average("run")),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        rows.to_csv(tmp_path / path, index=False)
    tables = [str(tmp_path / "variants/wsd-seed0.csv"), str(tmp_path / "averages/run.csv")]
    output = tmp_path / "rivals.csv"
    gather_rivals.main(forks=str(tmp_path / "forks.csv"), tables=tables, output=str(output))
    found = pd.read_csv(output)
    assert found.groupby("schedule")["group"].first().to_dict() == {
        "cosine": "paper", "sgdr": "paper", "oli": "paper", "wsd": "rival", "run": "average",
    }  # fmt: skip
    assert ",0," in output.read_text() and ",0.0,0.0,4000" not in output.read_text()


@pytest.mark.parametrize("wide", [False, True])
def test_the_figure_names_every_condition(table, tmp_path, wide):
    if wide:
        table.loc[table["schedule"] == "wsd", "ppl"] *= 5
    table.to_csv(tmp_path / "rivals.csv", index=False)
    figures = [str(tmp_path / f"fig8.{suffix}") for suffix in ("svg", "png", "pdf")]
    plot_rivals.main(rivals=str(tmp_path / "rivals.csv"), figures=figures, suite=synthetic.MINI)
    text = re.sub(r"<!--|-->", "", (tmp_path / "fig8.svg").read_text())
    wanted = ("cosine", "SGDR", "OLI", "wsd", "oli small", "run", "lawa 5",
              "FP32 perplexity at the end", "INT4 perplexity at the end",
              synthetic.MINI["label"])  # fmt: skip
    for name in wanted:
        assert name in text, name
    first = (tmp_path / "fig8.svg").read_bytes()
    plot_rivals.main(rivals=str(tmp_path / "rivals.csv"), figures=figures, suite=synthetic.MINI)
    assert (tmp_path / "fig8.svg").read_bytes() == first
