"""Figures: three formats, the same bytes twice, readable labels, nothing hidden or invented."""

import inspect
import json
import re
from importlib import import_module
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from flatminima import style
from flatminima.conditions import Condition
from flatminima.config.plan import facts
from flatminima.config.suites import read_suite
from flatminima.scaling_law import suite_excess
from tests import synthetic
from tests.workflow import copy_checkout, dry_run
from workflow_scripts import plot_forks, plot_kurtosis, plot_layers

PAPER, FROZEN = (synthetic.ROOT / f"resources/{name}" for name in ("paper", "published/mini"))
LAMBADA = pd.read_csv(PAPER / "pythia_lambada.csv")
RIVALS = pd.read_csv(FROZEN / "rivals.csv")
CASES = {
    "mini": {},
    "paper's model": {"suite": synthetic.PYTHIA},
    "no onset": {"onset": False},
    "twelve revisions": {"short": True},
    "negative INT8": {"negative_int8": True},
}
NAMES = sorted(path.stem[5:] for path in (synthetic.ROOT / "workflow_scripts").glob("plot_*.py"))


def draw(name, suite=synthetic.MINI, *, onset=True, short=False, negative_int8=False, **tables):
    """A figure of invented results, or beyond the paper of stored ones; ``tables`` replace some."""
    function = import_module(f"workflow_scripts.plot_{name}").draw
    parameters = inspect.signature(function).parameters
    measured = {
        "audit": synthetic.audit(suite, short=short, negative_int8=negative_int8),
        "phases": synthetic.phases(suite, onset=onset),
        "kurtosis": synthetic.kurtosis(suite, short=short),
        "rivals": RIVALS,
        "cooled": [],
        "bits": 4,
        "lambada": LAMBADA,
        "table1": synthetic.PAPER_TABLE1,
        "suite": synthetic.facts(suite),
    } | tables
    if "scaling_law" in parameters:
        law = suite_excess(measured["audit"], measured["phases"], spacing=suite["spacing"])
        measured["scaling_law"] = law
    if "forks" in parameters:
        measured = {"forks": synthetic.forks(suite)} | measured
    if suite is synthetic.FRESH:
        runs, comparison = synthetic.replication(suite)
        measured = {"replication_runs": runs, "replication": comparison} | measured
    for key in parameters - measured.keys():
        measured[key] = pd.read_csv(FROZEN / f"mechanism/{key}.csv")
    with style.style():
        return function(**{key: measured[key] for key in parameters})


def words(axes):
    """Everything that is written on axes and above them."""
    artists = [axes._left_title, *axes.texts]
    if axes.get_legend():
        artists += axes.get_legend().get_texts()
    return "\n".join(text.get_text() for text in artists)


