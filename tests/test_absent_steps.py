"""A revision that could not be had: said beside the numbers, and never one of them."""

import json

import numpy as np
import pandas as pd

from flatminima import gap_figure, tables
from flatminima.absent_steps import diverged_steps, hole_words, holes, left_out_words, missing_steps
from flatminima.early_warning import warning_table
from flatminima.phases import describe_phases
from flatminima.statistics_table import all_statistics
from tests import synthetic
from tests.test_phases import suite as run_of
from workflow_scripts import plot_bit_widths, plot_kurtosis

MINI, LOST = synthetic.MINI, 3080  # the sixth row of Table 1
WORDS = "missing: step 3,080"


def without(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["step"] != LOST]


PHASES = synthetic.phases() | {"missing": [LOST]}


def test_words():
    assert left_out_words({}) == left_out_words(synthetic.phases()) == ""
    assert left_out_words(PHASES) == WORDS
    both = left_out_words({"missing": [LOST], "diverged": [5680, 5720]})
    assert both == f"{WORDS}; diverged: steps 5,680, 5,720"
    assert left_out_words({"missing": [8, 4]}) == "missing: steps 4, 8"
    many = left_out_words({"missing": range(0, 9000, 1000)})
    assert many.endswith("4,000, 5,000 and 3 more")
    assert (
        hole_words([40, 160], 40, {"diverged": [80, 200]}) == "missing: step 120; diverged: step 80"
    )
    table = synthetic.suite_table(missing=(LOST,))
    assert missing_steps(table) == [LOST] and len(table) == 154
    audit = synthetic.audit()
    audit = audit[~audit["step"].isin([LOST, 5720])]
    assert diverged_steps(table, audit) == [5720]
    assert holes([0, 1, 2, 40, 80, 160], 40) == [120]
    assert holes([40, 80], 40) == holes([], 40) == holes([0, 1], 40) == []


def test_table_1_has_na_in_the_row_and_a_note_and_a_suite_without_holes_neither(tmp_path):
    def printed(audit, phases) -> dict[str, str]:
        table = tables.audit_table(audit, phases, synthetic.PAPER_TABLE1, suite=MINI)
        paths = [tmp_path / f"table1.{suffix}" for suffix in ("csv", "md", "tex")]
        tables.write(table, paths)
        return {path.suffix: " ".join(path.read_text().split("\n")) for path in paths}

    assert not any("NA" in text for text in printed(synthetic.audit(), synthetic.phases()).values())
    text_by_suffix = printed(without(synthetic.audit()), PHASES)
    [row] = [cell for cell in text_by_suffix[".csv"].split(" ") if cell.startswith("NA,3080,")]
    suite_cells = row.split(",")[:10]
    paper_cells = row.split(",")[10:]
    assert suite_cells == ["NA", "3080", *["NA"] * 8]
    assert "NA" not in paper_cells and paper_cells[1] == "77000"
    # The note is one; LaTeX has the two ends of the interval in the cell of the gap.
    assert [text.count("NA") for text in text_by_suffix.values()] == [9, 9, 7]
    for text in (text_by_suffix[".md"], text_by_suffix[".tex"]):
        assert WORDS in text
    diverged = synthetic.phases() | {"diverged": [LOST]}
    text_by_suffix = printed(without(synthetic.audit()), diverged)
    # A heading in the caption, and the cells that have no number.
    assert [text.count("diverged") for text in text_by_suffix.values()] == [0, 10, 8]
    assert [text.count("NA") for text in text_by_suffix.values()] == [9, 0, 0]
    assert "NA [" not in text_by_suffix[".tex"] and "[NA" not in text_by_suffix[".tex"]


