"""Train one small run of another width, seed or weight decay and write its checkpoints."""

from flatminima.files import describe_run, file_sha256
from flatminima.jobs import run
from flatminima.model import build_model, take_device
from flatminima.schedules import read_schedule
from flatminima.text.tokens import read_tokens
from flatminima.training.loop import read_recipe, train_job


def main(train: str, checkpoints: str, losses: str, provenance: str, settings: dict,
         threads: int, workspace: str, save_every: int, code: str) -> None:  # fmt: skip
    """Write ``checkpoints``/step{step}, the loss of each update, and what made them.

    ``settings`` has architecture, vocab_size, training (its ``seed`` decides initialisation and
    data order), steps (of the checkpoints) and train_sequences (``None``: all).
    """
    take_device("cpu", threads)
    training, last = settings["training"], settings["steps"][-1]
    made_by = {**describe_run(threads=threads), **settings,
               "train_sha256": file_sha256(train), "code": code}  # fmt: skip
    train_job(
        build_model(settings["architecture"], settings["vocab_size"], training["seed"]),
        read_tokens(train)[: settings["train_sequences"]],
        read_schedule(training, last),
        read_recipe(training),
        start=0,
        stop=last,
        checkpoints={step: f"{checkpoints}/step{step}" for step in settings["steps"]},
        workspace=workspace,
        save_every=save_every,
        made_by=made_by,
        losses=losses,
        provenance=provenance,
    )


if __name__ == "__main__":
    run(main, snakemake)
