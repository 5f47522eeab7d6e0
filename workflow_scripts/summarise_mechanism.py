"""Write the findings of all measurements beyond the paper into one table."""

from flatminima.files import read_content, write_table
from flatminima.jobs import run
from flatminima.mechanism.findings import findings as all_findings


def main(inputs: dict, findings: str, spacing: int) -> None:
    """Write ``findings``; ``inputs`` has the available tables by name, and ``phases``."""
    tables = {name: read_content(path) for name, path in inputs.items()}
    phases = tables.pop("phases")
    write_table(findings, all_findings(tables, phases, spacing=spacing))


if __name__ == "__main__":
    run(main, snakemake)
