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

    Thin lines are seeds, thick ones their mean; the audited run over the same steps is grey.
    Absolute perplexities stand below the gap because the gap is relative to each fork's own
    FP32 model and shrinks when that model gets worse. Crosses beyond the end are the same
    forks after a common cool-down (``cooled``: cooled.csv, or nothing). ``suite`` is as in
    ``plan_forks.fork_facts``. The paper's figure 3, section 5.2.
    """
    name, forks = role_labels(forks, suite)["low_bit"], forks.fillna({"update_phase": ""})
    start, looks = forks["fork_step"].iloc[0], style.fork_looks(forks["schedule"].unique())
    after = cooled[0] if cooled else forks.iloc[:0]
    both = pd.concat([forks, after], ignore_index=True)
    run = audit[audit["step"].between(start, both["step"].max())]
    title = f"{suite['label']}: forks from step {start:,}"
    figure = style.page(f"{title} under {len(looks)} learning-rate schedules", 6.6)
    grid = figure.subplot_mosaic(
        [["gap", "gap"], ["low_bit", "fp32"], ["rate", "rate"]], height_ratios=(1.6, 1.2, 0.7)
    )
    grid["fp32"].sharey(grid["low_bit"])
    for panel, role, column, label in (
        ("gap", "low_bit", "gap_pct", f"{name} gap (% of FP32)"),
        ("low_bit", "low_bit", "ppl", f"{name} perplexity"),
        ("fp32", "fp32", "ppl", "FP32 perplexity"),
    ):
        axes = grid[panel]
        # Both perplexities share an axis, so the low-bit ones decide its scale.
        words = style.choose_scale(axes, both.loc[both["role"] == "low_bit", column])
        axes.set_ylabel(label + words)
        tables = (table[table["role"] == role] for table in (forks, after, run))
        _draw_forks(axes, *tables, column, looks)
    _draw_learning_rate(grid["rate"], forks[forks["role"] == "fp32"], looks, suite)
    for axes in grid.values():
        half = axes in (grid["low_bit"], grid["fp32"])
        style.step_axis(axes, both["step"].max(), ticks=4 if half else 8)
        axes.set(xlim=(start, None), xlabel="training step" if axes is grid["rate"] else "")
    _explain(grid["gap"], forks, looks, cooled=bool(len(after)))
    figure.align_ylabels([grid[panel] for panel in ("gap", "low_bit", "rate")])
    return figure


def _draw_forks(
    axes: Axes, forks: pd.DataFrame, cooled: pd.DataFrame, run: pd.DataFrame, column: str,
    looks: dict[str, Look],
) -> None:  # fmt: skip
    axes.plot(run["step"], run[column], color=GREY, lw=1.6, alpha=0.5, zorder=1)
    for _, origin in run[run["step"] == forks["fork_step"].iloc[0]].iterrows():
        axes.plot(origin["step"], origin[column], "D", color=GREY, ms=4, clip_on=False)
    for schedule, look in looks.items():
        part = forks[forks["schedule"] == schedule]
        for _, one in part.groupby("seed"):
            axes.plot(one["step"], one[column], color=look.color, lw=0.5, alpha=0.45, zorder=2)
        mean = part.groupby(["step", "update_phase"])[column].mean().reset_index()
        axes.plot(mean["step"], mean[column], color=look.color, ls=look.linestyle, lw=1.5, zorder=3)
        _draw_probes(axes, mean, column, look)
        rested = cooled[cooled["schedule"] == schedule]
        if len(rested):
            ends = pd.concat([mean, rested.groupby("step", as_index=False)[column].mean()])[-2:]
            axes.plot(ends["step"], ends[column], color=look.color, ls=":", lw=1.0, zorder=3)
            axes.plot(rested["step"], rested[column], ls="", marker="x", color=look.color, ms=4,
                      mew=0.9, clip_on=False, zorder=4)  # fmt: skip


def _draw_probes(axes: Axes, probes: pd.DataFrame, column: str, look: Look) -> None:
    """Markers at the probes; those whose last update was a bump are hollow."""
    for bump, part in probes.groupby(probes["update_phase"] == "bump"):
        face = "white" if bump else look.color
        axes.plot(part["step"], part[column], ls="", marker=look.marker, mec=look.color, mfc=face,
                  mew=0.8, zorder=4, clip_on=False)  # fmt: skip


def _draw_learning_rate(
    axes: Axes, probes: pd.DataFrame, looks: dict[str, Look], suite: dict
) -> None:
    steps = np.arange(probes["fork_step"].iloc[0], probes["step"].max() + 1)
    remarks = ["markers: last update before a probe"]
    for schedule, look in looks.items():
        # The rate does not depend on the seed.
        one = probes[probes["schedule"] == schedule].drop_duplicates("step")
        _draw_probes(axes, one.assign(rate=100 * one["lr_fraction_last_update"]), "rate", look)
        if schedule not in suite["conditions"]:  # measured under an older configuration
            continue
        condition = Condition(**suite["conditions"][schedule])
        rate = condition.schedule
        # The update that leaves a step has one rate all the way to the next step.
        lr = [100 * rate(step) / condition.training["lr_max"] for step in steps[:-1]]
        bumps = isinstance(rate.kind, OscillatoryLockIn)
        axes.plot(steps, [*lr, lr[-1]], drawstyle="steps-post", color=look.color, lw=0.6,
                  zorder=1.5 if bumps else 2)  # fmt: skip
        if bumps:
            remarks.append(_alias(rate.kind, condition.fork["probe_every"]))
    axes.set(ylim=(0, None), ylabel="learning rate\n(% of max)")
    axes.set_title("; ".join(dict.fromkeys(remarks)), color=GREY)


def _alias(schedule: OscillatoryLockIn, probe_every: int) -> str:
    """Which steps of a cycle the probes can meet, in words."""
    met = schedule.visible_phases(probe_every)
    if len(met) > MOST_NAMED:
        return f"probes meet {len(met)} of the {schedule.period} steps of a cycle"
    return f"probes meet the {schedule.period}-step cycle at {', '.join(map(str, met))}"


def _explain(axes: Axes, forks: pd.DataFrame, looks: dict[str, Look], *, cooled: bool) -> None:
    """What colours, thin lines, filled and hollow markers mean, in a legend above all panels."""
    bumped = set(forks.loc[forks["update_phase"] == "bump", "schedule"])
    entries = {}
    for schedule, look in looks.items():
        name, line = SCHEDULES.get(schedule, schedule), {"color": look.color, "lw": 1.5}
        entries[name] = {**line, "ls": look.linestyle, "marker": look.marker}
        if schedule in bumped:
            entries[f"{name}: bump"] = {**line, "ls": "", "marker": look.marker, "mfc": "white"}
    entries |= {
        "audit": {"color": GREY, "lw": 1.6, "alpha": 0.5},
        f"one of {forks['seed'].nunique()} seeds; thick: mean": {"color": GREY, "lw": 0.5},
        "fork point": {"color": GREY, "ls": "", "marker": "D"},
    }
    if cooled:
        entries["cooled down"] = {"color": GREY, "ls": "", "marker": "x"}
    for label, look in entries.items():
        axes.plot([], [], **look, label=label)
    style.legends([axes], [5])


if __name__ == "__main__":
    style.run(draw, snakemake)
