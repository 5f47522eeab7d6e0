"""Execute one companion notebook on a suite's results and render it as HTML."""

import logging
import os
import re
from collections.abc import Mapping
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
UNDESCRIBED = 'alt="No description has been provided for this image"'  # written by nbconvert


def main(notebook: str, executed: str, html: str, suite: str, folder: str = "results") -> None:
    """Write the executed notebook and its page, as ``jupyter nbconvert --execute --to html`` does.

    The notebook gets ``folder``, the folder of all results, and the name of the suite from its
    environment. Raises ``UserError`` with the name of a cell that fails; its traceback is in the
    log, and nothing is written.
    """
    source = Path(notebook)
    page = nbformat.read(source, as_version=4)
    execute(page, source, {"SUITE": suite, "RESULTS": str(Path(folder).resolve())})
    with atomic_path(executed) as temporary:
        nbformat.write(page, temporary)
    exporter = HTMLExporter(require_js_url="", mathjax_url="", mermaid_js_url="")
    body, _ = exporter.from_notebook_node(page, {"metadata": {"name": source.stem}})
    with atomic_path(html) as temporary:
        temporary.write_text(with_image_descriptions(body, page), "utf-8")


def execute(page: nbformat.NotebookNode, source: Path, environment: Mapping[str, str]) -> None:
    """Run all cells of ``page``, in the folder of the file ``source`` that it was read from."""
    client = NotebookClient(
        page,
        kernel_name="python3",
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        resources={"metadata": {"path": str(source.resolve().parent)}},
    )
    try:
        client.execute(env={**os.environ, **environment})
    except CellExecutionError as error:
        logger.debug(str(error))
        failed_cells = [
            cell.id
            for cell in page.cells
            for output in cell.get("outputs", [])
            if output.output_type == "error"
        ]
        raise UserError(
            f"{source}: cell {failed_cells[0]!r} failed, {error.ename}: {error.evalue}"
        ) from error


def with_image_descriptions(body: str, page: nbformat.NotebookNode) -> str:
    """The page with the descriptions of its images, which nbconvert drops."""
    descriptions = [
        output.metadata.get("image/png", {}).get("alt", "drawn by the cell")
        for cell in page.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    in_order = iter(descriptions)
    return re.sub(UNDESCRIBED, lambda _: f'alt="{next(in_order)}"', body)


if __name__ == "__main__":
    run(main, snakemake)
