"""Execute a notebook and render it as HTML; what a failed one had reached is kept."""

import os
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from flatminima.files import atomic_path
from flatminima.jobs import log

ROOT = Path(__file__).resolve().parents[3]
CELL_TIMEOUT_S = 600
# The template centres tables of text cells and not those of results.
STYLE = "<style>.jp-RenderedHTMLCommon table { margin-left: 0; }</style>"


class _OwnKernel(AsyncKernelManager):
    """Starts the kernel of this very interpreter.

    Without kernel directories, a kernel named python3 that a user has installed for
    another Python cannot take its place.
    """

    def _kernel_spec_manager_default(self) -> KernelSpecManager:
        return KernelSpecManager(parent=self, kernel_dirs=[])


def strip(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove outputs, execution counts and cell metadata in place: the form that is committed."""
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    notebook.metadata = {"language_info": {"name": "python"}}
    return notebook


def execute(notebook: nbformat.NotebookNode, *, name: str, environment: dict[str, str]) -> None:
    """Run every cell in place, in this interpreter's environment and in the notebooks' folder.

    ``environment`` is added to the process environment; the repository comes first on the
    kernel's PYTHONPATH. Raises ``nbclient.exceptions.CellExecutionError`` at the first
    cell that fails; the cells before it, and its traceback, are then in ``notebook``.
    """
    path = os.pathsep.join(filter(None, [str(ROOT / "workflow_scripts"), os.environ.get("PYTHONPATH")]))
    total = len(notebook.cells)
    client = NotebookClient(
        notebook,
        kernel_manager_class=_OwnKernel,
        kernel_name="python3",
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        resources={"metadata": {"path": str(ROOT / "notebooks")}},
        on_cell_executed=lambda cell, cell_index, execute_reply: log(
            f"{name}: cell {cell_index + 1} of {total}"
        ),
    )
    client.execute(env={**os.environ, **environment, "PYTHONPATH": path})


def to_html(notebook: nbformat.NotebookNode, title: str) -> str:
    """The executed notebook as one HTML page that needs no other file."""
    exporter = HTMLExporter(require_js_url="", mathjax_url="", mermaid_js_url="")
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": title}})
    return body.replace("</head>", f"{STYLE}</head>", 1)


def render(
    source: str | Path, html: str | Path, *, failed: str | Path, environment: dict[str, str]
) -> None:
    """Execute the notebook at ``source`` and write ``html``, whole or not at all.

    Where a cell fails, the partly executed notebook with its traceback is written to
    ``failed``, no HTML is left, and the error is raised again.
    """
    source, html, failed = Path(source), Path(html), Path(failed)
    html.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    notebook = nbformat.read(source, as_version=4)
    try:
        execute(notebook, name=source.stem, environment=environment)
    except Exception:
        failed.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, failed)
        log(f"{source.name} failed; as far as it came it is in {failed}")
        raise
    with atomic_path(html) as temporary:
        temporary.write_text(to_html(notebook, source.stem), encoding="utf-8")
    log(f"{html.name}: all {len(notebook.cells)} cells ran, {html.stat().st_size / 1e6:.1f} MB")
