"""Draw the audit of a suite as a page to look around in."""

import pandas as pd

from flatminima import headlines
from flatminima.figures import audit_page
from flatminima.files import read_json
from flatminima.jobs import log, logged


def main(*, audit: str, phases: str, page: str, suite: dict) -> None:
    """Write ``page``, one self-contained HTML file."""
    table = pd.read_csv(audit)
    audit_page.save(audit_page.draw(table, read_json(phases), suite=suite), page)
    log(headlines.written([page], headlines.audit(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            audit=snakemake.input.audit,
            phases=snakemake.input.phases,
            page=snakemake.output.page,
            suite=snakemake.params.suite,
        )
