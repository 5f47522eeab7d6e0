"""Figure 9: noise, sensitivity, and their product against the measured loss."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.figures import plotting
from flatminima.figures.plotting import GREY
from flatminima.labels import quantizer_label
from flatminima.mechanism.finding_losses import near
from flatminima.mechanism.panels import band, legend, mark_best, row_of_panels, step_ticks

_SECOND = ["second_order_nats", "second_order_low", "second_order_high"]
_MEASURED = ["measured_nats", "measured_low", "measured_high"]
_PREDICTED = ["predicted_nats", "predicted_low", "predicted_high"]
CONTROLS = {"noise": ("#0173b2", "normal noise, same norm"),
            "dither": ("black", "uniform in its own cell")}  # fmt: skip


def draw(table: pd.DataFrame, phases: dict, *, suite: dict, low: str) -> Figure:
    """Prediction against measurement, the two factors' growth, and the control noises.

    ``table`` is sensitivity.csv of ``suite`` (key label); ``low`` names the low-bit
    quantizer. Bands are 95 % intervals over batches.
    """
    name = quantizer_label(low)
    whole = table[table["tensor"] == "all"].sort_values("step")
    rounding = whole[whole["perturbation"] == "low_bit"]
    last = int(whole["step"].max())
    with plotting.style():
        figure, (cost, parts, control) = row_of_panels(
            f"{suite['label']}: noise × sensitivity against the loss that {name} adds",
            ["second order = measured?", "which factor grows?", "does the position matter?"],
        )  # fmt: skip
        color = plotting.LOOKS["low_bit"].color
        band(cost, rounding["step"], rounding, _MEASURED, color=color, label="measured")
        band(cost, rounding["step"], rounding, _PREDICTED, color="black", lw=0.8,
             ls=(0, (4, 1.5)), label="g·Δ + ½ Δ·H·Δ")  # fmt: skip
        band(cost, rounding["step"], rounding, _SECOND, color="#029e73", lw=0.8,
             ls=(0, (1, 1)), label="½ Δ·H·Δ alone")  # fmt: skip
        cost.set_ylabel(f"loss added by {name} (nats/token)")
        _draw_growth(parts, rounding, phases)
        _draw_controls(control, whole, rounding, name)
        for axes in (cost, parts, control):
            step_ticks(axes, last)
            mark_best(axes, phases, name=axes is control, top=0.3)
            legend(axes, loc="upper left", handlelength=1.6, labelspacing=0.25)
    return figure


def _draw_growth(axes: Axes, rows: pd.DataFrame, phases: dict) -> None:
    rows = rows[rows["step"] >= phases["rapid_learning_end"]["step"]]
    base = rows[rows["step"] == near(rows["step"], phases["convergence"]["step"])].iloc[0]
    noise = rows["noise_norm2"] / base["noise_norm2"]
    size = rows["weight_norm2"] / base["weight_norm2"]
    scaled = rows[_SECOND].div(noise, axis=0) / base[_SECOND[0]]
    band(axes, rows["step"], scaled, _SECOND, color="#029e73", label="sensitivity ½ Δ·H·Δ / |Δ|²")
    axes.plot(rows["step"], noise, color="black", label="noise |Δ|²")
    axes.plot(rows["step"], noise / size, color=GREY, lw=0.9, ls=(0, (4, 1.5)),
              label="relative noise |Δ|²/|w|²")  # fmt: skip
    axes.axhline(1, color=GREY, lw=0.4, zorder=0)
    axes.set_ylabel("times the value at the best FP32 step")
    top = max(2.0, float(np.nanmax(scaled[_SECOND[2]])))
    axes.set_ylim(0, 1.3 * top)


def _draw_controls(axes: Axes, whole: pd.DataFrame, rounding: pd.DataFrame, name: str) -> None:
    color = plotting.LOOKS["low_bit"].color
    band(axes, rounding["step"], rounding, _SECOND, color=color, label=f"{name} rounding")
    for kind, (shade, label) in CONTROLS.items():
        rows = whole[whole["perturbation"].str.startswith(kind)]
        if len(rows):
            mean = rows.groupby("step")[_SECOND].mean().reset_index()
            band(axes, mean["step"], mean, _SECOND, color=shade, lw=0.9, ls=(0, (4, 1.5)),
                 label=label)  # fmt: skip
    axes.set_ylabel("second-order cost ½ Δ·H·Δ (nats/token)")
    axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
