"""Tables 1 and 2: the numbers of their sources, and a heading that says what may be compared."""

import runpy
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests import synthetic
from workflow_scripts.lib import tables

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
    tables.write(one, paths.values())
    return {suffix: path.read_text(encoding="utf-8") for suffix, path in paths.items()}


def read(text):
    return pd.read_csv(StringIO(text))


def markdown_rows(text):
    """Cells of a Markdown table, without its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


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
    rows = markdown_rows(files["md"])
    body = files["tex"].split(r"\midrule")[1].split(r"\bottomrule")[0].strip()
    latex = [line.removesuffix(r"\\").split("&") for line in body.splitlines()]
    assert len(rows) == len(read(files["csv"]))
    assert [[c.replace("\u00a0", " ") for c in row] for row in rows] == [
        [cell.strip() for cell in row] for row in latex
    ]


def test_printed_numbers_are_rounded_from_the_frame(tmp_path):
    files = written(table("audit"), tmp_path)
    frame, rows = read(files["csv"]), markdown_rows(files["md"])
    last = frame.iloc[-1]
    interval = "{:.1f} [{:.1f}, {:.1f}]".format(
        last["INT4 gap (%)"], last["INT4 gap 95 % low (%)"], last["INT4 gap 95 % high (%)"]
    )
    assert rows[-1][:5] == [
        "3", "5,720", f"{last['FP32 PPL']:.2f}", interval.replace(" ", "\u00a0"),
        f"{last['INT8 gap (%)']:.2f}",
    ]  # fmt: skip
    assert rows[-1][-4:] == ["35.3", "517.1", "0.79", "10.0"]


@pytest.mark.parametrize("suite", [synthetic.MINI, synthetic.PYTHIA], ids=lambda s: s["name"])
@pytest.mark.parametrize("name", INPUTS)
def test_not_comparable_is_said_exactly_where_it_is_so(name, suite, tmp_path):
    files = written(table(name, suite), tmp_path)
    for suffix, text in files.items():
        assert "paper (Pythia-160m" in text
        assert ("not comparable" in text) is not suite["is_paper_model"], suffix
    for suffix in ("md", "tex"):
        assert suite["label"] in files[suffix]
        assert ("are not comparable with the suite's" in files[suffix]) is not suite[
            "is_paper_model"
        ]
    headings = files["csv"].splitlines()[0]
    assert headings.count(tables.paper_heading(suite)) >= 4


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
    assert markdown_rows(files["md"])[0][2:8] == [""] * 6


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
        tables.write(table("audit"), [tmp_path / "t.xlsx"])
