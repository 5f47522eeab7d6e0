"""Figures: three formats, the same bytes twice, readable labels, nothing hidden."""

import runpy
from itertools import combinations, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from flatminima.figures import figure_audit, figure_forks, figure_kurtosis, plotting
from flatminima.figures.placement import end_labels
from flatminima.labels import quantizer_label, role_labels
from flatminima.schedules import fork_schedule
from tests import synthetic
from workflow_scripts import plot_audit

CASES = {
    "mini": {},
    "paper's model": {"suite": synthetic.PYTHIA},
    "no onset": {"onset": False},
    "twelve revisions": {"short": True},
    "negative INT8": {"negative_int8": True},
}
INPUTS = {
    "audit": ("audit", "phases", "paper_table"),
    "kurtosis": ("kurtosis", "audit", "phases"),
    "forks": ("forks", "audit"),
}


def draw(name, suite=synthetic.MINI, *, onset=True, short=False, negative_int8=False):
    audit = synthetic.audit(suite, short=short, negative_int8=negative_int8)
    phases = synthetic.phases(suite, onset=onset)
    if name == "audit":
        points = synthetic.PAPER_TABLE1 if suite["is_paper_model"] else None
        return figure_audit.draw(audit, phases, suite=suite, paper_points=points)
    if name == "kurtosis":
        kurtosis = synthetic.kurtosis(suite, short=short)
        return figure_kurtosis.draw(kurtosis, audit, phases, suite=suite)
    return figure_forks.draw(synthetic.forks(suite), audit, suite=synthetic.facts(suite))


def texts(figure):
    """Every text that is drawn, with its box in pixels."""
    with plotting.style():
        FigureCanvasAgg(figure).draw()
    found = [figure._suptitle, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes._left_title]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            found += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    drawn = [text for text in found if text.get_visible() and text.get_text().strip()]
    # The box of an Annotation would include its leader line.
    return [(text.get_text(), Text.get_window_extent(text)) for text in drawn]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return synthetic.write(tmp_path_factory.mktemp("results") / "mini")


def run_script(name, results, folder):
    """The script as Snakemake runs it; returns its figures."""
    figures = [folder / f"{name}.{suffix}" for suffix in ("pdf", "svg", "png")]
    files = {key: results / f"{key}.csv" for key in INPUTS[name]}
    files["phases"] = results / "phases.json"
    files["paper_table"] = synthetic.ROOT / "resources/paper/table1.csv"
    job = SimpleNamespace(
        input=SimpleNamespace(**files),
        output=figures,
        params=SimpleNamespace(suite=synthetic.MINI),
        log=[folder / "log.txt"],
    )
    script = synthetic.ROOT / "workflow_scripts" / f"plot_{name}.py"
    runpy.run_path(str(script), init_globals={"snakemake": job}, run_name="__main__")
    return figures


@pytest.mark.parametrize("name", INPUTS)
def test_scripts_write_three_formats_with_the_same_bytes_twice(name, results, tmp_path):
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
    first = run_script(name, results, tmp_path / "first")
    second = run_script(name, results, tmp_path / "second")
    starts = [path.read_bytes()[:5] for path in first]
    assert starts == [b"%PDF-", b"<?xml", b"\x89PNG\r"]
    for one, other in zip(first, second, strict=True):
        assert one.stat().st_size > 5000
        assert one.read_bytes() == other.read_bytes()


def no_text_overlaps_or_leaves_the_page(figure):
    boxes = texts(figure)
    assert len(boxes) > 10
    page = figure.bbox
    for text, box in boxes:
        inside = box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1
        assert inside, f"{text!r} leaves the page"
    for (text, box), (other_text, other) in combinations(boxes, 2):
        assert not box.padded(-0.5).overlaps(other.padded(-0.5)), f"{text!r} over {other_text!r}"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", INPUTS)
def test_title_carries_the_label_and_no_texts_overlap(name, case):
    figure = draw(name, **CASES[case])
    label = CASES[case].get("suite", synthetic.MINI)["label"]
    assert figure.get_suptitle().startswith(f"{label}: ")
    no_text_overlaps_or_leaves_the_page(figure)


