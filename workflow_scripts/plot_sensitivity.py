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


def draw(sensitivity: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Prediction against measurement, the two factors' growth, and the control noises.

    Bands are 95 % intervals over batches.
    """
    name = style.role_labels(audit, suite)["low_bit"]
    whole = sensitivity[sensitivity["tensor"] == "all"].sort_values("step")
    rounding = whole[whole["perturbation"] == "low_bit"]
    figure, (cost, factors, control) = style.row_of_panels(
        f"{suite['label']}: noise × sensitivity against the loss that {name} adds",
        ["second order = measured?", "which factor grows?", "does the position matter?"],
        height=3.2,
    )
    for columns, color, dashes, label in (
        (_MEASURED, RED, "-", "measured"),
        (_PREDICTED, "black", DASHED, "g·Δ + ½ Δ·H·Δ"),
        (_SECOND, GREEN, DOTTED, "½ Δ·H·Δ alone"),
    ):
        style.band(cost, rounding["step"], rounding, columns, color=color, ls=dashes, label=label)
    cost.set_ylabel(f"loss added by {name} (nats/token)")
    _draw_growth(factors, rounding, phases)
    style.band(control, rounding["step"], rounding, _SECOND, color=RED, label=f"{name} rounding")
    for kind, (color, dashes, label) in CONTROLS.items():
        rows = whole[whole["perturbation"].str.startswith(kind)]
        mean = rows.groupby("step", as_index=False)[_SECOND].mean()
        style.band(control, mean["step"], mean, _SECOND, color=color, lw=0.9, ls=dashes,
                   label=label)  # fmt: skip
    control.set_ylabel("½ Δ·H·Δ (nats/token)")
    style.along_the_run(figure.axes, whole["step"].max(), phases)
    style.legends(figure.axes)
    return figure


def _draw_growth(axes: Axes, rows: pd.DataFrame, phases: dict) -> None:
    axes.set(ylabel="relative to the best FP32 step")
    learned = phases["rapid_learning_end"]["step"]
    rows = rows[rows["step"] >= learned]
    if rows.empty:
        axes.annotate(f"no checkpoint measured\nfrom step {learned:,} on", (0.5, 0.5),
                      xycoords="axes fraction", ha="center", color=GREY)  # fmt: skip
        return
    base = rows[rows["step"] == near(rows["step"], phases["convergence"]["step"])].iloc[0]
    noise, size = (rows[c] / base[c] for c in ("noise_norm2", "weight_norm2"))
    scaled = rows[_SECOND].div(noise, axis=0) / base[_SECOND[0]]
    style.band(axes, rows["step"], scaled, _SECOND, color=GREEN, label="½ Δ·H·Δ / |Δ|²")
    axes.plot(rows["step"], noise, color="black", label="noise |Δ|²")
    axes.plot(rows["step"], noise / size, color=GREY, lw=0.9, ls=DASHED,
              label="relative noise |Δ|²/|w|²")  # fmt: skip
    axes.axhline(1, color=GREY, lw=0.4, zorder=0)
    axes.set(ylim=(0, None))


if __name__ == "__main__":
    style.run(draw, snakemake)