def test_phases_and_early_warnings_pass_over_the_hole_and_say_so():
    audit, sequences = run_of()
    rates = audit.assign(lr_fraction=1.0 - audit["step"] / 4000)
    rest = {"spacing": 100, "resamples": 10, "seed": 0}
    phases_without_hole = describe_phases(audit, sequences, **rest)
    alarms = warning_table(rates, sequences, phases_without_hole, spacing=100)
    assert "missing" not in phases_without_hole and not alarms["note"].str.contains("missing").any()
    for lost_step, last in ((1500, 4000), (4000, 3900)):
        present_rates, scores = (table[table["step"] != lost_step] for table in (rates, sequences))
        phases_with_hole = describe_phases(present_rates, scores, **rest, missing=[lost_step])
        assert (
            phases_with_hole["missing"] == [lost_step]
            and phases_with_hole["segments"][-1]["last_step"] == last
        )
        assert sum(part["n"] for part in phases_with_hole["segments"]) < sum(
            p["n"] for p in phases_without_hole["segments"]
        )
        assert lost_step not in [
            phases_with_hole[name]["step"] for name in ("convergence", "onset")
        ]
        json.dumps(phases_with_hole, allow_nan=False)
        warnings = warning_table(present_rates, scores, phases_without_hole, spacing=100)
        assert (warnings["evaluations"] == alarms["evaluations"] - 1).all()
        if lost_step < 4000:  # a hole at the end is none in the series of what was measured
            assert warnings["note"].str.endswith("missing: step 1,500").all()


def test_statistics_leave_it_out_and_note_it():
    more = {"spacing": MINI["spacing"], "baseline": "cosine"}
    audit = without(synthetic.audit())
    kurtosis = without(synthetic.kurtosis())
    statistics = all_statistics(synthetic.forks(), audit, kurtosis, PHASES, **more)
    complete_statistics = synthetic.statistics()
    assert len(statistics) == len(complete_statistics)
    about_run = statistics["unit"].isin(["checkpoint", "stretch"])
    assert statistics.loc[about_run, "note"].str.contains(WORDS).all()
    assert not statistics.loc[~about_run, "note"].fillna("").str.contains("missing").any()
    assert not complete_statistics["note"].fillna("").str.contains("missing").any()
    diverged = {"diverged": [LOST]} | synthetic.phases()
    others = all_statistics(synthetic.forks(), audit, kurtosis, diverged, **more)
    assert others.loc[about_run, "note"].str.contains("diverged: step 3,080").all()
    counts = pd.concat([statistics["n_a"], complete_statistics["n_a"]], axis=1)[about_run]
    assert (counts.iloc[:, 0] < counts.iloc[:, 1]).sum() >= 4
    assert statistics.loc[about_run & (statistics["n_a"] > 20), "value"].notna().all()


def test_figures_say_so():
    audit = without(synthetic.audit())
    kurtosis = without(synthetic.kurtosis())
    figures = [
        gap_figure.draw(audit, PHASES, suite=MINI),
        plot_kurtosis.draw(kurtosis, audit, PHASES, suite=MINI),
        plot_bit_widths.draw(audit, PHASES, synthetic.PAPER_TABLE1, suite=MINI),
    ]
    titles = [" ".join(figure.get_suptitle().split()) for figure in figures]
    assert all(title.endswith(f"; {WORDS}") for title in titles)
    assert "at 153 checkpoints" in figures[0].get_suptitle()
    for panel in figures[0].axes[:2]:
        curves = [line.get_xydata() for line in panel.get_lines()]
        assert any(np.isnan(xy[xy[:, 0] == LOST, 1]).any() for xy in curves), "a broken line"


def test_the_papers_points_are_all_to_be_seen():
    """Beside its 517 % a curve of a few percent needs a logarithmic axis."""
    paper = synthetic.PAPER_TABLE1
    audit = synthetic.audit()
    audit[["gap_pct", "gap_low_pct", "gap_high_pct"]] = [4.0, 3.0, 5.0]
    axes = gap_figure.draw(audit, PHASES, suite=MINI, paper_points=paper).axes[0]
    assert axes.get_yscale() == "log" and axes.get_ylim()[1] > paper["int4_gap_pct"].max() > 500