def test_curves_are_the_table():
    audit = synthetic.audit()
    gap, ppl, rate = draw("audit").axes
    curves = {line.get_color(): line for line in gap.get_lines() if len(line.get_xdata()) == 154}
    for role in ("low_bit", "high_bit"):
        part = audit[audit["role"] == role]
        line = curves[plotting.LOOKS[role].color]
        assert np.array_equal(line.get_xdata(), part["step"])
        assert np.array_equal(line.get_ydata(), part["gap_pct"])
    fp32 = audit[audit["role"] == "fp32"]
    assert any(np.array_equal(line.get_ydata(), fp32["ppl"]) for line in ppl.get_lines())
    shown = [line.get_ydata() for line in rate.get_lines() if len(line.get_xdata()) == 154]
    assert np.allclose(shown[0], 100 * fp32["lr_fraction"])


def test_negative_gaps_are_on_the_axis_and_said():
    audit = synthetic.audit(negative_int8=True)
    lowest = audit["gap_pct"].min()
    assert lowest < 0
    axes = draw("audit", negative_int8=True).axes[0]
    assert axes.get_yscale() == "symlog"
    assert "linear within" in axes.get_ylabel()
    assert axes.get_ylim()[0] < lowest


def axis_of(values, **options):
    axes = Figure().subplots()
    axes.plot(values)
    return axes, plotting.choose_scale(axes.yaxis, values, **options)


def test_scale_follows_the_range():
    linear, words = axis_of([1.0, 2.0, 29.0])
    assert (linear.get_yscale(), words) == ("linear", "")
    log, words = axis_of([1.0, 2.0, 100.0])
    assert (log.get_yscale(), words) == ("log", "log scale")
    both, words = axis_of([-0.03, 0.05, 100.0])
    assert both.get_yscale() == "symlog"
    assert words == "log scale, linear within ±0.1"
    bounded, _ = axis_of([0.02, 1.0, 100.0], bounds=[-0.01])
    assert bounded.get_yscale() == "symlog"
    noise, words = axis_of([-1.5, 0.001, 1.4])
    assert (noise.get_yscale(), words) == ("linear", "")
    short, _ = axis_of([12.0, 500.0])
    low, high = short.get_ylim()
    marks = [at for at in short.yaxis.get_majorticklocs() if low <= at <= high]
    assert np.allclose(marks, [10, 20, 50, 100, 200, 500])
    negative, words = axis_of([-3.0, -2.0, -1.0])
    assert (negative.get_yscale(), words) == ("linear", "")


def test_a_small_low_bit_range_stays_linear_whatever_the_control_does():
    audit = synthetic.audit()
    low = audit["role"] == "low_bit"
    audit.loc[low, "gap_pct"] = np.linspace(5, 18, low.sum())
    figure = figure_audit.draw(audit, synthetic.phases(), suite=synthetic.MINI)
    assert audit.loc[audit["role"] == "high_bit", "gap_pct"].median() < 18 / 100
    assert figure.axes[0].get_yscale() == "linear"
    assert "log" not in figure.axes[0].get_ylabel()


def test_phases_without_onset_are_two_and_say_so():
    names = [text.get_text() for text in draw("audit", onset=False).axes[0].texts]
    assert "2 after rapid learning (no onset found)" in names
    assert not any(name.startswith("3 ") for name in names)
    assert not any("onset: step" in name for name in names)
    figure = draw("kurtosis", onset=False)
    assert figure.axes[1]._left_title.get_text() == "after FP32 convergence (no onset found)"
    names = [text.get_text() for text in figure.axes[0].texts]
    assert "2 after rapid learning (no onset found)" in names


