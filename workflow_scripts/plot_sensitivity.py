"""Draw figure 9: noise, sensitivity, and their product against the measured loss."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.mechanism.findings import near
from flatminima.style import BLUE, DASHED, DOTTED, GREEN, GREY, RED

# Columns of each term: value, low and high, in nats per token.
_MEASURED = ["measured_nats", "measured_low", "measured_high"]
_PREDICTED = ["predicted_nats", "predicted_low", "predicted_high"]
_SECOND_ORDER = ["second_order_nats", "second_order_low", "second_order_high"]
# Colour, line style and label of each control noise.
CONTROLS = {
    "noise": (BLUE, DASHED, "normal, same norm"),
    "dither": ("black", DOTTED, "uniform in its own cell"),
}


def draw(sensitivity: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Prediction against measurement, the two factors' growth, and the control noises.

    Bands are 95 % intervals over batches.
    """
    low_bit_name = style.role_labels(audit, suite)["low_bit"]
    of_model = sensitivity[sensitivity["tensor"] == "all"].sort_values("step")
    rounding = of_model[of_model["perturbation"] == "low_bit"]
    figure, (cost_axes, factor_axes, control_axes) = style.row_of_panels(
        f"{suite['label']}: noise × sensitivity against the loss that {low_bit_name} adds",
        ["second order = measured?", "which factor grows?", "does the position matter?"],
        height=3.2,
    )
    for columns, color, linestyle, label in (
        (_MEASURED, RED, "-", "measured"),
        (_PREDICTED, "black", DASHED, "g·Δ + ½ Δ·H·Δ"),
        (_SECOND_ORDER, GREEN, DOTTED, "½ Δ·H·Δ alone"),
    ):
        style.band(
            cost_axes, rounding["step"], rounding, columns, color=color, ls=linestyle, label=label
        )
    cost_axes.set_ylabel(f"loss added by {low_bit_name} (nats/token)")
    _draw_growth(factor_axes, rounding, phases)
    _draw_controls(control_axes, of_model, low_bit_name)
    style.along_the_run(figure.axes, of_model["step"].max(), phases)
    style.legends(figure.axes)
    return figure


def _draw_growth(axes: Axes, rounding: pd.DataFrame, phases: dict) -> None:
    """Noise and sensitivity after rapid learning, relative to the step nearest FP32's minimum."""
    axes.set(ylabel="relative to the best FP32 step")
    rapid_learning_end = phases["rapid_learning_end"]["step"]
    rows = rounding[rounding["step"] >= rapid_learning_end]
    if rows.empty:
        axes.annotate(
            f"no checkpoint measured\nfrom step {rapid_learning_end:,} on",
            (0.5, 0.5),
            xycoords="axes fraction",
            ha="center",
            color=GREY,
        )
        return
    reference_step = near(rows["step"], phases["convergence"]["step"])
    reference = rows[rows["step"] == reference_step].iloc[0]
    noise = rows["noise_norm2"] / reference["noise_norm2"]
    weight_size = rows["weight_norm2"] / reference["weight_norm2"]
    # The second-order term is noise times sensitivity. Divided by the noise, the sensitivity is
    # left. Both are relative to the reference step.
    sensitivity = rows[_SECOND_ORDER].div(noise, axis=0) / reference[_SECOND_ORDER[0]]
    style.band(axes, rows["step"], sensitivity, _SECOND_ORDER, color=GREEN, label="½ Δ·H·Δ / |Δ|²")
    axes.plot(rows["step"], noise, color="black", label="noise |Δ|²")
    axes.plot(
        rows["step"],
        noise / weight_size,
        color=GREY,
        lw=0.9,
        ls=DASHED,
        label="relative noise |Δ|²/|w|²",
    )
    axes.axhline(1, color=GREY, lw=0.4, zorder=0)
    axes.set(ylim=(0, None))


def _draw_controls(axes: Axes, of_model: pd.DataFrame, low_bit_name: str) -> None:
    """The second-order loss of rounding and of random noises of the same size."""
    rounding = of_model[of_model["perturbation"] == "low_bit"]
    style.band(
        axes, rounding["step"], rounding, _SECOND_ORDER, color=RED, label=f"{low_bit_name} rounding"
    )
    for kind, (color, linestyle, label) in CONTROLS.items():
        # Each kind was drawn several times.
        draws = of_model[of_model["perturbation"].str.startswith(kind)]
        mean = draws.groupby("step", as_index=False)[_SECOND_ORDER].mean()
        style.band(
            axes,
            mean["step"],
            mean,
            _SECOND_ORDER,
            color=color,
            lw=0.9,
            ls=linestyle,
            label=label,
        )
    axes.set_ylabel("½ Δ·H·Δ (nats/token)")


if __name__ == "__main__":
    style.run(draw, snakemake)
