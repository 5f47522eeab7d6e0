"""Ask the ledger's four questions of every claim of the paper."""

import logging

import pandas as pd

from flatminima.claims.evidence import Measured, Printed
from flatminima.claims.ledger import judge, read_ledger
from flatminima.claims.page import about, write
from flatminima.files import read_content
from flatminima.jobs import run

logger = logging.getLogger(__name__)

PAPER = ("claims", "excerpts", "table1", "table2", "lambada", "page_html", "page_md")


def main(inputs: dict, outputs: list[str], suite: dict | None) -> None:
    """Write the ledger to each of ``outputs``: .csv, .md, .html, or .json for one claim.

    ``inputs`` has the paper's files (``PAPER``) and the suite's, by the names that claims.yaml
    uses; ``suite`` what ``evidence.Measured`` asks for, ``None`` for the printed tables alone.
    """
    ledger = read_ledger(inputs["claims"], inputs["excerpts"])
    tables = [pd.read_csv(inputs[f"table{n}"], dtype=str, keep_default_na=False) for n in (1, 2)]
    paper = Printed(ledger.pythia, *tables, pd.read_csv(inputs["lambada"]))
    files = {name: read_content(path) for name, path in inputs.items() if name not in PAPER}
    judged = judge(ledger, paper, Measured(ledger.pythia, paper, suite, files) if suite else None)
    for output in outputs:
        write(ledger, judged, suite, inputs, output)
    logger.info(about(ledger, suite, judged))


if __name__ == "__main__":
    run(main, snakemake)
