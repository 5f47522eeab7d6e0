"""Gather the table of a suite's revisions, and compare the revisions with their names."""

import logging
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from flatminima.absent_steps import missing_steps
from flatminima.files import read_rows, write_table
from flatminima.integrity import IntegrityError, decide, examine, suite_table
from flatminima.jobs import run

logger = logging.getLogger(__name__)

MOST_NAMED = 6  # files in a command


def main(
    *,
    tables: list,
    fingerprints: list,
    suite: str,
    severity: dict,
    table: str,
    refused: str,
    measured_by: str | None,
) -> None:
    """Write ``suite.csv``. If a finding stops the run, write the same table as ``refused``.

    ``measured_by`` is the rule that fetched the revisions, ``None`` if they are local files.
    """
    revisions = read_rows(tables)
    all_fingerprints = read_rows(fingerprints)
    findings = examine(revisions, all_fingerprints)
    rows = suite_table(revisions, all_fingerprints, findings, suite)
    Path(refused).unlink(missing_ok=True)  # of an earlier run
    try:
        warnings = decide(
            findings, severity, grid=list(rows["step"]), key=f"suites.{suite}.integrity"
        )
    except IntegrityError as error:
        write_table(refused, rows)
        steps = {step for finding in findings for step in finding.steps}
        advice = _how_to_fetch_again(tables, steps, measured_by)
        raise IntegrityError(
            f"suite {suite}: {error}; {refused} has all revisions{advice}"
        ) from error
    for line in warnings:
        logger.warning(f"warning: {line}")
    write_table(table, rows)
    logger.info(f"{len(rows)} revisions, {rows['weights_sha256'].nunique()} of them distinct")
    missing = missing_steps(rows)
    if missing:
        advice = _how_to_fetch_again(tables, missing, measured_by)
        logger.info(f"{len(missing)} missing{advice}")


def _how_to_fetch_again(tables: list[str], steps: Iterable[int], measured_by: str | None) -> str:
    """The command that fetches these steps again: it names the tables of their ranges."""
    if measured_by is None:
        return ""
    files = [path for path in tables if pd.read_csv(path)["step"].isin(set(steps)).any()]
    forced = " ".join(files) if len(files) <= MOST_NAMED else measured_by
    return (
        f"; once the hub is mended, the same command with `--forcerun {forced}` fetches them again"
    )


if __name__ == "__main__":
    run(main, snakemake)
