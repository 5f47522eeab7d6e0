"""claims.csv, claims.md and single claims as files."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from flatminima.claims import render, verdicts
from tests.test_claims import LEDGER, PAPER, SUITE
from tests.test_claims_suites import MINI, audit, forks, kurtosis, phases
from workflow_scripts.judge_claims import main

PRINTED = {
    "claims": str(PAPER / "claims.yaml"),
    "table1": str(PAPER / "table1.csv"),
    "table2": str(PAPER / "table2.csv"),
    "lambada": str(PAPER / "pythia_lambada.csv"),
}
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def build(folder: Path, suite: dict, names: list[str], **inputs) -> Path:
    main(**PRINTED, **inputs, suite=suite, outputs=[str(folder / name) for name in names])
    return folder


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "paper"
    return build(folder, SUITE, ["claims.csv", "claims.md", "claims/C39.json"])


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "mini"
    folder.mkdir()
    tables = {"audit": audit(MINI), "kurtosis": kurtosis(MINI), "forks": forks(MINI)}
    inputs = {}
    for name, table in tables.items():
        inputs[name] = str(folder / f"{name}.csv")
        table.to_csv(inputs[name], index=False)
    inputs["phases"] = str(folder / "phases.json")
    Path(inputs["phases"]).write_text(json.dumps(phases(MINI)), encoding="utf-8")
    return build(folder, MINI, ["claims.csv", "claims.md"], **inputs)


@pytest.fixture(params=["printed", "mini"])
def built(request):
    return request.getfixturevalue(request.param)


def read(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "claims.csv", keep_default_na=False)


def test_the_table_has_its_columns_and_every_claim(built):
    table = read(built)
    assert list(table.columns) == [
        "id", "section", "claim", "paper", "statistic", "measured", "tolerance", "verdict",
        "analogue", "reason", "evidence",
    ]  # fmt: skip
    assert list(table["id"]) == [claim.id for claim in LEDGER.claims]
    assert set(table["verdict"]) <= set(verdicts.VERDICTS)


def test_evidence_leads_to_files_that_exist(built):
    for link in read(built)["evidence"]:
        assert (built / link.split("#")[0]).is_file(), link


def test_links_of_the_page_resolve(built):
    links = LINK.findall((built / "claims.md").read_text(encoding="utf-8"))
    assert len(links) >= 2 * len(LEDGER.claims)
    for link in set(links):
        assert (built / link).is_file(), link


def test_lines_linked_in_the_ledger_hold_the_claim(printed):
    lines = (PAPER / "claims.yaml").read_text(encoding="utf-8").splitlines()
    page = (printed / "claims.md").read_text(encoding="utf-8")
    found = re.findall(r'<a id="(\w+)"></a>\[\w+\]\([^)]*#L(\d+)\)', page)
    assert len(found) == len(LEDGER.claims)
    for name, line in found:
        assert f"id: {name}" in lines[int(line) - 1]


def test_the_page_agrees_with_the_table(built):
    table, page = read(built), (built / "claims.md").read_text(encoding="utf-8")
    for row in table.itertuples():
        line = next(one for one in page.splitlines() if f'<a id="{row.id}">' in one)
        assert f"**{row.verdict}**" in line
    for verdict, count in table["verdict"].value_counts().items():
        assert f"| {verdict} | {count} |" in page
        assert f"{count} {verdict}" in page


def test_tables_of_the_page_are_whole(built):
    """Every row of a table has as many cells as its header."""
    width = None
    for line in (built / "claims.md").read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            width = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width, line


def test_mini_is_no_result_about_pythia(mini):
    page = (mini / "claims.md").read_text(encoding="utf-8")
    assert page.splitlines()[0].endswith("mini (embedded suite, not Pythia)")
    assert "a small experiment of its own: nothing measured on it is a result about Pythia" in page
    assert "statements that mean something for any run" in page
    assert not read(mini)["measured"].str.contains("mini").any()


def test_the_printed_suite_says_that_nothing_was_measured(printed):
    page = (printed / "claims.md").read_text(encoding="utf-8")
    assert "Nothing was measured for this page." in page
    assert "analogue |" not in page
    assert (read(printed)["analogue"] == "").all()


def test_bytes_are_stable(mini, tmp_path):
    inputs = {n: str(mini / f"{n}.csv") for n in ("audit", "kurtosis", "forks")}
    inputs["phases"] = str(mini / "phases.json")
    first, second = mini / "again.csv", mini / "once_more.csv"
    for path in (first, second):
        main(**PRINTED, **inputs, suite=MINI, outputs=[str(path)])
    assert first.read_bytes() == second.read_bytes() == (mini / "claims.csv").read_bytes()


def test_one_claim_as_a_target(printed):
    claim = json.loads((printed / "claims" / "C39.json").read_text(encoding="utf-8"))
    assert claim["id"] == "C39" and claim["verdict"] == verdicts.NOT_RUN
    assert (printed / "claims" / claim["evidence"].split("#")[0]).is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [("C99.json", "no claim 'C99'"), ("claims.html", "written as .csv, .md or .json")],
)
def test_outputs_that_do_not_exist(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        build(tmp_path, SUITE, [name])


def test_tolerances_are_words():
    assert render.tolerance_text({"steps": 3000, "relative_pct": 3}) == (
        "±3,000 steps; ±3 % of the value"
    )
    assert render.paper_text({"step": 77000, "gap_pct": 12.7}) == "step 77,000; gap 12.7 %"
    for claim in LEDGER.claims:
        assert render.tolerance_text(claim.tolerance)
