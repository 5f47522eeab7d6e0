"""Judge every claim of the paper on what was measured for a suite."""

import json
from pathlib import Path

import pandas as pd

from flatminima.claims.model import Measurements, read_ledger
from flatminima.claims.render import summary, write
from flatminima.claims.verdicts import judge
from flatminima.jobs import log, logged

TABLES = ("table1", "table2", "lambada", "audit", "kurtosis", "forks", "statistics", "suite_table",
          "early_warning", "mechanism", "rivals", "pilot", "amplitudes")  # fmt: skip


def main(*, claims: str, table1: str, table2: str, lambada: str, outputs: list[str], suite: dict,
         audit: str | None = None, kurtosis: str | None = None, phases: str | None = None,
         forks: str | None = None, statistics: str | None = None,
         suite_table: str | None = None, early_warning: str | None = None,
         mechanism: str | None = None, rivals: str | None = None, pilot: str | None = None,
         amplitudes: str | None = None, calibration: str | None = None) -> None:  # fmt: skip
    """Write the ledger to each of ``outputs``: .csv, .md, or .json for the claim it is named after.

    ``suite`` holds the keys that ``Measurements`` names. Inputs left out were not measured.
    """
    given = {"claims": claims, "table1": table1, "table2": table2, "lambada": lambada}
    given |= {"audit": audit, "kurtosis": kurtosis, "forks": forks}
    given |= {"statistics": statistics, "suite_table": suite_table, "early_warning": early_warning,
              "mechanism": mechanism, "rivals": rivals, "pilot": pilot,
              "amplitudes": amplitudes, "phases": phases, "calibration": calibration}  # fmt: skip
    paths = {name: str(path) for name, path in given.items() if path}
    tables = {name: pd.read_csv(paths[name]) for name in TABLES
              if name in paths}  # fmt: skip
    found = {name: json.loads(Path(paths[name]).read_text(encoding="utf-8"))
             for name in ("phases", "calibration") if name in paths}  # fmt: skip
    judgements = judge(Measurements(read_ledger(claims), suite=suite, **found, **tables))
    for output in outputs:
        write(judgements, suite, paths, output)
    log(summary(judgements))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            **{name: str(path) for name, path in snakemake.input.items()},
            outputs=list(snakemake.output),
            suite=snakemake.params.suite,
        )
