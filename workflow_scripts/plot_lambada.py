"""Draw figure 4: LAMBADA perplexities that the Pythia authors published."""

import pandas as pd
from matplotlib.figure import Figure

from flatminima import style
from flatminima.paper import PAPER_BEST_STEP, PAPER_MODEL, PAPER_ONSET_STEP
from flatminima.style import DASHED, DOTTED, GREY, LOOKS, ORANGE, Look

PAPER_STEPS = {
    "the paper's best FP32 (160m)": (PAPER_BEST_STEP, DOTTED),
    "its onset": (PAPER_ONSET_STEP, DASHED),
}
FIRST_SHOWN = 3_000  # before it every model falls from about 3.6 million
_LOOKS = {
    PAPER_MODEL.lower(): LOOKS["low_bit"],
    "pythia-70m": Look(GREY, DOTTED, "^"),
    "pythia-160m-deduped": Look(ORANGE, DASHED, "s"),
    "pythia-410m": Look(GREY, DASHED, "v"),
    "pythia-1.4b": Look(GREY, "-", "D"),
}


def draw(lambada: pd.DataFrame) -> Figure:
    """LAMBADA perplexity over training steps, the lowest of each model marked.

    Zero-shot results that the authors of Pythia published: nothing of it was measured here. Thin
    lines stand where the paper sees its own best FP32 perplexity and its onset.
    """
    source = "published by its authors, not measured by this workflow"
    figure = style.page(f"Pythia on LAMBADA (zero-shot), {source}", 3.6)
    axes = figure.subplots()
    shown = lambada[lambada["step"] >= FIRST_SHOWN].rename(columns={"lambada_openai_ppl": "ppl"})
    for model, part in sorted(shown.groupby("model"), key=lambda item: -item[1]["ppl"].iloc[-1]):
        look = _LOOKS[model]
        is_paper_model = model == PAPER_MODEL.lower()
        curve = part.set_index("step")["ppl"]
        axes.plot(curve, color=look.color, ls=look.linestyle, marker=look.marker,
                  markevery=[curve.argmin()], ms=5, mfc="white", clip_on=False,
                  lw=1.8 if is_paper_model else 0.9, zorder=3 if is_paper_model else 2,
                  label=f"{model}: best {curve.min():.1f} at {curve.idxmin():,}")  # fmt: skip
    for name, (step, dashes) in PAPER_STEPS.items():
        axes.axvline(step, color="black", lw=0.6, ls=dashes, label=f"{name}: step {step:,}")
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
