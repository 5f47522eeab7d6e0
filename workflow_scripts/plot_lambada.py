"""Draw figure 4: LAMBADA perplexities that the Pythia authors published."""

import pandas as pd
from matplotlib.figure import Figure

from flatminima import style
from flatminima.jobs import run
from flatminima.style import DASHED, DOTTED, GREY, LOOKS, ORANGE, Look

PAPER_MODEL = "pythia-160m"
PAPER_STEPS = {"the paper's best FP32 (160m)": (77_000, "right"),  # section 4.2
               "its onset": (82_000, "left")}  # section 4.3  # fmt: skip
FIRST_SHOWN = 3_000  # before it every model falls from about 3.6 million
_LOOKS = {
    PAPER_MODEL: LOOKS["low_bit"],
    "pythia-70m": Look(GREY, DOTTED, "^"),
    "pythia-160m-deduped": Look(ORANGE, DASHED, "s"),
    "pythia-410m": Look(GREY, DASHED, "v"),
    "pythia-1.4b": Look(GREY, "-", "D"),
}


def main(lambada: str, outputs: list) -> None:
    """Write ``outputs`` (pdf, svg, png) from resources/paper/pythia_lambada.csv."""
    style.save(draw(pd.read_csv(lambada)), outputs)


@style.style()
def draw(lambada: pd.DataFrame) -> Figure:
    """LAMBADA perplexity over training steps, the lowest of each model marked.

    ``lambada`` has the columns model, step, lambada_openai_ppl: zero-shot results that
    the authors of Pythia published. Nothing of it was measured here. Thin lines stand at
    the steps at which the paper sees its own best FP32 perplexity and its onset.
    """
    figure = Figure(figsize=(style.PAGE_IN, 3.6))
    axes = figure.add_axes((0.085, 0.115, 0.725, 0.75))
    axes.set_xlim(0, lambada["step"].max())
    beside = {"textcoords": "offset points", "annotation_clip": False}
    for name, (step, side) in PAPER_STEPS.items():
        axes.axvline(step, color="black", lw=0.6, ls=DOTTED, zorder=1)
        axes.annotate(f"{name}: step {step:,}", (step, 1), (0, 3), ha=side,
                      xycoords=axes.get_xaxis_transform(), **beside)  # fmt: skip
    ends = []
    for model, part in lambada[lambada["step"] >= FIRST_SHOWN].groupby("model"):
        look, own, ppl = _LOOKS[model], model == PAPER_MODEL, part["lambada_openai_ppl"]
        axes.plot(part["step"], ppl, color=look.color, ls=look.linestyle, lw=1.8 if own else 0.9,
                  zorder=3 if own else 2)  # fmt: skip
        best = part.loc[ppl.idxmin(), "step"]
        axes.plot(best, ppl.min(), marker=look.marker, ms=5, ls="", mec=look.color, mfc="white",
                  mew=1, zorder=4, clip_on=False)  # fmt: skip
        name = f"{model.removeprefix('pythia-')}\nbest {ppl.min():.1f} at {best:,}"
        ends.append((name, ppl.iloc[-1], look.color))
    style.log_axis(axes.yaxis)
    style.end_labels(axes, ends)
    axes.set_ylabel("LAMBADA perplexity (log scale)")
    style.step_axis(axes)
    start = lambada.loc[lambada["step"] == 0, "lambada_openai_ppl"] / 1e6
    axes.annotate(
        f"off the axis before step {FIRST_SHOWN:,}:\n"
        f"{start.min():.1f} to {start.max():.1f} million at step 0",
        (0, 0), (4, 4), xycoords="axes fraction", color=GREY, **beside,
    )  # fmt: skip
    title = "Pythia on LAMBADA (zero-shot), published by its authors, not measured by this workflow"
    style.put_title(figure, title, x=0.085, y=0.98)
    return figure


if __name__ == "__main__":
    run(main, snakemake)
