"""Figure 4: LAMBADA perplexity of Pythia models, as published by their authors."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.figures import plotting
from flatminima.figures.placement import end_labels
from flatminima.figures.plotting import GREY, LOOKS, PAGE_IN, Look

PAPER_MODEL = "pythia-160m"
PAPER_STEPS = {"best": 77_000, "onset": 82_000}  # sections 4.2 and 4.3
FIRST_SHOWN = 3_000  # before it every model falls from about 3.6 million
_LOOKS = {
    PAPER_MODEL: LOOKS["low_bit"],
    "pythia-70m": Look(GREY, (0, (1.2, 1)), "^"),
    "pythia-160m-deduped": Look(LOOKS["sgdr"].color, (0, (4, 1.5)), "s"),
    "pythia-410m": Look(GREY, (0, (4, 1.5)), "v"),
    "pythia-1.4b": Look(GREY, "-", "D"),
}
_ANOTHER = Look(GREY, (0, (5, 1, 1, 1)), "P")


def draw(lambada: pd.DataFrame) -> Figure:
    """LAMBADA perplexity over training steps, the lowest of each model marked.

    ``lambada`` has the columns model, step, lambada_openai_ppl: zero-shot results that
    the authors of Pythia published. Nothing of it was measured here. Thin lines stand at
    the steps at which the paper sees its own best FP32 perplexity and its onset.
    """
    shown = lambada[lambada["step"] >= FIRST_SHOWN]
    with plotting.style():
        figure = Figure(figsize=(PAGE_IN, 3.6))
        axes = figure.add_axes((0.075, 0.115, 0.755, 0.75))
        axes.set_xlim(0, lambada["step"].max())
        _draw_paper_steps(axes)
        ends = []
        for model, part in shown.groupby("model"):
            look, own = _LOOKS.get(model, _ANOTHER), model == PAPER_MODEL
            axes.plot(
                part["step"], part["lambada_openai_ppl"], color=look.color, ls=look.linestyle,
                lw=1.8 if own else 0.9, zorder=3 if own else 2,
            )  # fmt: skip
            best = part.loc[part["lambada_openai_ppl"].idxmin()]
            step, ppl = best["step"], best["lambada_openai_ppl"]
            axes.plot(
                step, ppl, marker=look.marker, ms=5, ls="", mec=look.color, mfc="white", mew=1,
                zorder=4, clip_on=False,
            )  # fmt: skip
            name = f"{model.removeprefix('pythia-')}\nbest {ppl:.1f} at {step:,}"
            ends.append((name, part["lambada_openai_ppl"].iloc[-1], look.color))
        plotting.log_axis(axes.yaxis)
        end_labels(axes, ends)
        axes.set_ylabel("LAMBADA perplexity (log scale)")
        plotting.step_axis(axes)
        start = lambada.loc[lambada["step"] == 0, "lambada_openai_ppl"]
        if len(start):
            axes.annotate(
                f"off the axis before step {FIRST_SHOWN:,}:\n{_millions(start)} at step 0",
                (0, 0), (4, 4), xycoords="axes fraction", textcoords="offset points", color=GREY,
            )  # fmt: skip
        plotting.put_title(
            figure,
            "Pythia on LAMBADA: published by the Pythia authors (zero-shot), "
            "not measured by this workflow",
            x=0.075, y=0.98,
        )  # fmt: skip
    return figure


def _millions(values: pd.Series) -> str:
    """The range of values in millions; one number where it is narrower than a digit."""
    low, high = (f"{value / 1e6:.1f}" for value in (values.min(), values.max()))
    return f"{low} million" if low == high else f"{low} to {high} million"


def _draw_paper_steps(axes: Axes) -> None:
    words = {"best": ("right", "the paper's best FP32 perplexity (160m): step"),
             "onset": ("left", "its onset: step")}  # fmt: skip
    for key, step in PAPER_STEPS.items():
        side, name = words[key]
        axes.axvline(step, color="black", lw=0.6, ls=(0, (1, 2)), zorder=1)
        axes.annotate(
            f"{name} {step:,}", (step, 1), (0, 3), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", ha=side, va="bottom", annotation_clip=False,
        )  # fmt: skip
