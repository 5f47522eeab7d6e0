"""The report and a suite's front page: they open offline, read as a person would read them."""

import re
from pathlib import Path

import pandas as pd
import pytest

from flatminima.files import read_content
from tests import synthetic
from tests.workflow import TINY, snakemake, tiny_checkout
from workflow_scripts import draw_index

LONG = {"label": "a label that is longer than a narrow window is wide & has a <sign>"}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """The front page of synthetic results, with four claims."""
    folder = synthetic.write(tmp_path_factory.mktemp("index") / "mini")
    pd.DataFrame(
        {
            "id": ["C1", "C2"],
            "title": ["It <grows>.", "It falls."],
            "primary": ["true", None],
            "quotation": ["4.2: as <said>", "4.3"],
            "self": ["consistent", "slip"],
            "self_card": ["inconsistent (X9)", None],
            "sources": [None, "differs"],
            "design": ["confounded", None],
            "measured": ["not measured", None],
            "analogue": ["517 %", None],
        }
    ).to_csv(folder / "claims.csv", index=False)
    names = ("audit.csv", "kurtosis.csv", "forks.csv", "claims.csv", "phases.json")
    arguments = {name.partition(".")[0]: read_content(folder / name) for name in names}
    arguments["template"] = synthetic.ROOT / "resources/templates/suite.html.j2"
    links = ["audit.csv", "tables/table1.md"]
    draw_index.main(**arguments, page=folder / "index.html", suite=LONG, links=links)
    # Without forks and claims, which a suite may lack, it is drawn all the same.
    del arguments["forks"], arguments["claims"]
    draw_index.main(**arguments, page=folder / "other.html", suite=LONG, links=[])
    assert 'id="forks"' not in (folder / "other.html").read_text(encoding="utf-8")
    return folder / "index.html"


def open_at(browser, page, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())


def state(browser, plot):
    return browser.execute_script(
        f"const p = document.getElementById('{plot}');"
        "return [p.layout.yaxis.title.text, p.data.map(d => d.visible)]"
    )


def test_the_page_is_whole_without_network_and_without_script(page):
    text = page.read_text(encoding="utf-8")
    assert "inconsistent (X9)" in text and "<strong>consistent" not in text, "as on the card"
    html = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert "<h1>a label" in html and "&amp; has a &lt;sign&gt;" in html
    assert not re.search(r'(?:src|href)="http', html)
    low = synthetic.audit().query("role == 'low_bit'")
    assert f"{low['gap_pct'].iloc[0]:.3f}" in html
    assert "It &lt;grows&gt;." in html and "It falls." not in html
    assert "4.2: as &lt;said&gt;" in html and "not Pythia: <strong>517 %</strong>" in html
    assert "<th></th>" not in html, "axe-core: a header without text"
    assert html.count('<a href="') == 3


def test_a_reader_switches_quantities_by_keyboard_and_reads_a_point(page, browser):
    from selenium.webdriver.common.keys import Keys

    open_at(browser, page, 1000)
    browser.execute_script("Plotly.Fx.hover('audit-plot', [{curveNumber: 0, pointNumber: 90}])")
    text = browser.find_element("css selector", "#audit-plot .hoverlayer").text
    row = synthetic.audit().query("role == 'low_bit'").iloc[90]
    assert f"{row['step']:,}" in text and f"{row['gap_pct']:.4g}"[:4] in text
    assert state(browser, "audit-plot")[1] == [True] * 4 + [False] * 5
    browser.find_element("css selector", "input[name=audit-quantity]").send_keys(Keys.ARROW_RIGHT)
    title, visible = state(browser, "audit-plot")
    assert "nats" in title and visible == [False] * 4 + [True] * 2 + [False] * 3
    browser.find_elements("css selector", "input[name=forks-quantity]")[2].click()
    assert state(browser, "forks-plot")[0] == "FP32 perplexity"
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_fits_its_window(page, browser, width):
    open_at(browser, page, width)
    browser.find_element("css selector", "#kurtosis-plot .main-svg")
    wide = browser.execute_script(
        "return [...document.querySelectorAll('body, h1, section, fieldset, .main-svg, .ytitle')]"
        ".map(e => e.getBoundingClientRect()).map(b => [b.left, b.right])"
    )
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(wide) > 15 and all(left >= 0 and right <= width for left, right in wide)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    page = tmp_path_factory.mktemp("report") / "report.html"
    built = tiny_checkout(tmp_path_factory)
    run = snakemake("--report", str(page), "--configfile", TINY, folder=built)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "WARNING" not in run.stdout
    text = page.read_text(encoding="utf-8")
    for category in ("Audit", "Kurtosis", "Forks", "Tests", "Ledger", "Notebooks"):
        assert category in text, category
    return page


@pytest.mark.workflow
def test_a_reader_of_the_report_clicks_to_figure_1_and_sees_it(report, browser):
    browser.get(report.as_uri())
    browser.find_element("xpath", "//*[normalize-space(text())='Audit']").click()
    row = "//tr[.//*[normalize-space(text())='Figure 1'] and .//*[normalize-space(text())='tiny']]"
    browser.find_element("xpath", f"({row}//a)[1]").click()
    figure = browser.find_element("xpath", "//img[contains(@src, 'filename=fig1_audit.svg')]")
    width = "return arguments[0].complete ? arguments[0].naturalWidth : 0"
    assert browser.execute_script(width, figure) > 100
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
