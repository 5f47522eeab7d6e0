"""The search behind the embedded suite: full-precision curves, scored by one criterion."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from flatminima.jobs import progress
from flatminima.model import build_model
from flatminima.quantizer_specs import FP32
from flatminima.scoring import ModelForward, score
from flatminima.suite import even_steps
from flatminima.training.loop import build_optimizer, train
from flatminima.training.pretraining import read_recipe, read_schedule

# Where Pythia-160m's perplexity is best, and how far above that it ends (section 4.2).
PAPER_BEST_FRACTION = 77_000 / 143_000
PAPER_RISE_NATS = math.log(35.30 / 33.38)


def perplexity_curve(
    tokens: np.ndarray, validation: np.ndarray, settings: Mapping, candidate: Mapping
) -> pd.DataFrame:
    """FP32 NLL of one candidate at every evenly spaced step: step, nll_nats_per_token.

    ``tokens`` and ``validation`` are ``[sequences, length]``; ``settings`` has the suite's
    ``architecture``, ``vocab_size``, ``training`` and ``grid``; ``candidate`` has
    ``tokens``, ``lr`` and ``decay``.
    """
    grid, changed = settings["grid"], settings["training"]
    lr_ratio = changed["lr_min"] / changed["lr_max"]
    training = {**changed, "lr_max": candidate["lr"], "lr_min": candidate["lr"] * lr_ratio}
    recipe = read_recipe({**training, "weight_decay": candidate["decay"]})
    model = build_model(settings["architecture"], settings["vocab_size"], training["seed"])
    updates = train(
        model,
        build_optimizer(model, recipe),
        tokens[: candidate["tokens"] // tokens.shape[1]],
        read_schedule(training, grid["last"]),
        recipe,
        start=0,
        stop=grid["last"],
        seed=training["seed"],
    )
    probed = set(even_steps(spacing=grid["spacing"], last=grid["last"]))
    rows = [
        {
            "step": update.step,
            "nll_nats_per_token": score(
                validation, {FP32: ModelForward(model)}, batch_size=recipe.batch_size
            )[FP32].mean_nll(),
        }
        for update in progress(updates, "candidate", total=grid["last"])
        if update.step in probed
    ]
    return pd.DataFrame(rows)


def criterion(curve: pd.DataFrame) -> dict:
    """How far a curve is from the shape of Pythia-160m's: smaller ``score`` is nearer.

    | best_step / last_step - 77/143 | + | ln(final_ppl / best_ppl) - ln(35.30 / 33.38) |.
    """
    nll = curve["nll_nats_per_token"]
    best = curve.loc[nll.idxmin()]
    rise = nll.iloc[-1] - nll.min()
    place = best["step"] / curve["step"].max()
    return {
        "best_step": int(best["step"]),
        "best_ppl": math.exp(nll.min()),
        "final_ppl": math.exp(nll.iloc[-1]),
        "rise_nats": rise,
        "score": abs(place - PAPER_BEST_FRACTION) + abs(rise - PAPER_RISE_NATS),
    }
