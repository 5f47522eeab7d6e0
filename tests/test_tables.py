"""Tables 1 and 2: the numbers of their sources, and a heading that says what may be compared."""

import runpy
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from flatminima import table_formats, tables
from tests import synthetic

NOT_COMPARABLE = "paper (Pythia-160m; not comparable)"
INPUTS = {"audit": ("audit", "phases"), "forks": ("statistics", "forks")}
PAPER = {"audit": "table1", "forks": "table2"}


def table(name, suite=synthetic.MINI, *, short=False, onset=True):
    if name == "audit":
        audit, phases = synthetic.audit(suite, short=short), synthetic.phases(suite, onset=onset)
        return tables.audit_table(audit, phases, synthetic.PAPER_TABLE1, suite=suite)
    statistics = synthetic.statistics(suite)
    return tables.forks_table(statistics, synthetic.PAPER_TABLE2, suite=suite, low="INT4")


def written(one, folder):
    paths = {suffix: folder / f"table.{suffix}" for suffix in ("csv", "md", "tex")}
    table_formats.write(one, paths.values())
    return {suffix: path.read_text(encoding="utf-8") for suffix, path in paths.items()}


def read(text):
    return pd.read_csv(StringIO(text))


def markdown_columns(text):
    """The Markdown table turned: a list of cells for each step or condition, by heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    del rows[1]  # the line of dashes
    headings, *columns = zip(*rows, strict=True)
    return [dict(zip(headings, column, strict=True)) for column in columns]


def test_table1_holds_the_audit_at_the_scaled_steps(tmp_path):
    frame = read(written(table("audit"), tmp_path)["csv"])
    assert list(frame["step"]) == [40, 280, 400, 1200, 2800, 3080, 3320, 4000, 4800, 5720]
    audit = synthetic.audit().set_index(["step", "role"])
    for row in frame.to_dict("records"):
        fp32, low, high = (
            audit.loc[(row["step"], role)] for role in ("fp32", "low_bit", "high_bit")
        )
        assert row["FP32 PPL"] == fp32["ppl"]
        assert row["INT4 gap (%)"] == low["gap_pct"]
        assert row["INT4 gap 95 % low (%)"] == low["gap_low_pct"]
        assert row["INT4 gap 95 % high (%)"] == low["gap_high_pct"]
        assert row["INT8 gap (%)"] == high["gap_pct"]
        assert row["INT4 PPL"] == low["ppl"]
        assert row["INT4 delta NLL (nats/token)"] == low["delta_nll_nats_per_token"]
        assert row["LR (% of max)"] == 100 * fp32["lr_fraction"]


def test_table1_phases_are_the_suites_own(tmp_path):
    frame = read(written(table("audit", onset=False), tmp_path)["csv"])
    assert list(frame["phase"]) == [1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    assert list(frame[f"{NOT_COMPARABLE}: phase"]) == list(synthetic.PAPER_TABLE1["phase"])


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("audit", {"step": "step", "FP32 PPL": "fp32_ppl", "INT4 gap (%)": "int4_gap_pct",
                   "INT8 gap (%)": "int8_gap_pct", "LR (% of max)": "lr_pct"}),
        ("forks", {"gap (%)": "mean_gap_pct", "sd": "sd_gap_pct", "FP32 PPL": "fp32_ppl"}),
    ],
)  # fmt: skip
def test_the_papers_columns_are_its_printed_numbers(name, columns, tmp_path):
    frame = read(written(table(name), tmp_path)["csv"])
    paper = synthetic.PAPER_TABLE1 if name == "audit" else synthetic.PAPER_TABLE2
    for heading, source in columns.items():
        expected = paper[source].to_numpy(float)
        assert np.array_equal(frame[f"{NOT_COMPARABLE}: {heading}"], expected, equal_nan=True)
    if name == "forks":
        wins = frame[f"{NOT_COMPARABLE}: wins"].fillna("")
        assert list(wins) == ["", "0/9", "6/9", "6/9"]


def test_table2_is_the_forks_with_the_seed_as_the_unit(tmp_path):
    frame = read(written(table("forks"), tmp_path)["csv"])
    forks = synthetic.forks()
    low = forks[forks["role"] == "low_bit"]
    fp32 = forks[forks["role"] == "fp32"]
    control = {}
    for row in frame.to_dict("records"):
        schedule = row["schedule"].lower()
        probes = low[low["schedule"] == schedule]
        if row["probes"] == "cool":
            probes = probes[probes["update_phase"] == "cool"]
        final = [part.loc[part["step"].idxmax(), "gap_pct"] for _, part in probes.groupby("seed")]
        mean = [part["gap_pct"].mean() for _, part in probes.groupby("seed")]
        last = probes["step"].max()
        assert row["seeds"] == 3
        assert row["final INT4 gap (%)"] == pytest.approx(np.mean(final), rel=1e-12)
        assert row["sd, final"] == pytest.approx(np.std(final, ddof=1), rel=1e-12)
        assert row["mean INT4 gap (%)"] == pytest.approx(np.mean(mean), rel=1e-12)
        assert row["sd, mean"] == pytest.approx(np.std(mean, ddof=1), rel=1e-12)
        at_last = fp32[(fp32["schedule"] == schedule) & (fp32["step"] == last)]
        assert row["FP32 PPL"] == pytest.approx(at_last["ppl"].mean(), rel=1e-12)
        int4 = probes.loc[probes["step"] == last, "ppl"].mean()
        assert row["INT4 PPL"] == pytest.approx(int4, rel=1e-12)
        if schedule == "cosine":
            assert pd.isna(row["wins, final"])
            control = probes
            continue
        matching = control[control["step"].isin(probes["step"])]
        cosine = [
            part.loc[part["step"].idxmax(), "gap_pct"] for _, part in matching.groupby("seed")
        ]
        assert row["wins, final"] == f"{sum(a < b for a in final for b in cosine)}/9"
        cosine = [part["gap_pct"].mean() for _, part in matching.groupby("seed")]
        assert row["wins, mean"] == f"{sum(a < b for a in mean for b in cosine)}/9"


@pytest.mark.parametrize("name", INPUTS)
def test_markdown_and_latex_print_the_same_cells(name, tmp_path):
    files = written(table(name), tmp_path)
    columns = markdown_columns(files["md"])
    body = files["tex"].split(r"\midrule")[1].split(r"\bottomrule")[0].strip()
    latex = [line.removesuffix(r"\\").split("&") for line in body.splitlines()]
    assert len(columns) == len(read(files["csv"]))
    for cells, row in zip(columns, latex, strict=True):
        if name == "audit":
            low, high = (cells.pop(f"INT4 gap 95 % {end} (%)") for end in ("low", "high"))
            cells["INT4 gap (%)"] += f" [{low}, {high}]"
        assert sorted(cells.values()) == sorted(cell.strip() for cell in row)


@pytest.mark.parametrize(("name", "key"), [("audit", "step"), ("forks", "condition")])
def test_markdown_is_narrow_and_its_numbers_stand_right(name, key, tmp_path):
    text = written(table(name), tmp_path)["md"]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0].startswith(f"| {key} ")
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 140
    first, *others = lines[1].strip("|").split("|")
    assert first.startswith(":")
    assert all(cell.endswith(":") and cell.startswith("-") for cell in others)


def test_printed_numbers_are_rounded_from_the_frame(tmp_path):
    files = written(table("audit"), tmp_path)
    last, cells = read(files["csv"]).iloc[-1], markdown_columns(files["md"])[-1]
    assert cells["phase"] == "3"
    assert cells["step"] == "5,720"
    assert cells["FP32 PPL"] == f"{last['FP32 PPL']:.2f}"
    for heading in ("INT4 gap (%)", "INT4 gap 95 % low (%)", "INT4 gap 95 % high (%)"):
        assert cells[heading] == f"{last[heading]:.1f}"
    assert cells["INT8 gap (%)"] == f"{last['INT8 gap (%)']:.2f}"
    printed = {"FP32 PPL": "35.3", "INT4 gap (%)": "517.1", "INT8 gap (%)": "0.79"}
    for heading, value in printed.items():
        assert cells[f"paper, not comparable: {heading}"] == value


def test_a_gap_that_rounds_to_zero_has_no_sign():
    audit = synthetic.audit()
    audit.loc[(audit["step"] == 40) & (audit["role"] == "high_bit"), "gap_pct"] = -0.003
    one = tables.audit_table(
        audit, synthetic.phases(), synthetic.PAPER_TABLE1, suite=synthetic.MINI
    )
    cells = table_formats._printed(one)[synthetic.MINI["label"], "INT8 gap (%)"]
    assert cells[0] == "0.00"


@pytest.mark.parametrize("suite", [synthetic.MINI, synthetic.PYTHIA], ids=lambda s: s["name"])
@pytest.mark.parametrize("name", INPUTS)
def test_not_comparable_is_said_exactly_where_it_is_so(name, suite, tmp_path):
    files = written(table(name, suite), tmp_path)
    own = suite["is_paper_model"]
    for suffix, text in files.items():
        assert ("not comparable" in text) is not own, suffix
    for suffix in ("md", "tex"):
        assert files[suffix].count(suite["label"]) >= 1
        assert ("are not comparable with the suite's" in files[suffix]) is not own
    heading = "paper (Pythia-160m" + (")" if own else "; not comparable)")
    assert files["csv"].splitlines()[0].count(heading) >= 4
    assert (
        files["tex"].count(rf"\multicolumn{{{6 if name == 'audit' else 4}}}{{c}}{{{heading}}}") == 1
    )
    prefix = "paper" if own else "paper, not comparable"
    headings = [cell for cell in markdown_columns(files["md"])[0] if cell.startswith("paper")]
    assert len(headings) >= 4
    assert all(cell.startswith(f"{prefix}: ") for cell in headings)


@pytest.mark.parametrize("name", INPUTS)
def test_the_warning_is_bold_and_directly_above_the_markdown_table(name, tmp_path):
    lines = written(table(name), tmp_path)["md"].splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("|"))
    assert lines[at - 1] == ""
    assert lines[at - 2].startswith("**Rows headed 'paper, not comparable' are")
    assert lines[at - 2].endswith("**")


@pytest.mark.parametrize("name", INPUTS)
def test_latex_is_a_captioned_booktabs_table(name, tmp_path):
    text = written(table(name), tmp_path)["tex"]
    for command in (r"\caption{mini (embedded", r"\label{tab:", r"\toprule", r"\bottomrule"):
        assert text.count(command) == 1
    percent = text.count("%")
    assert percent == text.count(r"\%") > 0


def test_a_short_suite_leaves_cells_empty(tmp_path):
    files = written(table("audit", short=True), tmp_path)
    frame = read(files["csv"])
    assert frame["FP32 PPL"].notna().sum() == 1
    assert frame[f"{NOT_COMPARABLE}: FP32 PPL"].notna().all()
    cells = markdown_columns(files["md"])[0]
    measured = [text for heading, text in cells.items() if not heading.startswith("paper")]
    assert measured == ["40", "1", *[""] * 8]


def test_steps_after_the_end_of_training_have_no_phase():
    phases = synthetic.phases()
    phases["segments"][-1]["last_step"] = 4000
    audit = synthetic.audit()
    one = tables.audit_table(
        audit[audit["step"] <= 4000], phases, synthetic.PAPER_TABLE1, suite=synthetic.MINI
    )
    phase = one.frame[synthetic.MINI["label"], "phase"]
    assert phase[:8].notna().all()
    assert phase[8:].isna().all()


def test_a_condition_that_was_not_run_has_empty_cells():
    statistics = synthetic.statistics()
    only = statistics[~statistics["comparison"].str.startswith("oli")]
    frame = tables.forks_table(
        only, synthetic.PAPER_TABLE2, suite=synthetic.MINI, low="INT4"
    ).frame[synthetic.MINI["label"]]
    assert frame["seeds"].notna().tolist() == [True, True, False, False]
    assert frame["wins, final"].notna().tolist() == [False, True, False, False]


@pytest.mark.parametrize("name", INPUTS)
def test_scripts_write_the_same_bytes_twice(name, tmp_path):
    results = synthetic.write(tmp_path / "mini")
    script = synthetic.ROOT / "workflow_scripts" / f"tabulate_{name}.py"
    outputs = []
    for run in ("first", "second"):
        outputs.append([tmp_path / run / f"table.{suffix}" for suffix in ("csv", "md", "tex")])
        files = {key: results / f"{key}.csv" for key in INPUTS[name]}
        files["phases"] = results / "phases.json"
        files["paper_table"] = synthetic.ROOT / f"resources/paper/{PAPER[name]}.csv"
        job = SimpleNamespace(
            input=SimpleNamespace(**files),
            output=outputs[-1],
            params=SimpleNamespace(suite=synthetic.MINI),
            log=[tmp_path / "log.txt"],
        )
        runpy.run_path(str(script), init_globals={"snakemake": job}, run_name="__main__")
    for one, other in zip(*outputs, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert len(one.read_text(encoding="utf-8")) > 300


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"t\.xlsx: a table is written as \.csv, \.md, \.tex"):
        table_formats.write(table("audit"), [tmp_path / "t.xlsx"])


def test_table1_of_a_run_without_an_even_grid_has_the_nearest_shares():
    """Each checkpoint beside the one of the paper's steps whose share of training is nearest."""
    suite = {**synthetic.MINI, "spacing": 1, "last": 1000}
    audit = synthetic.audit(synthetic.MINI)
    steps = [0, 100, 500, 700, 1000]
    audit = audit[audit["step"].isin(sorted(audit["step"].unique())[: len(steps)])]
    renamed = dict(zip(sorted(audit["step"].unique()), steps, strict=True))
    audit = audit.assign(step=audit["step"].map(renamed), lr_fraction=np.nan)
    one = tables.audit_table(audit, synthetic.phases(), synthetic.PAPER_TABLE1, suite=suite)
    own, paper = suite["label"], NOT_COMPARABLE
    # Of 1,000 steps, 30,000 of 143,000 is 210, 70,000 is 490, 100,000 is 699.
    assert list(one.frame[own, "step"]) == [100, 500, 700, 1000]
    assert list(one.frame[paper, "step"]) == [10_000, 70_000, 100_000, 143_000]
    assert one.frame[own, "LR (% of max)"].isna().all()
    assert "at 4 steps (those nearest to the paper's shares of training)" in one.caption
