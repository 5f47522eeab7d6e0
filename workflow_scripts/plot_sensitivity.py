"""Draw figure 9: noise, sensitivity, and their product against the measured loss."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.mechanism.findings import near
from flatminima.style import (
    GREY,
    LOOKS,
    band,
    legend,
    mark_best,
    row_of_panels,
    save,
    step_ticks,
    style,
)

_SECOND, _MEASURED, _PREDICTED = (
    [f"{term}_nats", f"{term}_low", f"{term}_high"]
    for term in ("second_order", "measured", "predicted")
)
CONTROLS = {"noise": ("#0173b2", "normal, same norm"),
            "dither": ("black", "uniform in its own cell")}  # fmt: skip
GREEN = "#029e73"


def draw(table: pd.DataFrame, phases: dict, *, suite: dict, low: str) -> Figure:
    """Prediction against measurement, the two factors' growth, and the control noises.

    ``table`` is sensitivity.csv of ``suite`` (keys label and quantizers); ``low`` names the low-bit
    quantizer. Bands are 95 % intervals over batches.
    """
    name = suite["quantizers"].get(low, low)
    whole = table[table["tensor"] == "all"].sort_values("step")
    rounding = whole[whole["perturbation"] == "low_bit"]
    with style():
        figure, panels = row_of_panels(
            f"{suite['label']}: noise × sensitivity against the loss that {name} adds",
            ["second order = measured?", "which factor grows?", "does the position matter?"],
            height=3.1, top=0.81,
        )  # fmt: skip
        cost, parts, control = panels
        for columns, color, dashes, label in (
            (_MEASURED, LOOKS["low_bit"].color, "-", "measured"),
            (_PREDICTED, "black", (0, (4, 1.5)), "g·Δ + ½ Δ·H·Δ"),
            (_SECOND, GREEN, (0, (1, 1)), "½ Δ·H·Δ alone"),
        ):
            band(cost, rounding["step"], rounding, columns, color=color, ls=dashes,
                 lw=1.1 if columns is _MEASURED else 0.8, label=label)  # fmt: skip
        cost.set_ylabel(f"loss added by {name} (nats/token)")
        _draw_growth(parts, rounding, phases)
        _draw_controls(control, whole, rounding, name)
        for axes in panels:
            step_ticks(axes, int(whole["step"].max()))
            mark_best(axes, phases, name=axes is control, top=0.34)
            legend(axes, loc="upper left", handlelength=1.6, labelspacing=0.25)
    return figure


def _draw_growth(axes: Axes, rows: pd.DataFrame, phases: dict) -> None:
    rows = rows[rows["step"] >= phases["rapid_learning_end"]["step"]]
    base = rows[rows["step"] == near(rows["step"], phases["convergence"]["step"])].iloc[0]
    noise = rows["noise_norm2"] / base["noise_norm2"]
    size = rows["weight_norm2"] / base["weight_norm2"]
    scaled = rows[_SECOND].div(noise, axis=0) / base[_SECOND[0]]
    band(axes, rows["step"], scaled, _SECOND, color=GREEN, label="sensitivity ½ Δ·H·Δ / |Δ|²")
    axes.plot(rows["step"], noise, color="black", label="noise |Δ|²")
    axes.plot(rows["step"], noise / size, color=GREY, lw=0.9, ls=(0, (4, 1.5)),
              label="relative noise |Δ|²/|w|²")  # fmt: skip
    axes.axhline(1, color=GREY, lw=0.4, zorder=0)
    axes.set_ylabel("times the value at the best FP32 step")
    axes.set_ylim(0, 1.3 * max(2.0, float(np.nanmax(scaled[_SECOND[2]]))))


def _draw_controls(axes: Axes, whole: pd.DataFrame, rounding: pd.DataFrame, name: str) -> None:
    band(axes, rounding["step"], rounding, _SECOND, color=LOOKS["low_bit"].color,
         label=f"{name} rounding")  # fmt: skip
    for kind, (shade, label) in CONTROLS.items():
        rows = whole[whole["perturbation"].str.startswith(kind)]
        if len(rows):
            mean = rows.groupby("step")[_SECOND].mean().reset_index()
            band(axes, mean["step"], mean, _SECOND, color=shade, lw=0.9, ls=(0, (4, 1.5)),
                 label=label)  # fmt: skip
    axes.set_ylabel("½ Δ·H·Δ (nats/token)")
    axes.set_ylim(0, 1.35 * axes.get_ylim()[1])


def main(*, sensitivity: str, phases: str, suite: dict, low: str, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    save(draw(pd.read_csv(sensitivity), read_json(phases), suite=suite, low=low), outputs)


if __name__ == "__main__":
    run(main, snakemake)
