"""Tables 1 and 2: the numbers of their sources, and a heading that says what may be compared."""

from io import StringIO

import numpy as np
import pandas as pd
import pytest

from flatminima import tables
from flatminima.claims.evidence import Measured, Printed
from flatminima.files import read_content, write_table
from tests import synthetic

NOT_COMPARABLE = "paper (Pythia-160m; not comparable)"
NAMES = ("audit", "forks")
PAPER = {"audit": synthetic.PAPER_TABLE1, "forks": synthetic.PAPER_TABLE2}


@pytest.fixture
def written(tmp_path):
    """Makes a table and returns its csv, md and tex."""

    def write(name, suite=synthetic.MINI, **parts):
        suite = synthetic.facts(suite) if name == "forks" else suite
        for part in ("audit", "phases") if name == "audit" else ("forks", "statistics"):
            parts[part] = parts[part] if part in parts else getattr(synthetic, part)(suite)
        make = tables.audit_table if name == "audit" else tables.forks_table
        paths = {suffix: tmp_path / f"table.{suffix}" for suffix in ("csv", "md", "tex")}
        tables.write(make(**parts, paper=PAPER[name], suite=suite), paths.values())
        return {suffix: path.read_text(encoding="utf-8") for suffix, path in paths.items()}

    return write


def numbers(files):
    return pd.read_csv(StringIO(files["csv"]))


