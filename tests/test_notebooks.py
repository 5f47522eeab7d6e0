"""Companion notebooks: committed bare, rendered whole or not at all, failures kept."""

import copy
import json
import re
import runpy
from types import SimpleNamespace

import nbformat
import psutil
import pytest
import yaml
from nbclient.exceptions import CellExecutionError

from flatminima.figures import figure_texts
from flatminima.notebooks.display import brackets, fold, printed, tabs
from flatminima.notebooks.rendering import strip
from flatminima.notebooks.results import open_results
from flatminima.notebooks.sliders import audit_slider, forks_slider
from flatminima.planning import SuitePlan
from tests import synthetic
from workflow_scripts import render_notebook, tabulate_audit, tabulate_forks

FOLDER = synthetic.ROOT / "notebooks"
NAMES = ["tour", "audit", "kurtosis", "forks"]
COMMITTED = [*NAMES, "mechanism"]  # rendered whole by test_extended.py
ALLOWED = {"IPython", "os", "pandas", "pathlib", "sys", "workflow_scripts"}


def add_tables(results, suite):
    paper = synthetic.ROOT / "resources/paper"
    outputs = {n: [results / f"tables/{n}.{s}" for s in ("csv", "md", "tex")]
               for n in ("table1", "table2")}  # fmt: skip
    tabulate_audit.main(
        audit=results / "audit.csv", phases=results / "phases.json",
        paper_table=paper / "table1.csv", outputs=outputs["table1"], suite=suite,
    )  # fmt: skip
    tabulate_forks.main(
        statistics=results / "statistics.csv", forks=results / "forks.csv",
        paper_table=paper / "table2.csv", outputs=outputs["table2"], suite=suite,
    )  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Folder of the results of two suites: mini, and the paper's model without an onset."""
    root = tmp_path_factory.mktemp("results")
    add_tables(synthetic.write(root / "mini"), synthetic.MINI)
    papers = synthetic.write(root / synthetic.PYTHIA["name"], synthetic.PYTHIA, onset=False)
    add_tables(papers, synthetic.PYTHIA)
    return root


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_notebooks_are_bare_and_have_stable_ids(name):
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert strip(copy.deepcopy(notebook)) == notebook
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    # Ids written by an editor are eight hexadecimal digits; these are words.
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", one) for one in ids)
    assert not re.search(r"/home/|/root/|/tmp/|https?://", text)


@pytest.mark.parametrize("name", COMMITTED)
def test_notebooks_say_on_top_what_mini_is_and_which_rules_made_the_files(name):
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    assert "**`mini` is not Pythia.**" in cells[0].source
    sources = cells[-1].source
    rules = re.findall(r"\| `([a-z_]+)` \|$", sources, flags=re.M)
    files = re.findall(r"^\| `([\w./]+)` \|", sources, flags=re.M)
    assert len(rules) == len(files) >= 3
    for rule in rules:
        assert (synthetic.ROOT / "workflow_scripts" / f"{rule}.py").is_file()
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    read = set(re.findall(r"results\.(?:table|path)\(\"([\w./]+)\"\)", code))
    read |= {"phases.json"} if "results.phases()" in code else set()
    assert read == set(files)


@pytest.mark.parametrize("name", COMMITTED)
def test_notebooks_import_nothing_that_trains_or_downloads(name):
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    imported = re.findall(r"^ *(?:from|import) (\w+)", code, flags=re.M)
    assert set(imported) <= ALLOWED
    assert not re.search(r"^ *!|open\(.*[\"']w|to_csv|savefig|plotting\.save", code, flags=re.M)


