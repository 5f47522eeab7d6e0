"""Put the answers of all measurements beyond the paper into one table."""

import json
from pathlib import Path

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import log, logged
from flatminima.mechanism.findings import findings


def main(*, tables: dict, phases: str, spacing: int, output: str) -> None:
    """Write ``findings.csv``; ``tables`` maps the measurements that are there to files."""
    known = json.loads(Path(phases).read_text(encoding="utf-8"))
    read = {name: pd.read_csv(path) for name, path in tables.items()}
    found = findings(read, known, spacing=spacing)
    write_table(output, found)
    log(f"{len(found)} findings")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            tables={k: v for k, v in snakemake.input.items() if k != "phases"},
            phases=snakemake.input.phases,
            spacing=snakemake.params.spacing,
            output=snakemake.output.findings,
        )