def texts(figure):
    """Every text that is drawn, with its box in pixels."""
    with style.style():
        FigureCanvasAgg(figure).draw()
    artists = [figure._suptitle, *figure.texts]
    for axes in figure.axes:
        artists += [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes._left_title]
        if axes.get_legend():
            artists += axes.get_legend().get_texts()
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            artists += [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
    visible_texts = {
        id(text): text for text in artists if text.get_visible() and text.get_text().strip()
    }
    assert {text.get_fontsize() for text in visible_texts.values()} == {8}
    return [(text.get_text(), Text.get_window_extent(text)) for text in visible_texts.values()]


def no_text_overlaps_or_leaves_the_page(figure):
    boxes = texts(figure)
    page = figure.bbox
    assert len(boxes) > 10
    for text, box in boxes:
        inside = box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1
        assert inside, f"{text!r} leaves the page"
    for (text, box), (other_text, other) in combinations(boxes, 2):
        assert not box.padded(-0.5).overlaps(other.padded(-0.5)), f"{text!r} over {other_text!r}"
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None:
            legend_box = legend.get_window_extent()
            panel_box = axes.get_window_extent()
            is_outside = legend_box.y0 >= panel_box.y1 - 1 or legend_box.x0 >= panel_box.x1 - 1
            assert is_outside, "a legend hides something"


@pytest.mark.parametrize("name", ["audit", "forks", "scaling_law"])
def test_scripts_write_three_formats_with_the_same_bytes_twice(name, tmp_path):
    results = synthetic.write(tmp_path / "mini")
    law = suite_excess(synthetic.audit(), synthetic.phases(), spacing=40)
    (results / "scaling_law.json").write_text(json.dumps(law))
    files = {path.stem: str(path) for path in results.iterdir() if path.stem != "suite"}
    files |= {"cooled": [], "table1": str(PAPER / "table1.csv")}
    written = []
    for folder in ("first", "second"):
        paths = [tmp_path / folder / f"f.{kind}" for kind in ("pdf", "svg", "png")]
        job = SimpleNamespace(
            input=SimpleNamespace(**files),
            output=list(map(str, paths)),
            log=[tmp_path / "log.txt"],
            params=SimpleNamespace(suite=synthetic.facts(synthetic.MINI)),
        )
        style.run(import_module(f"workflow_scripts.plot_{name}").draw, job)
        written.append([path.read_bytes() for path in paths])
    first, second = written
    assert first == second
    assert [content[:5] for content in first] == [b"%PDF-", b"<?xml", b"\x89PNG\r"]
    assert b"/Type3" not in first[0], "fonts are embedded as Type 42"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("error:constrained_layout")
def test_title_carries_the_label_and_no_texts_overlap(name):
    varied = ("audit", "kurtosis", "forks", "bit_widths", "scaling_law")
    cases = list(CASES.values()) if name in varied else [{}]
    for case in cases:
        figure = draw(name, **case)
        label = case.get("suite", synthetic.MINI)["label"] if name != "lambada" else "Pythia"
        assert figure.get_suptitle().startswith(label)
        assert not re.search(r"\b([\w-]+ [\w-]+) \1\b", figure.get_suptitle())
        assert figure.get_figwidth() == style.PAGE_IN
        no_text_overlaps_or_leaves_the_page(figure)


@pytest.fixture(scope="module")
def figures_of_fresh(tmp_path_factory):
    """Names of what a dry run of ``all`` and ``extended`` would draw of the suite fresh."""
    folder = copy_checkout(tmp_path_factory.mktemp("fresh") / "checkout")
    arguments = ["--quiet", "all", "--config", "suite=fresh"]
    run = dry_run("all", "extended", *arguments, folder=folder, described=True)
    assert run.returncode == 0, run.stdout[-3000:]
    described = run.stdout[run.stdout.index('{"rules"') :].splitlines()[0]
    jobs = json.loads(described)["jobs"]
    rules = {job["rule"] for job in jobs if job["wildcards"].get("suite") == "fresh"}
    return sorted(name.removeprefix("plot_") for name in rules if name.startswith("plot_"))


@pytest.mark.filterwarnings("error:constrained_layout")
def test_every_figure_of_the_shipped_suite_fresh_is_drawn(figures_of_fresh):
    assert {"audit", "kurtosis", "scaling_law", "replication", "tokens"} <= {*figures_of_fresh}
    assert facts(read_suite("fresh", [])) == synthetic.FRESH
    for name in figures_of_fresh:
        figure = draw(name, synthetic.FRESH)
        assert figure.get_suptitle().startswith(synthetic.FRESH["label"])
        no_text_overlaps_or_leaves_the_page(figure)


def test_every_run_of_the_replication_has_a_line_of_its_own():
    """A width and a seed under two weight decays are two runs; they once were one line."""
    runs, comparison = synthetic.replication()
    fp32, losses, growth = draw("replication", synthetic.FRESH).axes
    curves = [line for line in losses.get_lines() if len(line.get_xdata()) > 2]
    assert len(curves) == len(comparison) == 8
    keys = ["width", "seed", "weight_decay"]
    for row, curve in zip(comparison.itertuples(), curves, strict=True):
        of_run = (runs[keys] == [row.width, row.seed, row.weight_decay]).all(axis=1)
        steps = runs.loc[of_run & (runs["role"] == "low_bit"), "step"]
        assert np.array_equal(curve.get_xdata(), steps - row.fp32_step)
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 4
    assert {"weight decay 0", "weight decay 0.1"} <= {*words(fp32).splitlines()}
    assert "weight decay 0.1" in words(growth)


def test_any_number_of_weight_decays_has_line_styles_of_its_own():
    runs, _ = synthetic.replication()
    decays = [0.0, 0.01, 0.1, 0.3, 1.0]
    runs = pd.concat([runs[runs["weight_decay"] == 0.0].assign(weight_decay=d) for d in decays])
    added, _ = draw("tokens", synthetic.FRESH, replication_runs=runs).axes
    curves = [line for line in added.get_lines() if len(line.get_xdata()) > 10]
    assert len({repr(line._dash_pattern) for line in curves}) == len(decays)
    assert sum(line.startswith("weight decay") for line in words(added).splitlines()) == 5


def test_sensitivity_before_the_end_of_rapid_learning_alone_leaves_one_panel_empty():
    table = pd.read_csv(FROZEN / "mechanism/sensitivity.csv")
    cost, growth, _ = draw("sensitivity", sensitivity=table[table["step"] < 280]).axes
    assert len(cost.get_lines()) > 1 and "from step 280 on" in words(growth)
    assert [line.get_label() for line in growth.get_lines()] == ["FP32 minimum"]
    assert "its 95 % interval" in [patch.get_label() for patch in growth.patches]


def test_two_oscillating_schedules_are_not_drawn_as_one():
    flips = pd.read_csv(FROZEN / "mechanism/phase_flips.csv")
    other = flips.assign(
        phases_of="slow",
        schedule=flips["schedule"].replace("oli", "slow"),
        flipped_own=2 * flips["flipped_own"],
    )
    alone, both = (
        draw("drift", phase_flips=table).axes[2] for table in (flips, pd.concat([other, flips]))
    )
    for line_alone, line_of_both in zip(alone.get_lines(), both.get_lines(), strict=True):
        assert np.array_equal(line_alone.get_xydata(), line_of_both.get_xydata())


def test_audit_curves_are_the_table():
    audit = synthetic.audit().assign(lr_pct=lambda table: 100 * table["lr_fraction"])
    gap, ppl, rate = draw("audit").axes
    for axes, role, column in (
        (gap, "low_bit", "gap_pct"),
        (gap, "high_bit", "gap_pct"),
        (ppl, "fp32", "ppl"),
        (rate, "fp32", "lr_pct"),
    ):
        expected = audit.loc[audit["role"] == role, ["step", column]].to_numpy()
        assert sum(np.array_equal(line.get_xydata(), expected) for line in axes.get_lines()) == 1


def test_the_audit_names_its_phases_its_events_and_the_papers_points():
    text = words(draw("audit").axes[0])
    assert "divergence." in text and "onset: step 3,200" in text
    assert "FP32 convergence: step 3,080 [2,800, 3,920]" in text
    assert "Table 1" not in text
    assert "paper's Table 1: INT4" in words(draw("audit", suite=synthetic.PYTHIA).axes[0])
    without_onset = words(draw("audit", onset=False).axes[0])
    assert "No onset" in without_onset
    assert "divergence" not in without_onset and "onset: step" not in without_onset
    assert "(no onset)" in " ".join(draw("kurtosis", onset=False).get_suptitle().split())


def test_scales_follow_the_range_and_negative_gaps_stay_on_the_axis():
    audit = synthetic.audit(negative_int8=True)
    axes = draw("audit", audit=audit).axes[0]
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[0] < audit["gap_pct"].min() < 0
    assert "linear within" in axes.get_ylabel()
    for values, scale, note in [
        ([1.0, 2.0, 29.0], "linear", ""),
        ([1.0, 2.0, 100.0], "log", "\nlog scale"),
        ([-0.03, 0.05, 100.0], "symlog", "\nlog scale, linear within ±0.1"),
        ([-1.5, 0.001, 1.4], "linear", ""),
        ([-3.0, -2.0, -1.0], "linear", ""),
    ]:
        axes = Figure().subplots()
        axes.plot(values)
        assert style.choose_scale(axes, pd.Series(values)) == note
        assert axes.get_yscale() == scale
    # The gap of the control does not decide the scale.
    low = audit["role"] == "low_bit"
    audit.loc[low, "gap_pct"] = np.linspace(5, 18, low.sum())
    assert draw("audit", audit=audit).axes[0].get_yscale() == "linear"
    axes.clear()
    axes.plot([12.0, 500.0])
    style.log_axis(axes.yaxis)
    low, high = axes.get_ylim()
    marks = [at for at in axes.yaxis.get_majorticklocs() if low <= at <= high]
    assert np.allclose(marks, [10, 20, 50, 100, 200, 500])
    label = axes.yaxis.get_major_formatter()
    assert [label(x) for x in (2e-5, 0.001, 5, 1e6)] == ["0.00002", "0.001", "5", "1,000,000"]


@pytest.mark.parametrize("onset", [True, False])
def test_each_kurtosis_has_a_panel_with_the_correlation_of_the_statistics(onset):
    figure = draw("kurtosis", onset=onset)
    statistics = synthetic.statistics(onset=onset)
    value_of_test = statistics.set_index(["comparison", "test"])["value"]
    period, start = ("phase 3", 3200) if onset else ("after convergence", 3080)
    kurtosis = synthetic.kurtosis().set_index(["statistic", "step"])["excess_kurtosis"]
    gap = synthetic.audit().set_index(["role", "step"])["gap_pct"]["low_bit"].loc[start:]
    for statistic, panel in zip(["mean_over_tensors", "pooled"], figure.axes[1:], strict=True):
        for turn, printed_name in plot_kurtosis.CORRELATIONS.items():
            comparison = f"kurtosis {statistic} v low_bit gap ({period})"
            r = value_of_test.loc[(comparison, f"Pearson r, {turn}")]
            assert f"{printed_name} {r:.2f}".replace("-", "−") in words(panel)
        (line,) = panel.get_lines()
        even = kurtosis[statistic].loc[range(40, 5721, 40)]
        assert np.array_equal(line.get_xydata(), np.column_stack([even.loc[start:], gap]))
        # The axis spans the points, and its label says how small a part of the run they are.
        share = 100 * np.ptp(even.loc[start:]) / np.ptp(even)
        assert f"{share:.0f} % of its range" in panel.get_xlabel()


def test_forks_show_bumps_hollow_and_the_rate_of_every_update():
    suite = synthetic.facts(synthetic.MINI)
    forks = synthetic.forks()
    gap, _, _, panel = draw("forks").axes
    color = style.LOOKS["oli"].color
    oli = forks.query("schedule == 'oli'")
    for face, phase in (("white", "bump"), (color, "cool")):
        (marked,) = (
            set(line.get_xdata())
            for line in gap.get_lines()
            if (line.get_marker(), line.get_markeredgecolor()) == ("o", color)
            and line.get_markerfacecolor() == face
            and len(line.get_xdata())
        )
        assert marked == set(oli.loc[oli["update_phase"] == phase, "step"])
    lines = {line.get_color(): line for line in panel.get_lines() if line.get_linestyle() == "-"}
    baseline = synthetic.schedule(suite)
    for name, definition in synthetic.fork_schedules(suite).items():
        rate = synthetic.fork_schedule(definition, baseline=baseline, start=2800, stop=4000)
        line = lines[style.LOOKS[name].color]
        assert line.get_drawstyle() == "steps-post"
        expected = [100 * rate(step) / baseline.lr_max for step in range(2800, 4000)]
        assert np.allclose(line.get_ydata()[:-1], expected, rtol=1e-12)
    marked = [line.get_xydata() for line in panel.get_lines() if line.get_linestyle() == "None"]
    probes = forks.assign(rate=100 * forks["lr_fraction_last_update"])[["step", "rate"]]
    markers = pd.DataFrame(np.vstack(marked), columns=probes.columns)
    marker_points = set(map(tuple, markers.round(9).to_numpy()))
    assert marker_points == set(map(tuple, probes.round(9).to_numpy()))
    assert "5, 10 and 15 of OLI's 15-step cycle" in words(panel)


@style.style()
def test_the_rate_of_rewarmed_forks_is_drawn_as_it_was_trained():
    suite = synthetic.facts(synthetic.MINI)
    forks = synthetic.forks()
    rewarmed = {"optimizer_state": "rewarmed", "rewarm_steps": 200}
    for condition in suite["conditions"].values():
        condition["fork"] = condition["fork"] | rewarmed
    *_, panel = plot_forks.draw(forks, synthetic.audit(), [], suite).axes
    lines = {line.get_color(): line for line in panel.get_lines() if line.get_linestyle() == "-"}
    for name in ("cosine", "sgdr", "oli"):
        condition = Condition(**suite["conditions"][name])
        trained = [100 * condition.schedule(step) / 0.01 for step in range(2800, 4000)]
        line = lines[style.LOOKS[name].color].get_ydata()[:-1]
        np.testing.assert_allclose(line, trained, rtol=1e-12)
    # A tenth of the way up, the control has a tenth of the run's rate.
    run_rate = 100 * synthetic.schedule(suite)(2820) / 0.01
    cosine = lines[style.LOOKS["cosine"].color].get_ydata()
    assert cosine[0] == 0.0 and cosine[20] == pytest.approx(run_rate / 10)


@style.style()
def test_a_schedule_missing_from_the_suite_has_markers_and_a_look_of_its_own():
    looks = style.fork_looks(["cosine", "late_restart", "other"])
    assert len({look.color for look in looks.values()}) == 3
    forks = synthetic.forks().replace({"schedule": {"sgdr": "late_restart"}})
    suite = synthetic.facts(synthetic.MINI)
    suite["conditions"]["oli"]["fork"] |= {"probe_every": 4}
    after = forks.query("step == 4000").assign(step=4200)
    gap, *_, rate = plot_forks.draw(forks, synthetic.audit(), [after], suite).axes
    assert len([line for line in rate.get_lines() if line.get_linestyle() == "-"]) == 2
    assert "late_restart" in words(gap) and "cooled down" in words(gap)
    assert "15 of the 15 steps" in words(rate)


def test_lambada_is_the_published_numbers_beside_the_papers_steps():
    figure = draw("lambada")
    (axes,) = figure.axes
    assert "not measured by this workflow" in figure.get_suptitle()
    lines = {line.get_label(): line for line in axes.get_lines()}
    for model, part in LAMBADA[LAMBADA["step"] >= 3000].groupby("model"):
        expected = part[["step", "lambada_openai_ppl"]].to_numpy(float)
        step, ppl = best = expected[expected[:, 1].argmin()]
        line = lines.pop(f"{model}: best {ppl:.1f} at {step:,.0f}")
        assert np.array_equal(line.get_xydata(), expected)
        assert np.array_equal(line.get_xydata()[line.get_markevery()], [best])
    assert {line.get_xdata()[0] for line in lines.values()} == {77_000, 82_000}


def points(axes):
    (line,) = (line for line in axes.get_lines() if line.get_marker() == "o")
    return line.get_xydata()


@pytest.mark.parametrize("suite", [synthetic.MINI, synthetic.PYTHIA], ids=lambda s: s["name"])
def test_bit_widths_of_suite_and_paper_have_panels_of_their_own(suite):
    ours, papers = draw("bit_widths", suite=suite).axes
    printed = synthetic.PAPER_TABLE1[["int4_gap_pct", "int8_gap_pct"]].to_numpy()
    assert np.allclose(points(papers), np.log1p(printed / 100), rtol=1e-12)
    audit = synthetic.audit(suite).pivot(index="step", columns="role")["delta_nll_nats_per_token"]
    even = audit.loc[range(suite["spacing"], 143 * suite["spacing"] + 1, suite["spacing"])]
    assert np.array_equal(points(ours), even[["low_bit", "high_bit"]])
    assert ("not comparable" in words(papers)) is not suite["is_paper_model"]
    (line,) = (line for line in ours.get_lines() if line.get_marker() == "None")
    assert np.allclose(np.divide(*line.get_data()), 289), "the squared ratio of the levels"


def test_relations_are_those_of_the_statistics_and_losses_that_did_not_grow_are_counted():
    rows = synthetic.statistics().set_index(["comparison", "test"])["value"]
    rows = rows["high_bit v low_bit (even steps)"]
    ours, papers = map(words, draw("bit_widths").axes)
    assert f"low/high {rows['ratio']:.0f} [" in ours
    assert f"slope {rows['log-log regression']:.2f} [" in ours
    printed = np.log1p(synthetic.PAPER_TABLE1[["int4_gap_pct", "int8_gap_pct"]] / 100).sum()
    assert f"low/high {np.divide(*printed):.0f} [" in papers
    # A quantizer whose name contains no bit width has no line of the levels.
    audit = synthetic.audit().replace({"quantizer": {"int4_g64": "nearest"}})
    for steps_without_cost in ([40, 80, 5720], synthetic.grid(synthetic.MINI)):
        has_no_cost = (audit["role"] == "high_bit") & audit["step"].isin(steps_without_cost)
        audit.loc[has_no_cost, "delta_nll_nats_per_token"] = -1e-9
        figure = draw("bit_widths", audit=audit)
        left_out = min(len(steps_without_cost), 143)
        text = words(figure.axes[0])
        assert f"{left_out} of 143 checkpoints" in text
        [triangles] = [line for line in figure.axes[0].get_lines() if line.get_marker() == "v"]
        assert len(triangles.get_xdata()) == left_out, "no checkpoint is hidden"
        assert ("low/high none" in text) == (left_out == 143)
        assert "dashed" not in text
        no_text_overlaps_or_leaves_the_page(figure)


def test_power_laws_are_fitted_lines_over_the_points():
    (axes,) = draw("scaling_law", suite=synthetic.PYTHIA).axes
    printed = next(line for line in axes.get_lines() if line.get_marker() == "s")
    expected = synthetic.PAPER_TABLE1["step"] * 2_097_152 / 84_934_656
    assert np.allclose(printed.get_xdata(), expected)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len([line for line in axes.get_lines() if line.get_linestyle() == "-"]) == 2


def test_rivals_are_ranked_by_low_bit_perplexity():
    plane, ranks = draw("rivals").axes
    rivals = RIVALS[RIVALS["update_phase"] != "bump"]
    means = rivals.pivot_table(["ppl", "gap_pct"], "schedule", "role").sort_values(
        ("ppl", "low_bit")
    )
    ends = [line.get_xdata() for line in ranks.get_lines() if len(line.get_xdata()) == 2]
    assert np.allclose(ends, means["ppl"][["fp32", "low_bit"]])
    names = [label.get_text().split(": ") for label in ranks.get_yticklabels()]
    expected_names = [style.SCHEDULES.get(key, key.replace("_", " ")) for key in means.index]
    assert [name for name, _ in names] == expected_names
    assert {"SGDR", "linear to zero"} <= set(expected_names)
    assert [gap for _, gap in names] == [f"{gap:.1f} %" for gap in means["gap_pct"]["low_bit"]]
    gaps = [text for text in plane.texts if text.get_text().endswith(" %")]
    assert len(gaps) > 1
    for text in gaps:
        gap = float(text.get_text().removesuffix(" %"))
        assert np.divide(*text.xy[::-1]) == pytest.approx(1 + gap / 100)


def test_names_come_from_the_quantizers_and_matrices_of_many_blocks_from_their_block():
    audit = synthetic.audit()
    suite = {"quantizers": {"int4_g64": "NF4"}}
    labels = {"fp32": "FP32", "low_bit": "NF4", "high_bit": "int8_channel"}
    assert style.role_labels(audit, suite) == labels
    twice = audit.assign(role=audit["role"].replace("high_bit", "low_bit"))
    with pytest.raises(ValueError, match="role low_bit"):
        style.role_labels(twice, suite)
    layers = pd.read_csv(FROZEN / "mechanism/layers.csv")
    block_1 = layers[layers["tensor"].str.contains(r"\.1\.", regex=True)]
    more_blocks = [
        block_1.replace(r"layers\.1", f"layers.{block}", regex=True) for block in range(2, 12)
    ]
    figure = draw("layers", layers=pd.concat([layers, *more_blocks]))
    names = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert names == [str(block) for block in range(12)]
    for name, short in (
        ("transformer.h.0.attn.c_proj.weight", "0 attn.c_proj"),
        ("gpt_neox.layers.11.mlp.dense.weight", "11 mlp.dense"),
        ("lm_head.weight", "lm_head"),
    ):
        assert plot_layers.printed_matrix(name) == short
    no_text_overlaps_or_leaves_the_page(figure)
