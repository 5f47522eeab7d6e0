"""Draw figure 3: forks of one checkpoint under three learning-rate schedules."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.conditions import Condition
from flatminima.schedules import OscillatoryLockIn
from flatminima.style import GREY, SCHEDULES, Look, role_labels

MOST_NAMED = 6  # steps of a cycle that are listed one by one


def draw(
    forks: pd.DataFrame, audit: pd.DataFrame, cooled: list[pd.DataFrame], suite: dict
) -> Figure:
    """Gap, absolute perplexities and learning rate of every fork over its probes.

    Thin lines are seeds, thick lines their mean. The audited run over the same steps is grey.
    The gap is relative to each fork's own FP32 model and shrinks when that model gets worse, so
    absolute perplexities are drawn below it. Crosses beyond the end are the same forks after a
    common cool-down (``cooled``: cooled.csv, or an empty list). ``suite`` is as in
    ``plan_forks.fork_facts``. The paper's figure 3, section 5.2.
    """
    low_bit_name = role_labels(forks, suite)["low_bit"]
    forks = forks.fillna({"update_phase": ""})
    fork_step = forks["fork_step"].iloc[0]
    looks = style.fork_looks(forks["schedule"].unique())
    cooled_forks = cooled[0] if cooled else forks.iloc[:0]
    all_forks = pd.concat([forks, cooled_forks], ignore_index=True)
    last_step = all_forks["step"].max()
    audited_run = audit[audit["step"].between(fork_step, last_step)]

    figure = style.page(
        f"{suite['label']}: forks from step {fork_step:,} under {len(looks)} schedules",
        6.6,
    )
    grid = figure.subplot_mosaic(
        [["gap", "gap"], ["low_bit", "fp32"], ["rate", "rate"]], height_ratios=(1.6, 1.2, 0.7)
    )
    grid["fp32"].sharey(grid["low_bit"])
    for panel, role, column, label in (
        ("gap", "low_bit", "gap_pct", f"{low_bit_name} gap (% of FP32)"),
        ("low_bit", "low_bit", "ppl", f"{low_bit_name} perplexity"),
        ("fp32", "fp32", "ppl", "FP32 perplexity"),
    ):
        axes = grid[panel]
        # Both perplexities share an axis, so the low-bit ones decide its scale.
        low_bit_values = all_forks.loc[all_forks["role"] == "low_bit", column]
        scale_note = style.choose_scale(axes, low_bit_values)
        axes.set_ylabel(label + scale_note)
        _draw_audited_run(axes, audited_run[audited_run["role"] == role], column, fork_step)
        for schedule, look in looks.items():
            of_schedule = (forks["schedule"] == schedule) & (forks["role"] == role)
            mean = _draw_seeds_and_mean(axes, forks[of_schedule], column, look)
            of_schedule = (cooled_forks["schedule"] == schedule) & (cooled_forks["role"] == role)
            _draw_cooled(axes, mean, cooled_forks[of_schedule], column, look)
    _draw_learning_rates(grid["rate"], forks[forks["role"] == "fp32"], looks, suite)
    for panel, axes in grid.items():
        is_half_page = panel in ("low_bit", "fp32")
        style.step_axis(axes, last_step, ticks=4 if is_half_page else 8)
        axes.set(xlim=(fork_step, None), xlabel="training step" if panel == "rate" else "")
    _draw_legend(grid["gap"], forks, looks, with_cooled=len(cooled_forks) > 0)
    figure.align_ylabels([grid[panel] for panel in ("gap", "low_bit", "rate")])
    return figure


def _draw_audited_run(axes: Axes, run: pd.DataFrame, column: str, fork_step: int) -> None:
    """The run that the forks leave, and a diamond at the fork point if it was probed."""
    axes.plot(run["step"], run[column], color=GREY, lw=1.6, alpha=0.5, zorder=1)
    fork_point = run[run["step"] == fork_step]
    # Matplotlib's layout fails on an empty curve that is not clipped.
    if len(fork_point):
        axes.plot(fork_point["step"], fork_point[column], "D", color=GREY, ms=4, clip_on=False)


def _draw_seeds_and_mean(axes: Axes, probes: pd.DataFrame, column: str, look: Look) -> pd.DataFrame:
    """One schedule: a thin line per seed and their mean, whose steps and values are returned."""
    for _, seed_probes in probes.groupby("seed"):
        axes.plot(
            seed_probes["step"], seed_probes[column], color=look.color, lw=0.5, alpha=0.45, zorder=2
        )
    mean = probes.groupby(["step", "update_phase"])[column].mean().reset_index()
    axes.plot(mean["step"], mean[column], color=look.color, ls=look.linestyle, lw=1.5, zorder=3)
    _draw_probes(axes, mean, column, look)
    return mean


def _draw_cooled(
    axes: Axes, mean: pd.DataFrame, cooled: pd.DataFrame, column: str, look: Look
) -> None:
    """Crosses after the cool-down, joined by a dotted line to the last mean before it."""
    if cooled.empty:
        return
    cooled_mean = cooled.groupby("step", as_index=False)[column].mean()
    ends = pd.concat([mean, cooled_mean])[-2:]
    axes.plot(ends["step"], ends[column], color=look.color, ls=":", lw=1.0, zorder=3)
    axes.plot(
        cooled["step"],
        cooled[column],
        ls="",
        marker="x",
        color=look.color,
        ms=4,
        mew=0.9,
        clip_on=False,
        zorder=4,
    )


def _draw_probes(axes: Axes, probes: pd.DataFrame, column: str, look: Look) -> None:
    """Markers at the probes; those whose last update was a bump are hollow."""
    for after_bump, part in probes.groupby(probes["update_phase"] == "bump"):
        axes.plot(
            part["step"],
            part[column],
            ls="",
            marker=look.marker,
            mec=look.color,
            mfc="white" if after_bump else look.color,
            mew=0.8,
            zorder=4,
            clip_on=False,
        )


def _draw_learning_rates(
    axes: Axes, probes: pd.DataFrame, looks: dict[str, Look], suite: dict
) -> None:
    """The rate that each condition was trained with, and that of the last update before a probe."""
    steps = np.arange(probes["fork_step"].iloc[0], probes["step"].max() + 1)
    remarks = ["Markers: last update before a probe."]
    for schedule, look in looks.items():
        # The rate does not depend on the seed.
        schedule_probes = probes[probes["schedule"] == schedule].drop_duplicates("step")
        percent = 100 * schedule_probes["lr_fraction_last_update"]
        _draw_probes(axes, schedule_probes.assign(rate=percent), "rate", look)
        if schedule not in suite["conditions"]:  # measured under an older configuration
            continue
        condition = Condition(**suite["conditions"][schedule])
        rate = condition.schedule
        # The update that leaves a step has one rate all the way to the next step.
        percent_of_max = [100 * rate(step) / condition.training["lr_max"] for step in steps[:-1]]
        oscillates = isinstance(rate.kind, OscillatoryLockIn)
        axes.plot(
            steps,
            [*percent_of_max, percent_of_max[-1]],
            drawstyle="steps-post",
            color=look.color,
            lw=0.6,
            zorder=1.5 if oscillates else 2,  # bumps must not hide the other schedules
        )
        if oscillates:
            remarks.append(_steps_of_cycle(rate.kind, condition.fork["probe_every"]))
    axes.set(ylim=(0, None), ylabel="learning rate\n(% of max)")
    axes.set_title(" ".join(dict.fromkeys(remarks)), color=GREY)


def _steps_of_cycle(schedule: OscillatoryLockIn, probe_every: int) -> str:
    """Say at which steps of a cycle probes are taken: evenly spaced probes miss the others."""
    probed_steps = schedule.visible_phases(probe_every)
    if len(probed_steps) > MOST_NAMED:
        count = f"{len(probed_steps)} of the {schedule.period} steps"
        return f"Probes fall on {count} of OLI's cycle."
    if len(probed_steps) == 1:
        return f"All probes fall on step {probed_steps[0]} of OLI's {schedule.period}-step cycle."
    *first_steps, last_step = map(str, probed_steps)
    listed = f"{', '.join(first_steps)} and {last_step}"
    return f"Probes fall on steps {listed} of OLI's {schedule.period}-step cycle."


def _draw_legend(
    axes: Axes, forks: pd.DataFrame, looks: dict[str, Look], *, with_cooled: bool
) -> None:
    """A legend of colours, thin lines, filled and hollow markers, above all panels."""
    oscillating = set(forks.loc[forks["update_phase"] == "bump", "schedule"])
    entries: dict[str, dict] = {}
    for schedule, look in looks.items():
        name = SCHEDULES.get(schedule, schedule)
        line = {"color": look.color, "lw": 1.5}
        curve = {**line, "ls": look.linestyle, "marker": look.marker}
        if schedule in oscillating:
            entries[f"{name}: cool"] = curve
            entries[f"{name}: bump"] = {**line, "ls": "", "marker": look.marker, "mfc": "white"}
        else:
            entries[name] = curve
    entries["the run itself"] = {"color": GREY, "lw": 1.6, "alpha": 0.5}
    entries[f"one of {forks['seed'].nunique()} seeds; thick: mean"] = {"color": GREY, "lw": 0.5}
    entries["fork point"] = {"color": GREY, "ls": "", "marker": "D"}
    if with_cooled:
        entries["cooled down"] = {"color": GREY, "ls": "", "marker": "x"}
    for label, look in entries.items():
        axes.plot([], [], **look, label=label)
    style.legends([axes], [5])


if __name__ == "__main__":
    style.run(draw, snakemake)
