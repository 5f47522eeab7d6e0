"""Figures 4 and 5: numbers of others are drawn as theirs, and what is left out is counted."""

import runpy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from flatminima.figures import figure_bit_widths, figure_lambada, plotting
from tests import synthetic
from tests.test_plotting import no_text_overlaps_or_leaves_the_page

LAMBADA = pd.read_csv(synthetic.ROOT / "resources/paper/pythia_lambada.csv")


def bit_widths(suite=synthetic.MINI, audit=None):
    audit = synthetic.audit(suite) if audit is None else audit
    return figure_bit_widths.draw(audit, synthetic.PAPER_TABLE1, suite=suite)


def words(axes):
    return [text.get_text() for text in axes.texts]


def points(axes):
    (line,) = (line for line in axes.get_lines() if line.get_marker() == "o")
    return line.get_xydata()


def test_best_steps_are_the_lowest_published_values():
    (axes,) = figure_lambada.draw(LAMBADA).axes
    marks = {
        tuple(line.get_xydata()[0]) for line in axes.get_lines() if line.get_marker() != "None"
    }
    best = LAMBADA.loc[LAMBADA.groupby("model")["lambada_openai_ppl"].idxmin()]
    assert marks == set(zip(best["step"], best["lambada_openai_ppl"], strict=True))
    for row in best.itertuples():
        name = f"{row.model.removeprefix('pythia-')}\nbest {row.lambada_openai_ppl:.1f}"
        assert f"{name} at {row.step:,}" in words(axes)
    assert "160m\nbest 24.8 at 63,000" in words(axes)
    assert "410m\nbest 10.5 at 133,000" in words(axes)


def test_lambada_curves_are_the_published_numbers_beside_the_papers_steps():
    figure = figure_lambada.draw(LAMBADA)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert "published by the Pythia authors (zero-shot)" in figure.get_suptitle()
    assert "not measured by this workflow" in figure.get_suptitle()
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) > 2]
    for model, part in LAMBADA[LAMBADA["step"] >= 3000].groupby("model"):
        expected = part[["step", "lambada_openai_ppl"]].to_numpy(float)
        drawn = [line for line in curves if np.array_equal(line.get_xydata(), expected)]
        assert len(drawn) == 1
        assert (drawn[0].get_linewidth() > 1) is (model == "pythia-160m")
    verticals = {line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 2}
    assert verticals == {77_000, 82_000}


def test_another_model_or_an_incomplete_table_still_draws():
    part = LAMBADA[LAMBADA["model"].isin(["pythia-160m", "pythia-410m"])]
    other = part.replace({"model": {"pythia-410m": "pythia-1b"}})
    (axes,) = figure_lambada.draw(other[other["step"] >= 3000]).axes
    assert any(text.startswith("1b\nbest 10.5") for text in words(axes))


@pytest.mark.parametrize("suite", [synthetic.MINI, synthetic.PYTHIA], ids=lambda s: s["name"])
def test_suite_and_paper_stand_in_panels_of_their_own(suite):
    figure = bit_widths(suite)
    ours, papers = figure.axes
    table = synthetic.PAPER_TABLE1
    expected = np.log1p(table[["int4_gap_pct", "int8_gap_pct"]].to_numpy() / 100)
    assert np.allclose(points(papers), expected, rtol=1e-12)
    audit = synthetic.audit(suite).pivot(index="step", columns="role")["delta_nll_nats_per_token"]
    even = audit.loc[range(suite["spacing"], 143 * suite["spacing"] + 1, suite["spacing"])]
    assert np.array_equal(points(ours), even[["low_bit", "high_bit"]])
    assert figure.get_suptitle().startswith(f"{suite['label']}: ")
    assert ours.get_title(loc="left") == suite["label"]
    title = papers.get_title(loc="left")
    assert title.startswith("the paper's Table 1 (Pythia-160m")
    assert ("not comparable" in title) is not suite["is_paper_model"]
    assert not ours.get_shared_x_axes().joined(ours, papers)


def test_printed_relation_of_table_1_agrees_with_scipy():
    low, high = (
        np.log(np.log1p(synthetic.PAPER_TABLE1[column] / 100))
        for column in ("int4_gap_pct", "int8_gap_pct")
    )
    r, slope = stats.pearsonr(low, high).statistic, stats.linregress(low, high).slope
    text = f"of logarithms: r = {r:.2f}, slope = {slope:.2f}, n = 10"
    assert text in words(bit_widths().axes[1])


