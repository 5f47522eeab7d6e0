"""The report and the interactive figure: pages that open offline, read as a person would."""

import re
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest

from flatminima.figures import audit_page
from tests import synthetic
from tests.workflow import TINY, snakemake, tiny_checkout

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    page = tmp_path_factory.mktemp("report") / "report.html"
    built = tiny_checkout(tmp_path_factory)
    run = snakemake("--report", str(page), "--configfile", TINY, folder=built)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "WARNING" not in run.stdout
    return page


def test_every_result_has_a_caption_and_a_category(report):
    text = report.read_text(encoding="utf-8")
    for category in ("Audit", "Kurtosis", "Forks", "Tests", "Ledger", "Notebooks"):
        assert re.search(rf'"?{category}"?', text), category


def test_a_reader_clicks_to_figure_1_and_sees_it(report, browser):
    browser.get(report.as_uri())
    click(browser, "//*[normalize-space(text())='Audit']")
    row = "//tr[.//*[normalize-space(text())='Figure 1'] and .//*[normalize-space(text())='tiny']]"
    click(browser, f"({row}//a)[1]")
    figure = find(browser, "//img[contains(@src, 'filename=fig1_audit.svg')]")
    width = "return arguments[0].complete ? arguments[0].naturalWidth : 0"
    assert browser.execute_script(width, figure) > 100
    errors = [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert not errors


def test_a_reader_switches_the_scale_and_reads_a_point(browser, tmp_path_factory):
    page = tiny_checkout(tmp_path_factory) / "results/tiny/figures/fig1_audit.html"
    browser.get(page.as_uri())
    axis = "return document.getElementById('audit').layout.yaxis"
    assert browser.execute_script(f"{axis}.type") == "linear"
    click(browser, button("log"))
    click(browser, button("nats"))
    assert browser.execute_script(f"{axis}.type") == "log"
    assert "nats" in browser.execute_script(f"{axis}.title.text")
    hover = "Plotly.Fx.hover('audit', [{curveNumber: 1, pointNumber: 9}])"
    browser.execute_script(hover)
    audit = pd.read_csv(page.parents[1] / "audit.csv")
    row = audit[audit["role"] == "low_bit"].iloc[9]
    text = find(browser, "//*[contains(@class, 'hovertext')]").text
    assert f"step {row['step']:,}" in text
    assert f"gap {row['gap_pct']:.2f} %" in text
    assert f"learning rate {row['lr']:.3g}" in text
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


def test_the_page_fits_a_narrow_window(browser, tmp_path):
    page = tmp_path / "audit.html"
    suite = {"label": "a label that is longer than a narrow window is wide & has a sign"}
    audit_page.save(audit_page.draw(synthetic.audit(), synthetic.phases(), suite=suite), page)
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    places = (
        "return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect())"
    )
    find(browser, button("log"))
    boxes = browser.execute_script(places, ".updatemenu-button, h1, .g-ytitle, .g-y2title")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(boxes) == 7 and all(box["left"] >= 0 and box["right"] <= 400 for box in boxes)
    for one, other in combinations(boxes, 2):
        beside = one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
        assert beside or one["bottom"] <= other["top"] + 1 or other["bottom"] <= one["top"] + 1


def button(text: str) -> str:
    return f"//*[contains(@class, 'updatemenu-button')][normalize-space(.)='{text}']"


def find(browser, path: str):
    return browser.find_element("xpath", path)


def click(browser, path: str) -> None:
    find(browser, path).click()
