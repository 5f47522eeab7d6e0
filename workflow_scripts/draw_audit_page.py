"""Draw the audit of a suite as a page to look around in."""

import pandas as pd

from workflow_scripts.lib.figures import audit_page
from workflow_scripts.lib.running.logs import logged
from workflow_scripts.lib.running.provenance import read_json


def main(*, audit: str, phases: str, page: str, suite: dict) -> None:
    """Write ``page``, one self-contained HTML file."""
    drawing = audit_page.draw(pd.read_csv(audit), read_json(phases), suite=suite)
    audit_page.save(drawing, page)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            audit=snakemake.input.audit,
            phases=snakemake.input.phases,
            page=snakemake.output.page,
            suite=snakemake.params.suite,
        )
