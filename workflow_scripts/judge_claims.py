"""Judge every claim of the paper by the ledger's four questions."""

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
    uses. ``suite`` are the settings of ``evidence.Measured``; ``None`` means the printed tables.
    """
    ledger = read_ledger(inputs["claims"], inputs["excerpts"])
    # Text, because the digits show how a number was rounded.
    table1, table2 = (
        pd.read_csv(inputs[name], dtype=str, keep_default_na=False) for name in ("table1", "table2")
    )
    paper = Printed(ledger.pythia, table1, table2, pd.read_csv(inputs["lambada"]))
    measured = None
    if suite:
        files = {name: read_content(path) for name, path in inputs.items() if name not in PAPER}
        measured = Measured(ledger.pythia, paper, suite, files)
    judged = judge(ledger, paper, measured)
    for output in outputs:
        write(ledger, judged, suite, inputs, output)
    logger.info(about(suite, judged))


if __name__ == "__main__":
    run(main, snakemake)
