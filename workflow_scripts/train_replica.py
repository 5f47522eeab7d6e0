"""Train one small run of another width or seed and probe it on the way."""

import pandas as pd

from flatminima.files import write_table
from flatminima.intervals import summarise
from flatminima.jobs import progress, run
from flatminima.model import build_model
from flatminima.schedules import read_schedule
from flatminima.scoring import Prober
from flatminima.suite import even_steps
from flatminima.text.tokens import read_tokens
from flatminima.training.loop import build_optimizer, read_recipe
from flatminima.training.loop import train as updates_of


def main(*, suite: str, width: int, seed: int, train: str, validation: str, settings: dict,
         probe: dict, threads: int, table: str, sequences: str) -> None:  # fmt: skip
    """Write a row per probe and quantizer, and the scores of each sequence.

    ``seed`` decides initialisation and data order.
    """
    prober = Prober(validation, probe, threads)
    prober.tokens = prober.tokens[: probe["sequences"]]
    tokens, last = read_tokens(train)[: settings["train_sequences"]], settings["last"]
    model = build_model(settings["architecture"], settings["vocab_size"], seed)
    optimizer = build_optimizer(model, recipe := read_recipe(settings["training"]))
    schedule = read_schedule(settings["training"], last)
    due = set(even_steps(spacing=settings["spacing"], last=last))
    updates = updates_of(model, optimizer, tokens, schedule, recipe, start=0, stop=last, seed=seed)
    scores = pd.concat(
        [
            prober(model, update.step)
            for update in progress(updates, f"run, {last} steps", total=last)
            if update.step in due
        ],
        ignore_index=True,
    )
    found = summarise(scores, ["step"], resamples=probe["resamples"], seed=0)
    for place, (name, value) in enumerate({"suite": suite, "width": width, "seed": seed}.items()):
        found.insert(place, name, value)
    write_table(table, found)
    write_table(sequences, scores)


if __name__ == "__main__":
    run(main, snakemake)
