"""What the convergence monitor saw: validation loss, its slope, and where it converged."""

import pandas as pd
from matplotlib.figure import Figure

from flatminima.figures import plotting
from flatminima.figures.placement import place_label
from flatminima.figures.plotting import GREY, LOOKS, PAGE_IN

SLOPE, ERROR = "eval_loss_slope_per_1000_steps", "eval_loss_slope_error_per_1000_steps"


def monitor_table(history: list[dict]) -> pd.DataFrame:
    """One row per evaluation, by step, from the Trainer's ``log_history``."""
    entries = pd.DataFrame(
        [entry for entry in history if any(k.startswith("eval_") for k in entry)]
    )
    return entries.groupby("step").first()


def draw(history: list[dict], events: list[dict], *, label: str) -> Figure:
    """Validation loss above, its smoothed slope with one standard error below."""
    table, look = monitor_table(history), LOOKS["fp32"]
    with plotting.style():
        figure = Figure(figsize=(PAGE_IN, 3.4))
        top, bottom = figure.subplots(
            2, 1, sharex=True,
            gridspec_kw={"hspace": 0.12, "left": 0.1, "right": 0.97, "bottom": 0.13, "top": 0.9},
        )  # fmt: skip
        top.plot(table.index, table["eval_loss"], color=look.color, marker=look.marker)
        top.set_ylabel("validation loss\n(nats per token)")
        slopes = table.dropna(subset=[SLOPE])
        bottom.fill_between(
            slopes.index, slopes[SLOPE] - slopes[ERROR], slopes[SLOPE] + slopes[ERROR], color=GREY,
            alpha=0.3, lw=0,
        )  # fmt: skip
        bottom.plot(slopes.index, slopes[SLOPE], color=look.color)
        bottom.axhline(0, color=GREY, lw=0.5)
        bottom.set_ylabel("slope\n(nats per 1,000 steps)")
        late = slopes[SLOPE].iloc[len(slopes) // 4 :].abs().max()
        bottom.set_ylim(-2.5 * late, 2.5 * late)
        plotting.step_axis(bottom)
        for event in events:
            for panel in (top, bottom):
                panel.axvline(event["step"], color=LOOKS["low_bit"].color, lw=0.8, ls=(0, (1, 2)))
            place_label(
                top, event["step"], event["loss"], f"converged: step {event['step']:,}",
                color=LOOKS["low_bit"].color,
            )  # fmt: skip
        plotting.put_title(figure, f"{label}: what the monitor saw", x=0.1, y=0.98)
    return figure


def monitor_text(history: list[dict], events: list[dict], *, label: str) -> str:
    """The figure in words."""
    loss = monitor_table(history)["eval_loss"]
    steps = ", ".join(f"{event['step']:,}" for event in events) or "none"
    return (
        f"{label}: two panels over training to step {loss.index[-1]:,}. Validation loss is lowest, "
        f"{loss.min():.3f} nats per token, at step {loss.idxmin():,} and ends at "
        f"{loss.iloc[-1]:.3f}; below it its smoothed slope with one standard error. Steps at "
        f"which the monitor says converged: {steps}."
    )