@pytest.mark.parametrize(
    ("edges", "raised"),
    [
        ([0, 30, 60, 100], []),
        ([0, 3, 70, 100], []),  # the first name reaches over the second band
        ([0, 3, 35, 100], []),  # whose own name then moves aside
        ([0, 3, 6, 100], ["2 plateau"]),
        ([0, 60, 97, 100], []),
    ],
)
def test_phase_names_share_a_line_where_they_fit(edges, raised):
    with plotting.style():
        axes = Figure(figsize=(plotting.PAGE_IN, 2)).subplots()
        axes.set_xlim(0, 100)
        segments = [
            {"phase": i + 1, "name": name, "first_step": first, "last_step": last}
            for i, (name, (first, last)) in enumerate(
                zip(["rapid learning", "plateau", "divergence"], pairwise(edges), strict=True)
            )
        ]
        plotting.draw_phases([axes], segments)
        FigureCanvasAgg(axes.figure).draw()
        assert [text.get_text() for text in axes.texts if text.xyann[1] > 3] == raised
        boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x0 >= axes.bbox.x0 - 1 and box.x1 <= axes.bbox.x1 + 1 for box in boxes)
    for text, box, segment in zip(axes.texts, boxes, segments, strict=True):
        if text.get_text() not in raised:
            ends = axes.transData.transform([(segment[k], 0) for k in ("first_step", "last_step")])
            assert box.x0 < ends[1, 0] and box.x1 > ends[0, 0]


def test_the_paper_points_are_drawn_over_its_own_model_only(results, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plotting, "save", lambda figure, paths: drawn.append(figure))
    for suite in (synthetic.MINI, synthetic.PYTHIA):
        plot_audit.main(
            audit=results / "audit.csv",
            phases=results / "phases.json",
            paper_table=synthetic.ROOT / "resources/paper/table1.csv",
            figures=[],
            suite=suite,
        )
    mine, papers = ([text.get_text() for text in figure.axes[0].texts] for figure in drawn)
    assert "open markers: the paper's Table 1" not in mine
    assert "open markers: the paper's Table 1" in papers


@pytest.mark.parametrize("onset", [True, False])
def test_each_definition_has_a_panel_with_the_correlation_of_the_statistics(onset):
    rows, figure = synthetic.statistics(onset=onset), draw("kurtosis", onset=onset)
    rows = rows[rows["test"] == "Pearson r"].set_index("comparison")
    when = "phase 3" if onset else "after convergence"
    panels = dict(zip(["mean_over_tensors", "pooled"], figure.axes[1:], strict=True))
    assert panels["pooled"].get_shared_y_axes().joined(*panels.values())
    kurtosis = synthetic.kurtosis().set_index(["statistic", "step"])["excess_kurtosis"]
    gap = synthetic.audit().set_index(["role", "step"])["gap_pct"]["low_bit"]
    for statistic, panel in panels.items():
        row = rows.loc[f"kurtosis {statistic} v low_bit gap ({when})"]
        printed = [text.get_text() for text in panel.texts]
        assert f"r = {row['value']:.2f}".replace("-", "−") in printed
        assert f"n = {row['n_a']}, p < 0.001" in printed
        assert statistic.replace("_", " ").split()[0] in printed[-1]
        (line,) = panel.get_lines()
        steps = range(3200 if onset else 3080, 5721, 40)
        assert np.array_equal(line.get_xdata(), kurtosis[statistic].loc[list(steps)])
        assert np.array_equal(line.get_ydata(), gap.loc[list(steps)])
        assert len(steps) == row["n_a"]


def test_bump_probes_are_hollow_and_cool_ones_filled():
    forks = synthetic.forks()
    axes = draw("forks").axes[0]
    color = plotting.LOOKS["oli"].color
    markers = {
        line.get_markerfacecolor(): set(line.get_xdata())
        for line in axes.get_lines()
        if line.get_marker() == "o" and line.get_markeredgecolor() == color
    }
    oli = forks[forks["schedule"] == "oli"]
    assert markers["white"] == set(oli.loc[oli["update_phase"] == "bump", "step"])
    assert markers[color] == set(oli.loc[oli["update_phase"] == "cool", "step"])
    assert len(markers["white"]) == 10


