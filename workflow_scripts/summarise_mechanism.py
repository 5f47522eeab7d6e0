"""Put the answers of all measurements beyond the paper into one table."""

import pandas as pd

from flatminima.files import read_json, write_table
from flatminima.jobs import run
from flatminima.mechanism.findings import findings as answers


def main(*, inputs: dict, phases: str, spacing: int, findings: str) -> None:
    """Write ``findings``; ``inputs`` has the tables that are there, by name, and ``phases``."""
    tables = {name: pd.read_csv(path) for name, path in inputs.items() if name != "phases"}
    write_table(findings, answers(tables, read_json(phases), spacing=spacing))


if __name__ == "__main__":
    run(main, snakemake)
