"""Draw figure 4: LAMBADA perplexities that the Pythia authors published."""

import pandas as pd
from matplotlib.figure import Figure

from flatminima import style
from flatminima.paper import PAPER_BEST_STEP, PAPER_MODEL, PAPER_ONSET_STEP
from flatminima.style import DASHED, DOTTED, GREY, LOOKS, ORANGE, Look

# Steps of the paper (sections 4.2 and 4.3) and their line styles.
PAPER_STEPS = {
    "the paper's FP32 minimum (160m)": (PAPER_BEST_STEP, DOTTED),
    "its onset": (PAPER_ONSET_STEP, DASHED),
}
FIRST_SHOWN = 3_000  # before this step every model falls from about 3.6 million
_LOOKS = {
    PAPER_MODEL.lower(): LOOKS["low_bit"],
    "pythia-70m": Look(GREY, DOTTED, "^"),
    "pythia-160m-deduped": Look(ORANGE, DASHED, "s"),
    "pythia-410m": Look(GREY, DASHED, "v"),
    "pythia-1.4b": Look(GREY, "-", "D"),
}


def draw(lambada: pd.DataFrame) -> Figure:
    """LAMBADA perplexity over training steps, with the lowest value of each model marked.

    These are zero-shot results that the authors of Pythia published. Nothing was measured here.
    Thin vertical lines mark the paper's own FP32 minimum and onset.
    """
    source = "published by its authors, not measured by this workflow"
    figure = style.page(f"Pythia on LAMBADA (zero-shot), {source}", 3.6)
    axes = figure.subplots()
    late = lambada[lambada["step"] >= FIRST_SHOWN]
    curves = {
        model: rows.set_index("step")["lambada_openai_ppl"] for model, rows in late.groupby("model")
    }
    # The legend lists the models in the order of their curves at the end, from above.
    for model, curve in sorted(curves.items(), key=lambda item: -item[1].iloc[-1]):
        look = _LOOKS[model]
        is_papers = model == PAPER_MODEL.lower()
        axes.plot(
            curve,
            color=look.color,
            ls=look.linestyle,
            marker=look.marker,
            markevery=[curve.argmin()],
            ms=5,
            mfc="white",
            clip_on=False,
            lw=1.8 if is_papers else 0.9,
            zorder=3 if is_papers else 2,
            label=f"{model}: best {curve.min():.1f} at {curve.idxmin():,}",
        )
    for label, (step, linestyle) in PAPER_STEPS.items():
        axes.axvline(step, color="black", lw=0.6, ls=linestyle, label=f"{label}: step {step:,}")
    style.log_axis(axes.yaxis)
    style.step_axis(axes, lambada["step"].max(), ticks=6)
    start = lambada.loc[lambada["step"] == 0, "lambada_openai_ppl"] / 1e6
    axes.set_ylabel(
        f"LAMBADA perplexity (log scale)\nat step 0: {start.min():.1f} to {start.max():.1f} million"
    )
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


if __name__ == "__main__":
    style.run(draw, snakemake)
