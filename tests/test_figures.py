"""Figures: three formats, the same bytes twice, readable labels, nothing hidden or invented."""

import json
from itertools import combinations, pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from flatminima import audit_figure, style
from flatminima.jobs import run
from flatminima.scaling_law import suite_excess
from flatminima.schedules import fork_schedule
from tests import synthetic
from workflow_scripts import (
    plot_audit,
    plot_bit_widths,
    plot_forks,
    plot_kurtosis,
    plot_lambada,
    plot_rivals,
    plot_scaling_law,
)

PAPER = synthetic.ROOT / "resources/paper"
LAMBADA = pd.read_csv(PAPER / "pythia_lambada.csv")
CASES = {
    "mini": {},
    "paper's model": {"suite": synthetic.PYTHIA},
    "no onset": {"onset": False},
    "twelve revisions": {"short": True},
    "negative INT8": {"negative_int8": True},
}
SCRIPTS = {
    "audit": plot_audit, "kurtosis": plot_kurtosis, "forks": plot_forks,
    "bit_widths": plot_bit_widths, "lambada": plot_lambada, "rivals": plot_rivals,
    "scaling_law": plot_scaling_law,
}  # fmt: skip


def rivals():
    """rivals.csv of five conditions, two of them at the same place."""
    rows = []
    for group, name, fp32, low in [
        ("paper", "cosine", 14.6, 15.5), ("paper", "sgdr", 14.0, 14.7),
        ("rival", "wsd", 14.2, 15.1), ("rival", "late_restart", 14.2, 15.1),
        ("average", "ema", 13.9, 14.6),
    ]:  # fmt: skip
        for seed in (0, 1) if group != "average" else (None,):
            shift = 0.1 * (seed or 0)
            for role, quantizer, ppl in [
                ("fp32", "fp32", fp32 + shift), ("low_bit", "int4_g64", low + shift),
            ]:  # fmt: skip
                rows.append({
                    "group": group, "schedule": name, "update_phase": None, "seed": seed,
                    "role": role, "quantizer": quantizer, "ppl": ppl,
                    "gap_pct": 100 * (ppl / (fp32 + shift) - 1),
                })  # fmt: skip
    return pd.DataFrame(rows)


def draw(name, suite=synthetic.MINI, *, onset=True, short=False, negative_int8=False, audit=None):
    if audit is None:
        audit = synthetic.audit(suite, short=short, negative_int8=negative_int8)
    phases = synthetic.phases(suite, onset=onset)
    if name == "audit":
        points = synthetic.PAPER_TABLE1 if suite["is_paper_model"] else None
        return audit_figure.draw(audit, phases, suite=suite, paper_points=points)
    if name == "kurtosis":
        kurtosis = synthetic.kurtosis(suite, short=short)
        return plot_kurtosis.draw(kurtosis, audit, phases, suite=suite)
    if name == "forks":
        return plot_forks.draw(synthetic.forks(suite), audit, suite=synthetic.facts(suite))
    if name == "bit_widths":
        return plot_bit_widths.draw(audit, synthetic.PAPER_TABLE1, suite=suite)
    if name == "scaling_law":
        law = suite_excess(audit, phases, spacing=suite["spacing"])
        kurtosis = synthetic.kurtosis(suite, short=short)
        return plot_scaling_law.draw(audit, kurtosis, law, synthetic.PAPER_TABLE1, suite=suite)
    if name == "lambada":
        return plot_lambada.draw(LAMBADA)
    return plot_rivals.draw(rivals(), suite=suite)


def words(axes):
    return [text.get_text() for text in axes.texts]


