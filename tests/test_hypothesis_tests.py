"""The file statistics.csv as a whole."""

import runpy
from types import SimpleNamespace

import pandas as pd

from tests import synthetic
from workflow_scripts.lib.statistics_rows import COLUMNS


def test_script_writes_one_table_with_the_same_bytes_twice(tmp_path):
    folder = synthetic.write(tmp_path / "results")
    written = []
    for name in ("a.csv", "b.csv"):
        inputs = {name: folder / f"{name}.csv" for name in ("forks", "audit", "kurtosis")}
        job = SimpleNamespace(
            input=SimpleNamespace(**inputs, phases=folder / "phases.json"),
            output=SimpleNamespace(statistics=tmp_path / name), log=[tmp_path / "log"],
            params=SimpleNamespace(spacing=40, baseline="cosine"),
        )  # fmt: skip
        runpy.run_path(
            "workflow_scripts/test_hypotheses.py",
            init_globals={"snakemake": job},
            run_name="__main__",
        )
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    table = pd.read_csv(tmp_path / "a.csv")
    assert list(table.columns) == COLUMNS
    assert not table.duplicated(["test", "comparison", "unit", "measure"]).any()
