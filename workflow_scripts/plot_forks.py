"""Draw figure 3: forks of one checkpoint under three learning-rate schedules."""

import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from flatminima import style
from flatminima.jobs import run
from flatminima.schedules import (
    ForkSchedule,
    OscillatoryLockIn,
    fork_schedule,
    read_schedule,
)
from flatminima.style import GREY, SCHEDULES, Look, end_labels, role_labels

MOST_NAMED = 6  # steps of a cycle that are listed one by one


def main(forks: str, cooled: list, audit: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (pdf, svg, png); ``suite`` is described at ``draw``."""
    branch = pd.read_csv(cooled[0]) if cooled else None
    drawing = draw(pd.read_csv(forks), pd.read_csv(audit), cooled=branch, suite=suite)
    style.save(drawing, outputs)


@style.style()
def draw(
    forks: pd.DataFrame, audit: pd.DataFrame, *, cooled: pd.DataFrame | None = None, suite: dict
) -> Figure:
    """Gap, absolute perplexities and learning rate of every fork over its probes.

    ``forks`` and ``audit`` are forks.csv and audit.csv of ``suite`` (``plan.fork_facts``).
    Thin lines are seeds, thick ones their mean; the audited run over the same steps is grey.
    Absolute perplexities stand below the gap because the gap is relative to each fork's own
    FP32 model and shrinks when that model gets worse. Crosses beyond the end are the same
    forks after a common cool-down (``cooled``). The paper's figure 3, section 5.2.
    """
    name = role_labels(forks, suite)["low_bit"]
    forks = forks.fillna({"update_phase": ""})
    start, last = forks["fork_step"].iloc[0], forks["step"].max()
    cooled = forks.iloc[:0] if cooled is None else cooled
    end = max(last, cooled["step"].max()) if len(cooled) else last
    run = audit[audit["step"].between(start, end)]
    figure = Figure(figsize=(style.PAGE_IN, 6.2))
    grid = figure.add_gridspec(
        3, 2, height_ratios=(1.6, 1.2, 0.7), hspace=0.32, wspace=0.37,
        left=0.095, right=0.93, bottom=0.065, top=0.90,
    )  # fmt: skip
    gap = figure.add_subplot(grid[0, :])
    low_ppl = figure.add_subplot(grid[1, 0], sharex=gap)
    fp32_ppl = figure.add_subplot(grid[1, 1], sharex=gap, sharey=low_ppl)
    rate = figure.add_subplot(grid[2, :], sharex=gap)
    gap.set_xlim(start, end)
    looks = style.fork_looks(forks["schedule"].unique())

    low = pd.concat([forks, cooled], ignore_index=True).query("role == 'low_bit'")
    ends = {}
    for axes, role, column, label in (
        (gap, "low_bit", "gap_pct", f"{name} gap (% of FP32)"),
        (low_ppl, "low_bit", "ppl", f"{name} perplexity"),
        (fp32_ppl, "fp32", "ppl", "FP32 perplexity"),
    ):
        # Both perplexities share an axis, so the low-bit ones decide its scale.
        words = style.choose_scale(axes.yaxis, low[column])
        axes.set_ylabel(label + (f"\n{words}" if words else ""))
        tables = (table[table["role"] == role] for table in (forks, cooled, run))
        ends[axes] = _draw_forks(axes, *tables, column, looks)
    for axes, labels in ends.items():
        end_labels(axes, labels)
    _draw_learning_rate(rate, forks[forks["role"] == "fp32"], looks, suite)
    for axes in figure.axes:
        style.step_axis(axes)
    for axes in (gap, low_ppl, fp32_ppl):
        axes.set_xlabel("")
    gap.xaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 4, 5, 10]))
    _explain(figure, forks, looks, cooled=bool(len(cooled)))
    style.put_title(
        figure,
        f"{suite['label']}: forks from step {start:,} under {len(looks)} "
        "learning-rate schedules",
        x=0.095, y=0.985,
    )  # fmt: skip
    figure.align_ylabels([gap, low_ppl, rate])
    return figure


def _draw_forks(
    axes: Axes, forks: pd.DataFrame, cooled: pd.DataFrame, run: pd.DataFrame, column: str,
    looks: dict[str, Look],
) -> list[tuple[str, float, str]]:  # fmt: skip
    """Draw one quantity; returns the labels of its curves' ends."""
    axes.plot(run["step"], run[column], color=GREY, lw=1.6, alpha=0.5, zorder=1)
    origin = run[run["step"] == forks["fork_step"].iloc[0]]
    axes.plot(origin["step"], origin[column], "D", color=GREY, ms=4, clip_on=False)
    ends = [("audit", value, GREY) for value in run[column].tail(1)]
    for schedule, look in looks.items():
        part = forks[forks["schedule"] == schedule]
        for _, one in part.groupby("seed"):
            axes.plot(one["step"], one[column], color=look.color, lw=0.5, alpha=0.45, zorder=2)
        mean = part.groupby(["step", "update_phase"])[column].mean().reset_index()
        axes.plot(mean["step"], mean[column], color=look.color, ls=look.linestyle, lw=1.5, zorder=3)
        _draw_probes(axes, mean, column, look)
        end = mean.iloc[-1]
        after = cooled[cooled["schedule"] == schedule]
        if len(after):
            one = after.groupby("step", as_index=False)[column].mean().iloc[-1]
            axes.plot([end["step"], one["step"]], [end[column], one[column]], color=look.color,
                      ls=":", lw=1.0, zorder=3)  # fmt: skip
            axes.plot(after["step"], after[column], ls="", marker="x", color=look.color, ms=4,
                      mew=0.9, clip_on=False, zorder=4)  # fmt: skip
            end = one
        ends.append((SCHEDULES.get(schedule, schedule), end[column], look.color))
    return ends


def _draw_probes(axes: Axes, probes: pd.DataFrame, column: str, look: Look) -> None:
    """Markers at the probes; those whose last update was a bump are hollow."""
    bump = probes["update_phase"] == "bump"
    for part, face in [(probes[~bump], look.color), (probes[bump], "white")]:
        axes.plot(
            part["step"], part[column], ls="", marker=look.marker, mec=look.color, mfc=face,
            mew=0.8, zorder=4, clip_on=False,
        )  # fmt: skip


def _schedule_of(suite: dict, name: str) -> ForkSchedule | None:
    """Learning rate by step of one fork; ``None`` where ``suite`` does not tell it."""
    fork, training = suite["fork"], suite["training"]
    if name not in fork["schedules"]:
        return None
    baseline = read_schedule(training, suite["last"])
    start, stop = fork["start"], fork["start"] + fork["steps"]
    return fork_schedule(fork["schedules"][name], baseline=baseline, start=start, stop=stop)


def _draw_learning_rate(
    axes: Axes, probes: pd.DataFrame, looks: dict[str, Look], suite: dict
) -> None:
    ends, lines, cycles = [], "", {}
    first, last = probes["fork_step"].iloc[0], probes["step"].max()
    for schedule, look in looks.items():
        # The rate does not depend on the seed.
        one = probes[probes["schedule"] == schedule].drop_duplicates("step").sort_values("step")
        one = one.assign(lr_pct=100 * one["lr_fraction_last_update"])
        rate = _schedule_of(suite, schedule)
        if rate is not None:
            # The update that leaves a step has one rate all the way to the next step.
            steps = np.arange(first, last + 1)
            lr = [100 * rate(step) / suite["training"]["lr_max"] for step in steps[:-1]]
            bumps = isinstance(rate.kind, OscillatoryLockIn)
            axes.plot(
                steps, [*lr, lr[-1]], drawstyle="steps-post", color=look.color, lw=0.6,
                zorder=1.5 if bumps else 2,
            )  # fmt: skip
            lines = "lines: every update; "
            if bumps:
                cycles[rate.kind.period] = _alias(rate.kind, suite["fork"]["probe_every"])
        _draw_probes(axes, one, "lr_pct", look)
        ends.append((SCHEDULES.get(schedule, schedule), one["lr_pct"].iloc[-1], look.color))
    axes.set_ylim(0, None)
    axes.set_ylabel("learning rate\n(% of max)")
    remark = [f"{lines}markers: last one before a probe", *cycles.values()]
    axes.set_title("; ".join(remark), loc="left", color=GREY, pad=5)
    end_labels(axes, ends)


def _alias(schedule: OscillatoryLockIn, probe_every: int) -> str:
    """Which steps of a cycle the probes can meet, in words."""
    met = schedule.visible_phases(probe_every)
    if len(met) > MOST_NAMED:
        return f"probes meet {len(met)} of the {schedule.period} steps of a cycle"
    *most, last = map(str, met)
    steps = f"{', '.join(most)} and {last}" if most else last
    return f"probes meet the {schedule.period}-step cycle at {steps}"


def _explain(figure: Figure, forks: pd.DataFrame, looks: dict[str, Look], *, cooled: bool) -> None:
    """What thin lines, filled and hollow markers mean, in one line above the panels."""
    grey = {"color": GREY, "ls": "", "ms": 4}
    handles = [
        Line2D([], [], color=GREY, lw=1.5, label="mean over seeds"),
        Line2D([], [], color=GREY, lw=0.5, label=f"one seed ({forks['seed'].nunique()} each)"),
        Line2D([], [], **grey, marker="D", label="fork point"),
        *([Line2D([], [], **grey, marker="x", label="cooled down")] if cooled else []),
    ]
    for schedule in forks.loc[forks["update_phase"] == "bump", "schedule"].unique():
        look, name = looks[schedule], SCHEDULES.get(schedule, schedule)
        for phase, face in (("cool", look.color), ("bump", "white")):
            handles.append(Line2D([], [], ls="", marker=look.marker, mec=look.color, mew=0.8,
                                  mfc=face, label=f"{name}: {phase}"))  # fmt: skip
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.085, 0.965),
                  ncols=len(handles), handlelength=1.2)  # fmt: skip


if __name__ == "__main__":
    run(main, snakemake)
