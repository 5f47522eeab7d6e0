"""Train one candidate for the embedded suite and record its FP32 perplexity only."""

from pathlib import Path

import pandas as pd
import torch

from workflow_scripts.lib import schedules, training
from workflow_scripts.lib.evaluation import score
from workflow_scripts.lib.numerics import prepare_backend
from workflow_scripts.lib.roles import FP32
from workflow_scripts.lib.suite import even_steps
from workflow_scripts.lib.tokens import read_tokens


def main(
    train: str, validation: str, output: str, *, suite: dict, candidate: dict, seed: int
) -> None:
    """Write ``step, ppl`` of one candidate at the evenly spaced steps of ``suite``."""
    torch.set_num_threads(1)
    prepare_backend()
    settings = {**suite["training"], **candidate}
    grid = suite["grid"]
    sequences = settings["train_tokens"] // suite["architecture"]["max_length"]
    tokens, held_out = read_tokens(train)[:sequences], read_tokens(validation)
    recipe = training.Recipe(**{k: settings[k] for k in training.Recipe.__annotations__})
    model = training.build_model(suite["architecture"], suite["vocab_size"], seed)
    schedule = schedules.pretraining_schedule(
        settings["schedule"],
        lr_max=settings["lr_max"],
        lr_min=settings["lr_max"] * settings["lr_min_fraction"],
        warmup_steps=settings["warmup_steps"],
        total_steps=grid["last"],
    )
    probed = set(even_steps(spacing=grid["spacing"], last=grid["last"]))
    rows = []
    updates = training.train(
        model, training.build_optimizer(model, recipe), tokens, schedule, recipe,
        start=0, stop=grid["last"], seed=seed,
    )  # fmt: skip
    for update in updates:
        if update.step in probed:
            nll = score(model, held_out, {}, batch_size=16)[FP32].mean_nll()
            rows.append({"step": update.step, "nll_nats_per_token": nll, "loss": update.loss_nats})
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(output, index=False)
