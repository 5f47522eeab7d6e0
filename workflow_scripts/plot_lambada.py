"""Draw figure 4: LAMBADA perplexities that the Pythia authors published."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.jobs import run
from flatminima.style import GREY, LOOKS, Look

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


def main(lambada: str, outputs: list) -> None:
    """Write ``outputs`` (pdf, svg, png) from resources/paper/pythia_lambada.csv."""
    style.save(draw(pd.read_csv(lambada)), outputs)


def draw(lambada: pd.DataFrame) -> Figure:
    """LAMBADA perplexity over training steps, the lowest of each model marked.

    ``lambada`` has the columns model, step, lambada_openai_ppl: zero-shot results that
    the authors of Pythia published. Nothing of it was measured here. Thin lines stand at
    the steps at which the paper sees its own best FP32 perplexity and its onset.
    """
    shown = lambada[lambada["step"] >= FIRST_SHOWN]
    with style.style():
        figure = Figure(figsize=(style.PAGE_IN, 3.6))
        axes = figure.add_axes((0.075, 0.115, 0.735, 0.75))
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
        style.log_axis(axes.yaxis)
        style.end_labels(axes, ends)
        axes.set_ylabel("LAMBADA perplexity (log scale)")
        style.step_axis(axes)
        start = lambada.loc[lambada["step"] == 0, "lambada_openai_ppl"] / 1e6
        if len(start):
            low, high = f"{start.min():.1f}", f"{start.max():.1f}"
            axes.annotate(
                f"off the axis before step {FIRST_SHOWN:,}:\n"
                f"{low if low == high else f'{low} to {high}'} million at step 0",
                (0, 0), (4, 4), xycoords="axes fraction", textcoords="offset points", color=GREY,
            )  # fmt: skip
        style.put_title(
            figure,
            "Pythia on LAMBADA: published by the Pythia authors (zero-shot), "
            "not measured by this workflow",
            x=0.075, y=0.98,
        )  # fmt: skip
    return figure


def _draw_paper_steps(axes: Axes) -> None:
    words = {"best": ("right", "the paper's best FP32 (160m): step"),
             "onset": ("left", "its onset: step")}  # fmt: skip
    for key, step in PAPER_STEPS.items():
        side, name = words[key]
        axes.axvline(step, color="black", lw=0.6, ls=(0, (1, 2)), zorder=1)
        axes.annotate(
            f"{name} {step:,}", (step, 1), (0, 3), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", ha=side, va="bottom", annotation_clip=False,
        )  # fmt: skip


if __name__ == "__main__":
    run(main, snakemake)