def test_printed_relation_of_the_suite_is_that_of_the_statistics():
    rows = synthetic.statistics()
    rows = rows[rows["comparison"] == "high_bit v low_bit (even steps)"]
    rows = rows[rows["measure"].str.startswith("ln ")].set_index("test")["value"]
    text = f"r = {rows['Pearson r']:.2f}, slope = {rows['log-log regression']:.2f}, n = 143"
    assert any(text in line for line in words(bit_widths().axes[0]))


def test_losses_that_did_not_grow_are_left_out_and_counted():
    audit = synthetic.audit()
    high = (audit["role"] == "high_bit") & audit["step"].isin([40, 80, 5720])
    audit.loc[high, "delta_nll_nats_per_token"] = [-0.1, 0.0, -1e-9]
    axes = bit_widths(audit=audit).axes[0]
    assert len(points(axes)) == 140
    assert "left out, no loss added: 3 of 143 checkpoints" in words(axes)
    assert any(line.endswith("n = 140") for line in words(axes))


def test_the_line_is_the_squared_ratio_of_the_levels():
    axes = bit_widths().axes[0]
    (line,) = (line for line in axes.get_lines() if line.get_marker() == "None")
    x, y = line.get_data()
    assert np.allclose(x / y, 289)
    assert any("(255/15)² = 289" in text for text in words(axes))
    three = synthetic.audit().replace({"quantizer": {"int4_g64": "int3_g64"}})
    assert any("(255/7)² = 1327" in text for text in words(bit_widths(audit=three).axes[0]))
    unnamed = synthetic.audit().replace({"quantizer": {"int4_g64": "nearest"}})
    axes = bit_widths(audit=unnamed).axes[0]
    assert not any("dashed" in text for text in words(axes))
    assert not any(line.get_marker() == "None" for line in axes.get_lines())


def test_a_suite_without_any_growth_says_so():
    audit = synthetic.audit()
    audit.loc[audit["role"] == "high_bit", "delta_nll_nats_per_token"] = -1e-4
    figure = bit_widths(audit=audit)
    assert "of logarithms: r = none, slope = none, n = 0" in words(figure.axes[0])
    assert "left out, no loss added: 143 of 143 checkpoints" in words(figure.axes[0])
    no_text_overlaps_or_leaves_the_page(figure)


@pytest.mark.parametrize("case", ["lambada", "mini", "pythia"])
def test_no_texts_overlap(case):
    suite = {"mini": synthetic.MINI, "pythia": synthetic.PYTHIA}.get(case)
    no_text_overlaps_or_leaves_the_page(
        bit_widths(suite) if suite else figure_lambada.draw(LAMBADA)
    )


@pytest.mark.parametrize("name", ["lambada", "bit_widths"])
def test_scripts_write_three_formats_with_the_same_bytes_twice(name, tmp_path):
    audit, paper = tmp_path / "audit.csv", synthetic.ROOT / "resources/paper"
    synthetic.audit().to_csv(audit, index=False)
    inputs = {"lambada": paper / "pythia_lambada.csv", "paper_table": paper / "table1.csv"}
    written = []
    for run in ("first", "second"):
        written.append([tmp_path / run / f"{name}.{kind}" for kind in ("pdf", "svg", "png")])
        job = SimpleNamespace(
            input=SimpleNamespace(audit=audit, **inputs),
            output=written[-1],
            params=SimpleNamespace(suite=synthetic.MINI),
            log=[tmp_path / "log.txt"],
        )
        script = synthetic.ROOT / "workflow_scripts" / f"plot_{name}.py"
        runpy.run_path(str(script), init_globals={"snakemake": job}, run_name="__main__")
    assert [path.read_bytes()[:5] for path in written[0]] == [b"%PDF-", b"<?xml", b"\x89PNG\r"]
    for one, other in zip(*written, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_ticks_of_a_log_axis_have_no_exponents():
    axes = bit_widths().axes[0]
    label = axes.yaxis.get_major_formatter()
    assert [label(value) for value in (2e-5, 0.001, 5, 1e6)] == ["0.00002", "0.001", "5", "1000000"]
    assert bit_widths().get_figwidth() == plotting.PAGE_IN
