"""Execute one companion notebook on a suite's results and render it as HTML."""

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from flatminima.errors import UserError
from flatminima.files import atomic_path
from flatminima.jobs import log, run

CELL_TIMEOUT_S = 600
UNDESCRIBED = 'alt="No description has been provided for this image"'  # of nbconvert


def main(notebook: str, html: str, suite: str, folder: str) -> None:
    """Write ``html``, whole or not at all, as ``jupyter nbconvert --execute --to html`` does.

    The notebook finds the folder of all results, ``folder``, and the name of the suite in
    its environment. Raises ``UserError`` that names a cell that fails; its traceback is in
    the log.
    """
    source = Path(notebook)
    page = nbformat.read(source, as_version=4)
    results = str(Path(folder).resolve())
    client = NotebookClient(
        page,
        kernel_name="python3",
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        resources={"metadata": {"path": str(source.resolve().parent)}},
    )
    try:
        client.execute(env={**os.environ, "SUITE": suite, "RESULTS": results})
    except CellExecutionError as error:
        log(str(error))
        cells = [cell for cell in page.cells if cell.cell_type == "code"]
        failed = next(c for c in cells for o in c.outputs if o.output_type == "error")
        why = f"{error.ename}: {error.evalue}"
        raise UserError(f"{source}: cell {failed.get('id', '')!r} failed, {why}") from error
    exporter = HTMLExporter(require_js_url="", mathjax_url="", mermaid_js_url="")
    body, _ = exporter.from_notebook_node(page, {"metadata": {"name": source.stem}})
    with atomic_path(html) as temporary:
        temporary.write_text(_described(body, page), encoding="utf-8")


def _described(body: str, page: nbformat.NotebookNode) -> str:
    """``body`` with the description of each image, which nbconvert drops."""
    outputs = [output for cell in page.cells for output in cell.get("outputs", [])]
    images = [o for o in outputs if "image/png" in o.get("data", {})]
    texts = [
        image.metadata.get("image/png", {}).get("alt", "drawn by the cell") for image in images
    ]
    first, *rest = body.split(UNDESCRIBED)
    pairs = zip(texts, rest, strict=True)
    return first + "".join(f'alt="{text}"{after}' for text, after in pairs)


if __name__ == "__main__":
    run(main, snakemake)