def another_kernel_named_python3(folder):
    """A kernel that a user has installed for an interpreter that cannot run the notebooks."""
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = {"argv": ["false", "{connection_file}"], "display_name": "other", "language": "python"}
    spec.write_text(json.dumps(argv))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_render_from_any_directory(name, results, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_PATH", str(another_kernel_named_python3(tmp_path / "jupyter")))
    before = psutil.Process().children(recursive=True)
    html = tmp_path / "out" / f"{name}.html"
    job = SimpleNamespace(
        input=SimpleNamespace(notebook=FOLDER / f"{name}.ipynb"),
        output=SimpleNamespace(html=html),
        params=SimpleNamespace(suite=synthetic.MINI, results=str(results)),
        log=[str(tmp_path / f"{name}.log")],
    )
    script = synthetic.ROOT / "workflow_scripts" / "render_notebook.py"
    runpy.run_path(str(script), init_globals={"snakemake": job}, run_name="__main__")
    page = html.read_text(encoding="utf-8")
    assert "Suite: mini (embedded suite, not Pythia)" in page
    images = re.findall(r"<img[^>]*>", page)
    assert len(images) >= 1
    for image in images:
        assert "data:image/png;base64" in image
        alt = re.search(r'alt="([^"]*)"', image)[1]
        assert alt.startswith("mini (embedded suite, not Pythia): ")
        assert len(alt) > 150
    for place in (str(synthetic.ROOT), str(tmp_path), str(results)):
        assert place not in page
    assert not re.search(r"20\d\d-\d\d-\d\dT\d\d:\d\d", page)
    assert [path.name for path in html.parent.iterdir()] == [html.name]
    assert f"{name}: cell" in (tmp_path / f"{name}.log").read_text(encoding="utf-8")
    assert not (tmp_path / f"{name}.ipynb").exists()
    assert psutil.Process().children(recursive=True) == before


def test_the_papers_own_suite_without_an_onset(results, tmp_path):
    pages = []
    for run in ("first", "second"):
        html = tmp_path / f"{run}.html"
        render_notebook.main(
            notebook=FOLDER / "tour.ipynb",
            html=html,
            log=tmp_path / "log.txt",
            suite=synthetic.PYTHIA,
            results=results,
        )
        pages.append(html.read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    assert "the paper's own model" in pages[0]
    assert "The rule finds no onset" in pages[0]
    assert "not comparable" not in pages[0]


def test_numbers_and_intervals_are_empty_where_there_is_none():
    assert printed([0.0123, float("nan")], ".2g") == ["0.012", ""]
    assert brackets([-1, float("nan")], [2.346, 1]) == ["[-1.00,\u00a02.35]", ""]


def test_figure_texts_hold_the_numbers_of_their_tables():
    audit, phases, suite = synthetic.audit(), synthetic.phases(), synthetic.MINI
    last = audit[audit["step"] == 5720].set_index("role")
    text = figure_texts.audit_text(audit, phases, suite=suite)
    assert f"to {last.loc['low_bit', 'gap_pct']:.2f} %" in text
    assert f"at step 3,080 and ends at {last.loc['fp32', 'ppl']:.2f}" in text
    assert "the onset is at step 3,200" in text
    text = figure_texts.audit_text(audit, synthetic.phases(onset=False), suite=suite)
    assert "no onset is found" in text
    mean = synthetic.kurtosis().query("statistic == 'mean_over_tensors'")["excess_kurtosis"]
    assert f"largest {mean.max():.2f}" in figure_texts.kurtosis_text(
        synthetic.kurtosis(), suite=suite
    )
    forks = synthetic.forks()
    end = forks[(forks["step"] == 4000) & (forks["schedule"] == "sgdr")].groupby("role")
    gap, ppl = end["gap_pct"].mean()["low_bit"], end["ppl"].mean()
    expected = f"SGDR {gap:.1f} %, {ppl['low_bit']:.2f} and {ppl['fp32']:.2f}"
    assert expected in figure_texts.forks_text(forks, suite=suite)
    delta = last.loc["high_bit", "delta_nll_nats_per_token"]
    assert f"{delta:.5f} and" in figure_texts.bit_widths_text(audit, suite=suite)


def failing_notebook(path):
    cells = [
        nbformat.v4.new_code_cell("print('reached', 6 * 7)"),
        nbformat.v4.new_code_cell("1 / 0"),
        nbformat.v4.new_code_cell("print('never')"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_a_failing_notebook_keeps_its_traceback_and_leaves_no_html(results, tmp_path):
    html, log = tmp_path / "html" / "bad.html", tmp_path / "logs" / "bad.log"
    html.parent.mkdir()
    html.write_text("from an earlier run")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        render_notebook.main(
            notebook=failing_notebook(tmp_path / "bad.ipynb"),
            html=html,
            log=log,
            suite=synthetic.MINI,
            results=results,
        )
    assert list(html.parent.iterdir()) == []
    kept = nbformat.read(log.with_suffix(".ipynb"), as_version=4)
    first, second, third = kept.cells
    assert first.outputs[0].text == "reached 42\n"
    assert second.outputs[0].ename == "ZeroDivisionError"
    assert any(
        "1 / 0" in re.sub(r"\x1b\[[\d;]*m", "", line) for line in second.outputs[0].traceback
    )
    assert third.outputs == []


def test_missing_results_name_the_command_that_makes_them(tmp_path):
    results = open_results({"RESULTS": str(tmp_path), "SUITE": "mini"})
    command = "snakemake --cores 2 results/mini/audit.csv"
    with pytest.raises(FileNotFoundError, match=command):
        results.table("audit.csv")


def test_the_environment_chooses_the_suite():
    own = {"name": "own", "label": "own run", "is_paper_model": False, "spacing": 10}
    chosen = open_results({"SUITE": "own", "RESULTS": "there", "SUITE_SETTINGS": json.dumps(own)})
    assert (chosen.suite, chosen.folder.as_posix()) == (own, "there/own")
    config = yaml.safe_load((synthetic.ROOT / "config.yaml").read_text(encoding="utf-8"))
    for name, known in [("mini", synthetic.MINI), ("pythia-160m", synthetic.PYTHIA)]:
        suite = open_results({"SUITE": name}).suite
        plan = SuitePlan(name, config["suites"][name], config["quantizers"])
        assert suite == plan.facts
        assert suite == json.loads(json.dumps(suite))
        assert known.items() <= suite.items()
    assert open_results({}).suite["name"] == "mini"
    with pytest.raises(ValueError, match="SUITE pythia is not known; did you mean pythia-1b"):
        open_results({"SUITE": "pythia"})


def test_a_slider_reads_every_checkpoint_and_is_whole_without_a_script(browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    audit, steps = synthetic.audit(), sorted(synthetic.audit()["step"].unique())
    shown = audit_slider(audit)
    assert "http" not in shown and "<label hidden>" in shown, "no dead control without a script"
    assert f"<output>step {steps[-1]:,}</output>" in shown and "<polyline" in shown
    page = tmp_path / "slider.html"
    page.write_text(f"<html><body>{shown}{shown.split('<script>')[0]}</body></html>")
    browser.get(page.as_uri())
    control = browser.find_element("xpath", "(//input[@type='range'])[1]")
    box = control.find_element("xpath", "./ancestor::div[@data-places]")
    low = audit[audit["role"] == "low_bit"].set_index("step")
    for keys, step in ((Keys.HOME, steps[0]), (Keys.ARROW_RIGHT, steps[1]), (Keys.END, steps[-1])):
        control.send_keys(keys)
        read = [c.get_property("textContent") for c in box.find_elements("tag name", "output")]
        assert read[0] == control.get_attribute("aria-valuetext") == f"step {step:,}"
        row = low.loc[step]
        gap = f"{row['gap_pct']:z.2f} [{row['gap_low_pct']:.2f},\u00a0{row['gap_high_pct']:.2f}]"
        assert gap in read and f"{row['ppl']:,.2f}" in read
        mark = float(box.find_element("class name", "mark").get_attribute("x1"))
        assert 42 <= mark <= 700 and (mark == 42) == (step == steps[0])
    assert not browser.find_element("xpath", "(//input[@type='range'])[2]").is_displayed()
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


def test_a_slider_of_forks_has_a_mean_over_the_seeds_it_is_given():
    forks = synthetic.forks()
    low, last = forks[forks["role"] == "low_bit"], forks["step"].max()
    for part in (low, low[low["seed"] == 0]):
        ends = part[part["step"] == last].groupby("schedule")["gap_pct"].mean()
        shown = forks_slider(forks[forks["seed"].isin(part["seed"])])
        assert all(f"<output>{gap:z.2f}</output>" in shown for gap in ends)


def test_tabs_show_one_panel_at_a_time_and_all_of_them_on_paper(browser, tmp_path):
    page = tmp_path / "tabs.html"
    shown = tabs({"run & seed": "<i id='one'>1</i>", "probe": "<i id='two'>2</i>"}).data
    assert "<script" not in shown and "run &amp; seed" in shown
    page.write_text(f"<html><body>{shown}{fold('a rule', 'x < y').data}</body></html>")
    browser.get(page.as_uri())
    one, two = (browser.find_element("id", name) for name in ("one", "two"))
    assert one.is_displayed() and not two.is_displayed()
    browser.find_element("xpath", "//label[text()='probe']").click()
    assert two.is_displayed() and not one.is_displayed()
    browser.find_element("xpath", "//summary[text()='a rule']").click()
    assert browser.find_element("xpath", "//details/p").text == "x < y"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert one.is_displayed() and two.is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
