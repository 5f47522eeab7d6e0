"""Train a suite from one step to another and keep the checkpoints in between."""

from flatminima.files import describe_run, file_sha256
from flatminima.jobs import run
from flatminima.model import build_model, take_device
from flatminima.schedules import read_schedule
from flatminima.text.tokens import check_ids, read_tokens
from flatminima.training.loop import read_recipe, train_job


def main(train: str, checkpoints: dict, final_state: str, losses: str, workspace: str,
         save_every: int, threads: int, settings: dict, code: str,
         initial_state: str | None = None) -> None:  # fmt: skip
    """Write checkpoints (step to folder), the state at the end, the loss of every update.

    ``settings`` has architecture, vocab_size, training, total_steps, start and stop. A run
    that begins at 0 initialises the model, a later one takes ``initial_state``.
    """
    take_device("cpu", threads)
    inputs = [file_sha256(path) for path in (train, initial_state) if path]
    made_by = {**describe_run(threads=threads), **settings, "due": list(checkpoints),
               "inputs": inputs, "code": code}  # fmt: skip
    tokens, training = read_tokens(train), settings["training"]
    vocabulary = settings["vocab_size"]
    check_ids(tokens, vocabulary, whose="config key tokenizer.vocab_size: the vocabulary")
    train_job(
        build_model(settings["architecture"], vocabulary, training["seed"]),
        tokens,
        read_schedule(training, settings["total_steps"]),
        read_recipe(training),
        start=settings["start"],
        stop=settings["stop"],
        checkpoints=checkpoints,
        initial_state=initial_state,
        final_state=final_state,
        workspace=workspace,
        save_every=save_every,
        made_by=made_by,
        losses=losses,
    )


if __name__ == "__main__":
    run(main, snakemake)
