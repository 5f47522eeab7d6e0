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

MOST_NAMED = 6  # files in a suggested command


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
    """Write ``suite.csv``. If a finding stops the run, write the same table to ``refused``.

    ``severity`` is the reaction to each kind of finding. ``measured_by`` is the rule that fetched
    the revisions, or ``None`` for local checkpoints.
    """
    revisions = read_rows(tables)
    fingerprint_rows = read_rows(fingerprints)
    findings = examine(revisions, fingerprint_rows)
    rows = suite_table(revisions, fingerprint_rows, findings, suite)
    Path(refused).unlink(missing_ok=True)
    key = f"suites.{suite}.integrity"
    try:
        for warning in decide(findings, severity, grid=list(rows["step"]), key=key):
            logger.warning(f"warning: {warning}")
    except IntegrityError as error:
        write_table(refused, rows)
        steps = {step for finding in findings for step in finding.steps}
        advice = _how_to_fetch_again(tables, steps, measured_by)
        raise IntegrityError(
            f"suite {suite}: {error}; {refused} lists all revisions{advice}"
        ) from error
    write_table(table, rows)
    logger.info(f"{len(rows)} revisions, {rows['weights_sha256'].nunique()} of them distinct")
    missing = missing_steps(rows)
    if missing:
        advice = _how_to_fetch_again(tables, missing, measured_by)
        logger.info(f"{len(missing)} missing{advice}")


def _how_to_fetch_again(tables: list[str], steps: Iterable[int], measured_by: str | None) -> str:
    """The option of Snakemake that fetches these steps again: names of tables, or the rule."""
    if measured_by is None:
        return ""
    files = [path for path in tables if pd.read_csv(path)["step"].isin(set(steps)).any()]
    targets = " ".join(files) if len(files) <= MOST_NAMED else measured_by
    return f"; to fetch them again later, repeat the command with `--forcerun {targets}`"


if __name__ == "__main__":
    run(main, snakemake)
