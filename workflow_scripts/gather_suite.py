"""Gather the table of a suite's revisions, and see whether they are what their names say."""

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


def main(*, tables: list, fingerprints: list, suite: str, severity: dict, table: str,
         refused: str, measured_by: str | None) -> None:  # fmt: skip
    """Write ``suite.csv``, or where a finding stops the run, the same table as ``refused``.

    ``measured_by`` is the rule that fetched the revisions; nothing where they lie on disk.
    """
    revisions, prints = read_rows(tables), read_rows(fingerprints)
    found = examine(revisions, prints)
    rows = suite_table(revisions, prints, found, suite)
    Path(refused).unlink(missing_ok=True)
    key, grid = f"suites.{suite}.integrity", list(rows["step"])
    try:
        for line in decide(found, severity, grid=grid, key=key):
            logger.warning(f"warning: {line}")
    except IntegrityError as error:
        write_table(refused, rows)
        again = _again(tables, {step for one in found for step in one.steps}, measured_by)
        raise IntegrityError(
            f"suite {suite}: {error}; {refused} has all revisions{again}"
        ) from error
    write_table(table, rows)
    logger.info(f"{len(rows)} revisions, {rows['weights_sha256'].nunique()} of them distinct")
    if missing := missing_steps(rows):
        logger.info(f"{len(missing)} missing{_again(tables, missing, measured_by)}")


def _again(tables: list[str], steps: Iterable[int], measured_by: str | None) -> str:
    """How to fetch these steps again once the hub is mended: the tables of their ranges."""
    if measured_by is None:
        return ""
    files = [path for path in tables if pd.read_csv(path)["step"].isin(set(steps)).any()]
    named = " ".join(files) if len(files) <= MOST_NAMED else measured_by
    return (
        f"; once the hub is mended, the same command with `--forcerun {named}` fetches them again"
    )


if __name__ == "__main__":
    run(main, snakemake)
