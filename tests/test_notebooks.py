"""Companion notebooks: committed bare, readable alone, rendered whole or not at all."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from flatminima.errors import UserError
from flatminima.style import save
from tests import synthetic
from tests.test_figures import draw
from tests.workflow import rule_names
from workflow_scripts import render_notebook, tabulate_results

FOLDER = synthetic.ROOT / "notebooks"
COMMITTED = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
RENDERED = ["tour", "audit", "kurtosis", "forks"]  # mechanism: test_extended, your_run: its own
ALLOWED = {"IPython", "json", "os", "pandas", "pathlib", "seaborn"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Folder of the results of mini, and of the paper's model without an onset."""
    root = tmp_path_factory.mktemp("results")
    paper = synthetic.ROOT / "resources/paper"
    for suite, onset in ((synthetic.MINI, True), (synthetic.PYTHIA, False)):
        folder = synthetic.write(root / suite["name"], suite, onset=onset)
        synthetic.suite_table().to_csv(folder / "suite.csv", index=False)
        for number, names in (
            (1, ("audit.csv", "phases.json")),
            (2, ("forks.csv", "statistics.csv")),
        ):
            files = {Path(name).stem: folder / name for name in names}
            files["paper"] = paper / f"table{number}.csv"
            facts = synthetic.facts(suite)
            tabulate_results.main(files, [folder / f"tables/table{number}.md"], facts)
        for name in ("fig1_audit", "fig2_kurtosis", "fig3_forks", "fig5_bit_widths"):
            save(draw(name.split("_", 1)[1], suite, onset=onset), [folder / f"figures/{name}.png"])
    return root


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_notebooks_are_bare_and_stand_alone_and_name_their_sources(name):
    path = FOLDER / f"{name}.ipynb"
    strip = [sys.executable, "-m", "nbstripout", "--keep-id", "--verify", str(path)]
    assert subprocess.run(strip, check=False).returncode == 0
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.kernelspec.name == "python3", "the default kernel"
    cells = notebook.cells
    # Ids written by an editor are eight hexadecimal digits; these are words.
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", cell.id) for cell in cells)
    assert re.search(r"\*\*(`mini`|This) is not Pythia\.\*\*", cells[0].source)
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    code = "\n".join(sources)
    assert set(re.findall(r"^ *(?:from|import) (\w+)", code, flags=re.M)) <= ALLOWED
    assert not re.search(r"/home/|/root/|/tmp/|https?://", code)
    assert max(source.count("\n") for source in sources[1:]) < 20, "a cell can be copied"
    # They end with questions about cells that are there, and with the rules behind their files.
    exercises = re.findall(r"^- In `([a-z-]+)`.*\?$", cells[-2].source, flags=re.M)
    assert len(exercises) in (2, 3) and set(exercises) <= {cell.id for cell in cells[:-2]}
    rule_of_file = dict(re.findall(r"^\| `([\w./]+)` \| `(\w+)` \|$", cells[-1].source, flags=re.M))
    assert rule_of_file.keys() == set(re.findall(r'results / "([\w./]+)"', code))
    assert set(rule_of_file.values()) <= rule_names()


@pytest.mark.parametrize("name", RENDERED)
def test_notebooks_render_from_any_directory_offline(name, results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    html = tmp_path / "out" / f"{name}.html"
    suite = "pythia-160m" if name == "audit" else "mini"
    executed = html.with_suffix(".ipynb")
    source = FOLDER / f"{name}.ipynb"
    render_notebook.main(str(source), str(executed), str(html), suite, str(results))
    page = html.read_text(encoding="utf-8")
    images = re.findall(r"<img[^>]*>", page)
    assert any('alt="Figure' in image for image in images)
    assert all('alt="' in i and "No description" not in i and '"data:' in i for i in images)
    assert not re.search(r'(?:src|href)="https?:|Warning', page)
    assert sorted(html.parent.iterdir()) == [html, executed]
    cells = nbformat.read(executed, as_version=4).cells
    code_cells = [cell for cell in cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code_cells), "a reader can go on from it"
    assert sum(len(cell.outputs) for cell in code_cells) >= len(images)
    for place in (str(synthetic.ROOT), str(tmp_path), str(results)):
        assert place not in page


def test_a_failing_cell_is_named_and_leaves_no_html(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    html = tmp_path / "bad.html"
    notebook = tmp_path / "bad.ipynb"
    executed = tmp_path / "executed.ipynb"
    cells = [nbformat.v4.new_code_cell(code) for code in ("print(6 * 7)", "x = 0\n1 / x")]
    cells[1]["id"] = "division"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    with pytest.raises(UserError, match="cell 'division' failed, ZeroDivisionError"):
        render_notebook.main(str(notebook), str(executed), str(html), "mini", str(tmp_path))
    assert not html.exists() and not executed.exists()
    assert "Traceback" in caplog.text


def test_the_page_of_the_forks_shows_every_unit_of_the_tests(results):
    """The point of the page is that p changes with the unit."""
    notebook = nbformat.read(FOLDER / "forks.ipynb", as_version=4)
    [source] = [cell.source for cell in notebook.cells if cell.id == "tests"]
    statistics = pd.read_csv(results / "mini" / "statistics.csv")
    namespace = {"statistics": statistics}
    exec(source, namespace)  # noqa: S102
    units = set(namespace["rows"]["unit"])
    assert {"seed", "probe", "segment"} <= units
