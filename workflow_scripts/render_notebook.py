"""Execute one companion notebook on a suite's results and render it as HTML."""

import json
from pathlib import Path

from flatminima.jobs import logged
from flatminima.notebooks.rendering import render


def main(*, notebook: str, html: str, log: str, suite: dict, results: str) -> None:
    """Write ``html``; a failing cell leaves ``notebook`` as far as it came beside ``log``.

    ``suite`` has the keys name, label, is_paper_model and spacing; ``results`` is the
    folder that holds the folder of the suite.
    """
    environment = {
        "SUITE": suite["name"],
        "SUITE_SETTINGS": json.dumps(suite),
        "RESULTS": str(Path(results).resolve()),
    }
    render(notebook, html, failed=Path(log).with_suffix(".ipynb"), environment=environment)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            notebook=snakemake.input.notebook,
            html=snakemake.output.html,
            log=snakemake.log[0],
            suite=snakemake.params.suite,
            results=snakemake.params.results,
        )
