"""The file statistics.csv as a whole."""

import runpy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from flatminima.hypothesis_tests import COLUMNS
from tests import synthetic


def write_sequences(forks, folder):
    """Scores of 12 sequences that give the NLL of each row of ``forks``, one file a fork."""
    difficulty = np.linspace(-0.3, 0.3, 12)
    paths = []
    for (schedule, seed), rows in forks.groupby(["schedule", "seed"], sort=False):
        table = pd.DataFrame({
            "step": np.repeat(rows["step"], 12), "quantizer": np.repeat(rows["quantizer"], 12),
            "role": np.repeat(rows["role"], 12), "sequence": np.tile(range(12), len(rows)),
            "nll_nats": (
                63 * (rows["nll_nats_per_token"].to_numpy()[:, None] + difficulty)
            ).ravel(),
            "scored": 63,
        })  # fmt: skip
        paths.append(folder / f"{schedule}-seed{seed}.parquet")
        table.to_parquet(paths[-1])
    return paths


def test_script_writes_one_table_with_the_same_bytes_twice(tmp_path):
    folder = synthetic.write(tmp_path / "results")
    forks = pd.read_csv(folder / "forks.csv")
    sequences = write_sequences(forks, tmp_path)
    written = []
    for name in ("a.csv", "b.csv"):
        inputs = {name: folder / f"{name}.csv" for name in ("forks", "audit", "kurtosis")}
        job = SimpleNamespace(
            input=SimpleNamespace(
                **inputs, phases=folder / "phases.json", sequences=sequences
            ),
            output=SimpleNamespace(statistics=tmp_path / name), log=[tmp_path / "log"],
            params=SimpleNamespace(spacing=40, baseline="cosine", resamples=50, seed=0),
        )  # fmt: skip
        runpy.run_path(
            "workflow_scripts/test_hypotheses.py",
            init_globals={"snakemake": job},
            run_name="__main__",
        )
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    table = pd.read_csv(tmp_path / "a.csv")
    assert list(table.columns) == ["suite", *COLUMNS]
    assert set(table.suite) == {"mini"}
    assert not table.duplicated(["test", "comparison", "unit", "measure"]).any()
    assert set(table.unit) == {"seed", "probe", "segment", "sequence", "checkpoint"}
    # The same numbers from single sequences as from forks.csv.
    for comparison in ("sgdr v cosine", "oli cool v cosine", "oli all v cosine"):
        rows = table[(table.comparison == comparison) & (table.measure == "mean_gap_pct")]
        differences = rows.groupby("unit")["difference"].mean()
        assert differences["sequence"] == pytest.approx(differences["seed"], rel=1e-9)


def test_without_scores_of_sequences_their_rows_are_left_out():
    table = synthetic.statistics()
    assert list(table.columns) == COLUMNS
    assert "sequence" not in set(table.unit)