def markdown_columns(text):
    """The Markdown table turned: a list of cells for each step or condition, by heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1 and len(lines[0]) <= 142
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    del rows[1]  # the line of dashes
    headings, *columns = zip(*rows, strict=True)
    return [dict(zip(headings, column, strict=True)) for column in columns]


def test_table1_holds_the_audit_at_the_scaled_steps(written):
    frame = numbers(written("audit"))
    assert list(frame["step"]) == [40, 280, 400, 1200, 2800, 3080, 3320, 4000, 4800, 5720]
    at = synthetic.audit().set_index(["role", "step"])
    for heading, role, column in (
        ("FP32 PPL", "fp32", "ppl"),
        ("INT4 gap (%)", "low_bit", "gap_pct"),
        ("INT4 gap 95 % low (%)", "low_bit", "gap_low_pct"),
        ("INT4 gap 95 % high (%)", "low_bit", "gap_high_pct"),
        ("INT8 gap (%)", "high_bit", "gap_pct"),
        ("INT4 PPL", "low_bit", "ppl"),
        ("INT4 delta NLL (nats/token)", "low_bit", "delta_nll_nats_per_token"),
    ):
        assert list(frame[heading]) == list(at.loc[role].loc[frame["step"], column]), heading
    rates = 100 * at.loc["fp32"].loc[frame["step"], "lr_fraction"]
    assert list(frame["LR (% of max)"]) == list(rates)
    # Phases are the suite's own.
    frame = numbers(written("audit", phases=synthetic.phases(onset=False)))
    assert list(frame["phase"]) == [1, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    assert list(frame[f"{NOT_COMPARABLE}: phase"]) == list(synthetic.PAPER_TABLE1["phase"])


def test_table1_of_fresh_is_at_the_shares_of_the_run_that_the_ledger_takes(written):
    """Its spacing over the paper's is not its length over the paper's: seven rows were empty."""
    suite = synthetic.FRESH
    frame = numbers(written("audit", suite))
    # Of 27 spaces of 200 steps; the paper's 1,000 and 7,000 are both nearest to the first.
    assert list(frame["step"]) == [200, 400, 1200, 2600, 3000, 3200, 3800, 4600, 5400]
    papers = [7_000, 10_000, 30_000, 70_000, 77_000, 83_000, 100_000, 120_000, 143_000]
    assert list(frame[f"{NOT_COMPARABLE}: step"]) == papers
    assert frame["FP32 PPL"].notna().all() and frame["phase"].notna().all()
    ledger = Measured({"last": 143_000}, Printed({}, None, None, None), suite, {})
    assert [ledger._step(step) for step in papers] == list(frame["step"])


def test_table2_finds_the_suites_schedules_by_their_kind(written, tmp_path):
    renamed = {"sgdr": "restarts", "oli": "waves"}
    statistics = synthetic.statistics()
    for old, new in renamed.items():
        renamed_comparisons = statistics["comparison"].str.replace(rf"^{old}\b", new, regex=True)
        statistics["comparison"] = renamed_comparisons
    suite = synthetic.facts(synthetic.MINI)
    conditions = suite["conditions"]
    decayed = {"definition": {"kind": "cosine", "weight_decay": 0.1}}
    suite["conditions"] = {
        "decayed": conditions["cosine"] | decayed,  # not the paper's, and first
        **{renamed.get(name, name): entry for name, entry in conditions.items()},
    }
    forks = synthetic.forks().replace({"schedule": renamed})
    tables.write(
        tables.forks_table(forks, statistics, PAPER["forks"], suite=suite),
        [tmp_path / "renamed.csv"],
    )
    renamed_table = pd.read_csv(tmp_path / "renamed.csv")
    pd.testing.assert_frame_equal(renamed_table, numbers(written("forks")))


def test_the_papers_columns_are_its_printed_numbers(written):
    for name, columns in {
        "audit": {
            "step": "step",
            "FP32 PPL": "fp32_ppl",
            "INT4 gap (%)": "int4_gap_pct",
            "INT8 gap (%)": "int8_gap_pct",
            "LR (% of max)": "lr_pct",
        },
        "forks": {"gap (%)": "mean_gap_pct", "sd": "sd_gap_pct", "FP32 PPL": "fp32_ppl"},
    }.items():
        frame = numbers(written(name))
        for heading, source in columns.items():
            expected = PAPER[name][source].to_numpy(float)
            assert np.array_equal(frame[f"{NOT_COMPARABLE}: {heading}"], expected, equal_nan=True)
    assert list(frame[f"{NOT_COMPARABLE}: wins"].fillna("")) == ["", "0/9", "6/9", "6/9"]


def test_table2_is_the_forks_with_the_seed_as_the_unit(written):
    low, fp32 = (synthetic.forks().query(f"role == '{role}'") for role in ("low_bit", "fp32"))
    control = low[low["schedule"] == "cosine"]

    def of_seeds(probes):
        seeds = probes.sort_values("step").groupby("seed")["gap_pct"]
        return seeds.last().tolist(), seeds.mean().tolist()

    for row in numbers(written("forks")).to_dict("records"):
        schedule = row["schedule"].lower()
        probes = low[low["schedule"] == schedule]
        if row["probes"] == "cool":
            probes = probes[probes["update_phase"] == "cool"]
        last = probes["step"].max()
        at_last = fp32[(fp32["schedule"] == schedule) & (fp32["step"] == last)]
        final, mean = of_seeds(probes)
        expected = {
            "seeds": 3,
            "final INT4 gap (%)": np.mean(final),
            "sd, final": np.std(final, ddof=1),
            "mean INT4 gap (%)": np.mean(mean),
            "sd, mean": np.std(mean, ddof=1),
            "FP32 PPL": at_last["ppl"].mean(),
            "INT4 PPL": probes.loc[probes["step"] == last, "ppl"].mean(),
        }
        assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-12)
        against = of_seeds(control[control["step"].isin(probes["step"])])
        for how, condition_gaps, other in zip(
            ("final", "mean"), (final, mean), against, strict=True
        ):
            wins = f"{sum(a < b for a in condition_gaps for b in other)}/9"
            printed_wins = row[f"wins, {how}"]
            assert pd.isna(printed_wins) if schedule == "cosine" else printed_wins == wins


def test_markdown_and_latex_print_the_same_cells_rounded_from_the_numbers(written):
    audit = synthetic.audit()
    audit.loc[(audit["step"] == 40) & (audit["role"] == "high_bit"), "gap_pct"] = -0.003
    for files in (written("forks"), written("audit", audit=audit)):
        columns = markdown_columns(files["md"])
        body = files["tex"].split(r"\midrule")[1].split(r"\bottomrule")[0].strip()
        latex = [line.removesuffix(r"\\").split("&") for line in body.splitlines()]
        for cells, row in zip(columns, latex, strict=True):
            ends = [cells.pop(key, None) for key in list(cells) if "95 %" in key]
            if ends and any(ends):
                cells["INT4 gap (%)"] += f" [{ends[0]}, {ends[1]}]"
            assert sorted(cells.values()) == sorted(cell.strip() for cell in row)
        for command in (r"\caption{mini (embedded", r"\label{tab:", r"\toprule"):
            assert files["tex"].count(command) == 1
        assert files["tex"].count("%") == files["tex"].count(r"\%") > 0
    last, (first, *_, cells) = numbers(files).iloc[-1], markdown_columns(files["md"])
    assert first["INT8 gap (%)"] == "0.00", "a gap that rounds to zero has no sign"
    assert (cells["phase"], cells["step"]) == ("3", "5,720")
    assert cells["INT4 gap (%)"] == f"{last['INT4 gap (%)']:.1f}"
    printed = {"FP32 PPL": "35.3", "INT4 gap (%)": "517.1", "INT8 gap (%)": "0.79"}
    for heading, value in printed.items():
        assert cells[f"paper, not comparable: {heading}"] == value


@pytest.mark.parametrize("suite", [synthetic.MINI, synthetic.PYTHIA], ids=lambda s: s["name"])
@pytest.mark.parametrize("name", NAMES)
def test_not_comparable_is_said_exactly_where_it_is_so(name, suite, written):
    files = written(name, suite)
    own = suite["is_paper_model"]
    for suffix, text in files.items():
        assert ("not comparable" in text) is not own, suffix
        assert suffix == "csv" or suite["label"] in text
    prefix = "paper: " if own else "paper, not comparable: "
    headings = [cell for cell in markdown_columns(files["md"])[0] if cell.startswith("paper")]
    assert len(headings) >= 4 and all(cell.startswith(prefix) for cell in headings)


def test_a_suite_without_a_step_or_a_condition_has_empty_cells(written):
    frame = numbers(written("audit", audit=synthetic.audit(short=True)))
    assert frame["FP32 PPL"].notna().sum() == 1
    assert frame[f"{NOT_COMPARABLE}: FP32 PPL"].notna().all()
    phases = synthetic.phases()
    phases["segments"][-1]["last_step"] = 4000
    frame = numbers(written("audit", phases=phases))
    assert frame["phase"].notna().tolist() == [True] * 8 + [False] * 2, "after the end: no phase"
    statistics = synthetic.statistics()
    only = statistics[~statistics["comparison"].str.startswith("oli")]
    frame = numbers(written("forks", statistics=only))
    assert frame["seeds"].notna().tolist() == [True, True, False, False]


def test_table1_of_a_run_without_an_even_grid_has_the_nearest_shares(written):
    audit = synthetic.audit()
    steps = [0, 100, 500, 700, 1000]
    audit = audit.iloc[: 3 * len(steps)].assign(step=np.repeat(steps, 3), lr_fraction=np.nan)
    suite = {**synthetic.MINI, "spacing": 1, "last": 1000}
    frame = numbers(written("audit", suite, audit=audit, phases=synthetic.phases()))
    # Of 1,000 steps, 30,000 of 143,000 is 210, 70,000 is 490, 100,000 is 699.
    assert list(frame["step"]) == [100, 500, 700, 1000]
    assert list(frame[f"{NOT_COMPARABLE}: step"]) == [10_000, 70_000, 100_000, 143_000]
    assert frame["LR (% of max)"].isna().all()


@pytest.mark.parametrize("name", ["NA", "null", "nan", "None", "007", "1e5", "True"])
def test_any_name_survives_a_table(tmp_path, name):
    table = pd.DataFrame({"suite": [name, name], "step": [1, 2], "value": [0.5, np.nan]})
    write_table(tmp_path / "audit.csv", table)
    pd.testing.assert_frame_equal(read_content(tmp_path / "audit.csv"), table, check_dtype=False)
