"""Draw figure 9: noise, sensitivity, and their product against the measured loss."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.mechanism.findings import near
from flatminima.style import BLUE, DASHED, DOTTED, GREEN, GREY, RED

_SECOND, _MEASURED, _PREDICTED = (
    [f"{term}_nats", f"{term}_low", f"{term}_high"]
    for term in ("second_order", "measured", "predicted")
)
CONTROLS = {"noise": (BLUE, DASHED, "normal, same norm"),
            "dither": ("black", DOTTED, "uniform in its own cell")}  # fmt: skip


@style.style()
def draw(sensitivity: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Prediction against measurement, the two factors' growth, and the control noises.

    ``sensitivity`` is sensitivity.csv of ``suite`` (key label), ``audit`` tells what the
    low-bit quantizer is called. Bands are 95 % intervals over batches.
    """
    name = style.role_labels(audit, suite)["low_bit"]
    whole = sensitivity[sensitivity["tensor"] == "all"].sort_values("step")
    rounding = whole[whole["perturbation"] == "low_bit"]
    figure, panels = style.row_of_panels(
        f"{suite['label']}: noise × sensitivity against the loss that {name} adds",
        ["second order = measured?", "which factor grows?", "does the position matter?"],
        height=3.2,
    )
    cost, parts, control = panels
    for columns, color, dashes, label in (
        (_MEASURED, RED, "-", "measured"),
        (_PREDICTED, "black", DASHED, "g·Δ + ½ Δ·H·Δ"),
        (_SECOND, GREEN, DOTTED, "½ Δ·H·Δ alone"),
    ):
        style.band(cost, rounding["step"], rounding, columns, color=color, ls=dashes, label=label)
    cost.set_ylabel(f"loss added by {name} (nats/token)")
    _draw_growth(parts, rounding, phases)
    _draw_controls(control, whole, rounding, name)
    for axes in panels:
        style.step_axis(axes, whole["step"].max())
        style.mark_best(axes, phases)
    style.legends(panels)
    return figure


def _draw_growth(axes: Axes, rows: pd.DataFrame, phases: dict) -> None:
    rows = rows[rows["step"] >= phases["rapid_learning_end"]["step"]]
    base = rows[rows["step"] == near(rows["step"], phases["convergence"]["step"])].iloc[0]
    noise = rows["noise_norm2"] / base["noise_norm2"]
    size = rows["weight_norm2"] / base["weight_norm2"]
    scaled = rows[_SECOND].div(noise, axis=0) / base[_SECOND[0]]
    style.band(axes, rows["step"], scaled, _SECOND, color=GREEN, label="½ Δ·H·Δ / |Δ|²")
    axes.plot(rows["step"], noise, color="black", label="noise |Δ|²")
    axes.plot(rows["step"], noise / size, color=GREY, lw=0.9, ls=DASHED,
              label="relative noise |Δ|²/|w|²")  # fmt: skip
    axes.axhline(1, color=GREY, lw=0.4, zorder=0)
    axes.set_ylabel("relative to the best FP32 step")
    axes.set_ylim(bottom=0)


def _draw_controls(axes: Axes, whole: pd.DataFrame, rounding: pd.DataFrame, name: str) -> None:
    style.band(axes, rounding["step"], rounding, _SECOND, color=RED, label=f"{name} rounding")
    for kind, (color, dashes, label) in CONTROLS.items():
        rows = whole[whole["perturbation"].str.startswith(kind)]
        if len(rows):
            mean = rows.groupby("step", as_index=False)[_SECOND].mean()
            style.band(axes, mean["step"], mean, _SECOND, color=color, lw=0.9, ls=dashes,
                       label=label)  # fmt: skip
    axes.set_ylabel("½ Δ·H·Δ (nats/token)")


if __name__ == "__main__":
    style.run(draw, snakemake)