def test_learning_rate_is_drawn_at_every_update():
    suite, forks = synthetic.facts(synthetic.MINI), synthetic.forks()
    panel = draw("forks").axes[3]
    lines = {line.get_color(): line for line in panel.get_lines() if line.get_linestyle() == "-"}
    baseline, steps = synthetic.schedule(suite), np.arange(2800, 4000)
    for name, definition in suite["fork"]["schedules"].items():
        rate = fork_schedule(definition, baseline=baseline, start=2800, stop=4000)
        line = lines[plotting.LOOKS[name].color]
        assert line.get_drawstyle() == "steps-post"
        assert np.array_equal(line.get_xdata(), np.arange(2800, 4001))
        expected = [100 * rate(step) / baseline.lr_max for step in steps]
        assert np.allclose(line.get_ydata()[:-1], expected, rtol=1e-12)
    oli = lines[plotting.LOOKS["oli"].color].get_ydata()[:-1]
    cosine = lines[plotting.LOOKS["cosine"].color].get_ydata()[:-1]
    bumps = (oli > 2 * cosine).astype(int)
    assert (np.diff(bumps) == 1).sum() == 80
    fp32 = forks[forks["role"] == "fp32"].drop_duplicates(["schedule", "step"])
    marked = [line for line in panel.get_lines() if line.get_linestyle() == "None"]
    drawn = {(x, round(y, 9)) for line in marked for x, y in line.get_xydata()}
    probes = zip(fp32["step"], 100 * fp32["lr_fraction_last_update"], strict=True)
    assert drawn == {(x, round(y, 9)) for x, y in probes}
    assert "the 15-step cycle at 5, 10 and 15" in panel.get_title(loc="left")


def test_without_the_facts_the_rate_is_markers_only():
    figure = figure_forks.draw(synthetic.forks(), synthetic.audit(), suite=synthetic.MINI)
    panel = figure.axes[3]
    assert len(panel.get_lines()) == 6
    assert all(line.get_linestyle() == "None" for line in panel.get_lines())
    assert panel.get_title(loc="left") == "markers: the last update before each probe"


def test_many_visible_steps_of_a_cycle_are_counted():
    suite = synthetic.facts(synthetic.MINI)
    suite["fork"]["probe_every"] = 4
    figure = figure_forks.draw(synthetic.forks(), synthetic.audit(), suite=suite)
    assert "probes meet 15 of the 15 steps of a cycle" in figure.axes[3].get_title(loc="left")


def test_other_schedules_get_looks_and_names_of_their_own():
    looks = plotting.fork_looks(["cosine", "late_restart", "other"])
    assert len({look.color for look in looks.values()}) == 3
    forks = synthetic.forks().replace({"schedule": {"sgdr": "late_restart"}})
    suite = synthetic.facts(synthetic.MINI)
    figure = figure_forks.draw(forks, synthetic.audit(), suite=suite)
    lines = [line for line in figure.axes[3].get_lines() if line.get_linestyle() == "-"]
    assert len(lines) == 2  # the rate of a schedule that the suite does not define is not known
    assert "late_restart" in [text.get_text() for text in figure.axes[0].texts]


def test_end_labels_of_equal_values_are_moved_apart():
    with plotting.style():
        axes = Figure(figsize=(3, 2)).subplots()
        axes.plot([0, 1], [0, 1])
        end_labels(axes, [(name, 0.5, "black") for name in ("one", "two", "three")])
        boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.padded(-0.5).overlaps(b) for a, b in combinations(boxes, 2))


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"fig\.jpg: a figure is written as pdf, svg, png"):
        plotting.save(Figure(), [tmp_path / "fig.jpg"])


def test_names_come_from_the_quantizers():
    assert quantizer_label("int3_g64") == "INT3"
    assert quantizer_label("nearest") == "nearest"
    audit = synthetic.audit()
    assert role_labels(audit) == {"fp32": "FP32", "low_bit": "INT4", "high_bit": "INT8"}
    twice = audit.assign(role=audit["role"].replace("high_bit", "low_bit"))
    with pytest.raises(ValueError, match="role low_bit: one quantizer is expected, found int4_g64"):
        role_labels(twice)
