"""Gather the table of a suite's revisions, and see whether they are what their names say."""

from pathlib import Path

from flatminima.files import read_rows
from flatminima.jobs import log, logged
from flatminima.revisions.describing import suite_table
from flatminima.revisions.findings import IntegrityError, judge
from flatminima.revisions.integrity import examine


def main(*, tables: list[str], fingerprints: list[str], suite: str, severity: dict,
         output: str, refused: str) -> None:  # fmt: skip
    """Write ``suite.csv``, or where a finding stops the run, the same table as ``refused``."""
    revisions, prints = read_rows(tables), read_rows(fingerprints)
    found = examine(revisions, prints)
    table = suite_table(revisions, prints, found, suite)
    Path(refused).unlink(missing_ok=True)
    try:
        key = f"suites.{suite}.integrity"
        for line in judge(found, severity, grid=list(table["step"]), key=key):
            log(f"warning: {line}")
    except IntegrityError as error:
        Path(refused).parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(refused, index=False)
        raise IntegrityError(f"suite {suite}: {error}; {refused} has all revisions") from error
    table.to_csv(output, index=False)
    log(f"{len(table)} revisions, {table['weights_sha256'].nunique()} of them distinct")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            tables=snakemake.input.tables,
            fingerprints=snakemake.input.fingerprints,
            suite=snakemake.wildcards.suite,
            severity=snakemake.params.severity,
            output=snakemake.output.table,
            refused=snakemake.params.refused,
        )