def texts(figure):
    """Every text that is drawn, with its box in pixels."""
    with style.style():
        FigureCanvasAgg(figure).draw()
    found = [figure._suptitle, *figure.texts]
    found += [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        found += [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes._left_title]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    drawn = {id(text): text for text in found if text.get_visible() and text.get_text().strip()}
    assert {text.get_fontsize() for text in drawn.values()} == {8}
    # The box of an Annotation would include its leader line.
    return [(text.get_text(), Text.get_window_extent(text)) for text in drawn.values()]


def no_text_overlaps_or_leaves_the_page(figure):
    boxes, page = texts(figure), figure.bbox
    assert len(boxes) > 10
    for text, box in boxes:
        inside = box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1
        assert inside, f"{text!r} leaves the page"
    for (text, box), (other_text, other) in combinations(boxes, 2):
        assert not box.padded(-0.5).overlaps(other.padded(-0.5)), f"{text!r} over {other_text!r}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_write_three_formats_with_the_same_bytes_twice(name, tmp_path):
    results = synthetic.write(tmp_path / "mini")
    rivals().to_csv(results / "rivals.csv", index=False)
    phases = json.loads((results / "phases.json").read_text())
    law, facts = (
        suite_excess(synthetic.audit(), phases, spacing=40),
        synthetic.facts(synthetic.MINI),
    )
    (results / "scaling_law.json").write_text(json.dumps(law))
    files = {key: str(results / f"{key}.csv") for key in ("audit", "kurtosis", "forks", "rivals")}
    files |= {key: str(results / f"{key}.json") for key in ("phases", "scaling_law")}
    files |= {"table1": str(PAPER / "table1.csv"), "cooled": [],
              "lambada": str(PAPER / "pythia_lambada.csv")}  # fmt: skip
    written = []
    for folder in ("first", "second"):
        written.append([tmp_path / folder / f"f.{kind}" for kind in ("pdf", "svg", "png")])
        job = SimpleNamespace(
            input=SimpleNamespace(**files), output=list(map(str, written[-1])),
            log=[tmp_path / "log.txt"], params=SimpleNamespace(suite=facts),
        )  # fmt: skip
        run(SCRIPTS[name].main, job)
    first, second = ([path.read_bytes() for path in paths] for paths in written)
    assert first == second
    assert [content[:5] for content in first] == [b"%PDF-", b"<?xml", b"\x89PNG\r"]
    assert b"/Type3" not in first[0], "fonts are embedded as Type 42"


@pytest.mark.parametrize("name", SCRIPTS)
def test_title_carries_the_label_and_no_texts_overlap(name):
    for case in CASES.values() if name not in ("lambada", "rivals") else [{}]:
        figure = draw(name, **case)
        label = case.get("suite", synthetic.MINI)["label"] if name != "lambada" else "Pythia"
        assert figure.get_suptitle().startswith(label)
        assert figure.get_figwidth() == style.PAGE_IN
        no_text_overlaps_or_leaves_the_page(figure)


def test_audit_curves_are_the_table():
    audit = synthetic.audit()
    gap, ppl, rate = draw("audit").axes
    curves = {line.get_color(): line for line in gap.get_lines() if len(line.get_xdata()) == 154}
    for role in ("low_bit", "high_bit"):
        part = audit[audit["role"] == role]
        line = curves[style.LOOKS[role].color]
        assert np.array_equal(line.get_xydata(), part[["step", "gap_pct"]])
    fp32 = audit[audit["role"] == "fp32"]
    assert any(np.array_equal(line.get_ydata(), fp32["ppl"]) for line in ppl.get_lines())
    shown = [line.get_ydata() for line in rate.get_lines() if len(line.get_xdata()) == 154]
    assert np.allclose(shown[0], 100 * fp32["lr_fraction"])


def test_the_papers_points_are_drawn_over_its_own_model_only():
    said = "open markers: the paper's Table 1"
    assert said not in words(draw("audit").axes[0])
    assert said in words(draw("audit", suite=synthetic.PYTHIA).axes[0])


def test_negative_gaps_are_on_the_axis_and_said():
    lowest = synthetic.audit(negative_int8=True)["gap_pct"].min()
    axes = draw("audit", negative_int8=True).axes[0]
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[0] < lowest < 0
    assert "linear within" in axes.get_ylabel()


def axis_of(values, **options):
    axes = Figure().subplots()
    axes.plot(values)
    return axes, style.choose_scale(axes.yaxis, values, **options)


@pytest.mark.parametrize(
    ("values", "bounds", "scale", "said"),
    [
        ([1.0, 2.0, 29.0], [], "linear", ""),
        ([1.0, 2.0, 100.0], [], "log", "log scale"),
        ([-0.03, 0.05, 100.0], [], "symlog", "log scale, linear within ±0.1"),
        ([0.02, 1.0, 100.0], [-0.01], "symlog", "log scale, linear within ±0.1"),
        ([-1.5, 0.001, 1.4], [], "linear", ""),
        ([-3.0, -2.0, -1.0], [], "linear", ""),
    ],
)
def test_scale_follows_the_range(values, bounds, scale, said):
    axes, found = axis_of(values, bounds=bounds)
    assert axes.get_yscale() == scale and found[: len(said)] == said


def test_ticks_of_a_log_axis_are_round_and_have_no_exponents():
    short, _ = axis_of([12.0, 500.0])
    low, high = short.get_ylim()
    marks = [at for at in short.yaxis.get_majorticklocs() if low <= at <= high]
    assert np.allclose(marks, [10, 20, 50, 100, 200, 500])
    label = short.yaxis.get_major_formatter()
    assert [label(value) for value in (2e-5, 0.001, 5, 1e6)] == [
        "0.00002",
        "0.001",
        "5",
        "1,000,000",
    ]


def test_a_small_low_bit_range_stays_linear_whatever_the_control_does():
    audit = synthetic.audit()
    low = audit["role"] == "low_bit"
    audit.loc[low, "gap_pct"] = np.linspace(5, 18, low.sum())
    assert draw("audit", audit=audit).axes[0].get_yscale() == "linear"


def test_phases_without_onset_are_two_and_say_so():
    names = words(draw("audit", onset=False).axes[0])
    assert "2 after rapid learning (no onset found)" in names
    assert not any(name.startswith("3 ") or "onset: step" in name for name in names)
    panel = draw("kurtosis", onset=False).axes[1]
    assert "no onset" in panel._left_title.get_text()


@pytest.mark.parametrize("edges", [(30, 60), (3, 70), (3, 40), (3, 6), (60, 97), (97, 98)])
def test_phase_names_and_end_labels_keep_clear_of_each_other(edges):
    with style.style():
        axes = Figure(figsize=(style.PAGE_IN, 2)).subplots()
        axes.set_xlim(0, 100)
        names = ["rapid learning", "plateau", "divergence"]
        segments = [
            {"phase": i + 1, "name": name, "first_step": first, "last_step": last}
            for i, (name, (first, last)) in enumerate(
                zip(names, pairwise([0, *edges, 100]), strict=True)
            )
        ]
        style.draw_phases([axes], segments)
        raised = [text for text in axes.texts if text.xyann[1] > 3]
        assert bool(raised) == (edges in [(3, 6), (97, 98)])
        style.end_labels(axes, [(name, 0.5, "black") for name in names])
        FigureCanvasAgg(axes.figure).draw()
        boxes = [Text.get_window_extent(text).padded(-0.5) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x0 >= axes.bbox.x0 - 1 for box in boxes)
    assert all(box.x1 <= axes.bbox.x1 + 1 for box in boxes[:3])


def test_nothing_lies_under_a_legend_and_the_best_step_ends_below_it():
    phases = {"convergence": {"step": 5, "step_low": 4, "step_high": 7}}
    for scale in ("linear", "log"):
        with style.style():
            axes = Figure(figsize=(2, 2)).subplots()
            axes.plot(range(10), [10] * 10, label="a curve")
            axes.set_yscale(scale)
            style.legend(axes, phases)
            box = axes.get_legend().get_window_extent()
        for line in axes.get_lines():
            drawn = line.get_transform().transform(line.get_xydata())
            assert drawn[:, 1].max() < box.y0
        assert axes.patches[0].get_window_extent().y1 < box.y0


@pytest.mark.parametrize("onset", [True, False])
def test_each_kurtosis_has_a_panel_with_the_correlation_of_the_statistics(onset):
    rows, figure = synthetic.statistics(onset=onset), draw("kurtosis", onset=onset)
    rows = rows.set_index(["comparison", "test"])
    when = "phase 3" if onset else "after convergence"
    kurtosis = synthetic.kurtosis().set_index(["statistic", "step"])["excess_kurtosis"]
    gap = synthetic.audit().set_index(["role", "step"])["gap_pct"]["low_bit"]
    for statistic, panel in zip(["mean_over_tensors", "pooled"], figure.axes[1:], strict=True):
        for turn in ("levels", "detrended", "differences"):
            row = rows.loc[(f"kurtosis {statistic} v low_bit gap ({when})", f"Pearson r, {turn}")]
            shown = f"{turn} {row['value']:.2f}".replace("-", "−")
            assert shown in words(panel)[0]
        (line,) = panel.get_lines()
        steps = list(range(3200 if onset else 3080, 5721, 40))
        assert np.array_equal(line.get_xdata(), kurtosis[statistic].loc[steps])
        assert np.array_equal(line.get_ydata(), gap.loc[steps])
        # The axis spans all that kurtosis moves, so that a small part of it looks small.
        low, high = panel.get_xlim()
        even = kurtosis[statistic].loc[40::40]
        assert low < even.min() and even.max() < high


def test_bump_probes_are_hollow_and_cool_ones_filled():
    axes, color = draw("forks").axes[0], style.LOOKS["oli"].color
    markers = {
        line.get_markerfacecolor(): set(line.get_xdata())
        for line in axes.get_lines()
        if line.get_marker() == "o" and line.get_markeredgecolor() == color
    }
    oli = synthetic.forks().query("schedule == 'oli'")
    assert markers["white"] == set(oli.loc[oli["update_phase"] == "bump", "step"])
    assert markers[color] == set(oli.loc[oli["update_phase"] == "cool", "step"])


def test_learning_rate_is_drawn_at_every_update():
    suite = synthetic.facts(synthetic.MINI)
    panel = draw("forks").axes[3]
    lines = {line.get_color(): line for line in panel.get_lines() if line.get_linestyle() == "-"}
    baseline, steps = synthetic.schedule(suite), np.arange(2800, 4000)
    for name, definition in suite["fork"]["schedules"].items():
        rate = fork_schedule(definition, baseline=baseline, start=2800, stop=4000)
        line = lines[style.LOOKS[name].color]
        assert line.get_drawstyle() == "steps-post"
        expected = [100 * rate(step) / baseline.lr_max for step in steps]
        assert np.allclose(line.get_ydata()[:-1], expected, rtol=1e-12)
    fp32 = synthetic.forks().query("role == 'fp32'").drop_duplicates(["schedule", "step"])
    marked = [line for line in panel.get_lines() if line.get_linestyle() == "None"]
    drawn = {(x, round(y, 9)) for line in marked for x, y in line.get_xydata()}
    probes = zip(fp32["step"], 100 * fp32["lr_fraction_last_update"], strict=True)
    assert drawn == {(x, round(y, 9)) for x, y in probes}
    assert "the 15-step cycle at 5, 10 and 15" in panel.get_title(loc="left")


def test_a_schedule_that_the_suite_does_not_tell_has_markers_and_a_look_of_its_own():
    looks = style.fork_looks(["cosine", "late_restart", "other"])
    assert len({look.color for look in looks.values()}) == 3
    forks = synthetic.forks().replace({"schedule": {"sgdr": "late_restart"}})
    suite = synthetic.facts(synthetic.MINI)
    suite["fork"]["probe_every"] = 4
    figure = plot_forks.draw(forks, synthetic.audit(), suite=suite)
    assert len([line for line in figure.axes[3].get_lines() if line.get_linestyle() == "-"]) == 2
    assert "late_restart" in words(figure.axes[0])
    assert "probes meet 15 of the 15 steps" in figure.axes[3].get_title(loc="left")


def test_lambada_is_the_published_numbers_beside_the_papers_steps():
    figure = plot_lambada.draw(LAMBADA)
    (axes,) = figure.axes
    assert "not measured by this workflow" in figure.get_suptitle()
    lines = axes.get_lines()
    marks = {tuple(line.get_xydata()[0]) for line in lines if line.get_marker() != "None"}
    best = LAMBADA.loc[LAMBADA.groupby("model")["lambada_openai_ppl"].idxmin()]
    assert marks == set(zip(best["step"], best["lambada_openai_ppl"], strict=True))
    assert "160m\nbest 24.8 at 63,000" in words(axes)
    for _, part in LAMBADA[LAMBADA["step"] >= 3000].groupby("model"):
        expected = part[["step", "lambada_openai_ppl"]].to_numpy(float)
        assert sum(np.array_equal(line.get_xydata(), expected) for line in lines) == 1
    verticals = {line.get_xdata()[0] for line in lines if len(line.get_xdata()) == 2}
    assert verticals == {77_000, 82_000}


def points(axes):
    (line,) = (line for line in axes.get_lines() if line.get_marker() == "o")
    return line.get_xydata()


@pytest.mark.parametrize("suite", [synthetic.MINI, synthetic.PYTHIA], ids=lambda s: s["name"])
def test_bit_widths_of_suite_and_paper_stand_in_panels_of_their_own(suite):
    ours, papers = draw("bit_widths", suite=suite).axes
    printed = synthetic.PAPER_TABLE1[["int4_gap_pct", "int8_gap_pct"]].to_numpy()
    assert np.allclose(points(papers), np.log1p(printed / 100), rtol=1e-12)
    audit = synthetic.audit(suite).pivot(index="step", columns="role")["delta_nll_nats_per_token"]
    even = audit.loc[range(suite["spacing"], 143 * suite["spacing"] + 1, suite["spacing"])]
    assert np.array_equal(points(ours), even[["low_bit", "high_bit"]])
    assert ("not comparable" in papers.get_title(loc="left")) is not suite["is_paper_model"]


def test_printed_relations_are_those_of_the_statistics():
    rows = synthetic.statistics().set_index(["comparison", "test"])["value"]
    rows = rows["high_bit v low_bit (even steps)"]
    ours, papers = (words(axes)[0] for axes in draw("bit_widths").axes)
    assert f"low/high {rows['ratio']:.0f} [" in ours
    assert f"slope {rows['log-log regression']:.2f} [" in ours
    table = synthetic.PAPER_TABLE1
    low, high = (np.log1p(table[f"int{b}_gap_pct"] / 100).sum() for b in (4, 8))
    assert f"low/high {low / high:.0f} [" in papers


@pytest.mark.parametrize("lost", [[40, 80, 5720], "all"])
def test_losses_that_did_not_grow_are_left_out_and_counted(lost):
    audit = synthetic.audit()
    high = audit["role"] == "high_bit"
    high &= True if lost == "all" else audit["step"].isin(lost)
    audit.loc[high, "delta_nll_nats_per_token"] = -1e-9
    figure = draw("bit_widths", audit=audit)
    left_out, (said,) = 143 if lost == "all" else 3, words(figure.axes[0])
    assert f"left out, no loss added: {left_out} of 143 checkpoints" in said
    assert ("low/high none" in said) == (lost == "all")
    no_text_overlaps_or_leaves_the_page(figure)


def test_the_line_is_the_squared_ratio_of_the_levels():
    axes = draw("bit_widths").axes[0]
    (line,) = (line for line in axes.get_lines() if line.get_marker() == "None")
    x, y = line.get_data()
    assert np.allclose(x / y, 289)
    unnamed = synthetic.audit().replace({"quantizer": {"int4_g64": "nearest"}})
    assert "dashed" not in words(draw("bit_widths", audit=unnamed).axes[0])[0]


def test_power_laws_are_fitted_lines_over_the_points():
    (axes,) = draw("scaling_law", suite=synthetic.PYTHIA).axes
    points = next(line for line in axes.get_lines() if line.get_marker() == "s")
    expected = synthetic.PAPER_TABLE1["step"] * 2_097_152 / 84_934_656
    assert np.allclose(points.get_xdata(), expected)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len([line for line in axes.get_lines() if line.get_linestyle() == "-"]) == 2


def test_rivals_are_ranked_by_low_bit_perplexity():
    figure = draw("rivals")
    listed = [text.get_text() for text in figure.texts]
    order = [name for name in listed if name in ("SGDR", "cosine", "wsd", "late restart", "ema")]
    assert order[0] == "ema" and order[-1] == "cosine"
    assert listed[listed.index("ema") + 1 :][:3] == ["13.90", "14.60", "5.0"]


def test_names_come_from_the_quantizers():
    audit, suite = synthetic.audit(), {"quantizers": {"int4_g64": "NF4"}}
    labels = {"fp32": "FP32", "low_bit": "NF4", "high_bit": "int8_channel"}
    assert style.role_labels(audit, suite) == labels
    twice = audit.assign(role=audit["role"].replace("high_bit", "low_bit"))
    with pytest.raises(ValueError, match="role low_bit"):
        style.role_labels(twice, suite)
