"""Execute one companion notebook on a suite's results and render it as HTML."""

import logging
import os
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from flatminima.errors import UserError
from flatminima.files import atomic_path
from flatminima.jobs import run

logger = logging.getLogger(__name__)

CELL_TIMEOUT_S = 600
UNDESCRIBED = 'alt="No description has been provided for this image"'  # of nbconvert


def main(notebook: str, executed: str, html: str, suite: str, folder: str = "results") -> None:
    """Write the executed notebook and its page, as ``jupyter nbconvert --execute --to html`` does.

    The notebook finds the folder of all results, ``folder``, and the name of the suite in
    its environment. Raises ``UserError`` that names a cell that fails; its traceback is in
    the log, and nothing is written.
    """
    source, results = Path(notebook), str(Path(folder).resolve())
    page = nbformat.read(source, as_version=4)
    place = {"metadata": {"path": str(source.resolve().parent)}}
    client = NotebookClient(page, kernel_name="python3", timeout=CELL_TIMEOUT_S,
                            record_timing=False, resources=place)  # fmt: skip
    try:
        client.execute(env={**os.environ, "SUITE": suite, "RESULTS": results})
    except CellExecutionError as error:
        logger.debug(str(error))
        outputs = [(cell.id, output) for cell in page.cells for output in cell.get("outputs", [])]
        failed = next(name for name, output in outputs if output.output_type == "error")
        why = f"{error.ename}: {error.evalue}"
        raise UserError(f"{source}: cell {failed!r} failed, {why}") from error
    with atomic_path(executed) as temporary:
        nbformat.write(page, temporary)
    exporter = HTMLExporter(require_js_url="", mathjax_url="", mermaid_js_url="")
    body, _ = exporter.from_notebook_node(page, {"metadata": {"name": source.stem}})
    # nbconvert drops the description of an image.
    outputs = [output for cell in page.cells for output in cell.get("outputs", [])]
    texts = (
        output.metadata.get("image/png", {}).get("alt", "drawn by the cell")
        for output in outputs
        if "image/png" in output.get("data", {})
    )
    with atomic_path(html) as temporary:
        temporary.write_text(re.sub(UNDESCRIBED, lambda _: f'alt="{next(texts)}"', body), "utf-8")


if __name__ == "__main__":
    run(main, snakemake)
