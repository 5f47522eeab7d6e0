"""Tables 1 and 2: the audit at ten steps, and the conditions of the fork experiment."""

from flatminima.files import read_content
from flatminima.jobs import run
from flatminima.tables import audit_table, forks_table, write


def main(inputs: dict, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (csv, md, tex); ``suite`` has label, is_paper_model and spacing."""
    tables = {name: read_content(path) for name, path in inputs.items()}
    make = forks_table if "forks" in tables else audit_table
    write(make(**tables, suite=suite), outputs)


if __name__ == "__main__":
    run(main, snakemake)
