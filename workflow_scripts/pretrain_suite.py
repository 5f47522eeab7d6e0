"""Train a suite's own run from one step to another, or a small run, and save checkpoints."""

from flatminima.device import take_device
from flatminima.files import describe_run, file_sha256
from flatminima.jobs import run
from flatminima.model import build_model
from flatminima.schedules import read_schedule
from flatminima.text.tokens import check_ids, read_tokens
from flatminima.training.loop import read_recipe, train_job


def main(
    train: str,
    folders: dict,
    losses: str,
    workspace: str,
    save_every: int,
    threads: int,
    settings: dict,
    code: str,
    initial_state: str | None = None,
    final_state: str | None = None,
    provenance: str | None = None,
) -> None:
    """Write checkpoints into ``folders`` by step, the loss of each update, and the settings.

    ``settings`` has architecture, vocab_size and training, whose seed decides initialisation
    and data order. For a suite's own run it also has total_steps, start and stop. For a small run
    it has train_sequences (``None``: all). A run that starts at 0 initialises the model. A run
    that starts later continues from ``initial_state``.
    """
    take_device("cpu", threads)
    inputs = [file_sha256(path) for path in (train, initial_state) if path]
    made_by = {
        **describe_run(threads=threads),
        **settings,
        "due": list(folders),
        "inputs": inputs,
        "code": code,
    }
    tokens = read_tokens(train)
    training = settings["training"]
    vocabulary = settings["vocab_size"]
    stop = settings.get("stop", max(folders))
    check_ids(tokens, vocabulary, whose="config key tokenizer.vocab_size: the vocabulary")
    train_job(
        build_model(settings["architecture"], vocabulary, training["seed"]),
        tokens[: settings.get("train_sequences")],
        read_schedule(training, settings.get("total_steps", stop)),
        read_recipe(training),
        start=settings.get("start", 0),
        stop=stop,
        checkpoints=folders,
        initial_state=initial_state,
        final_state=final_state,
        workspace=workspace,
        save_every=save_every,
        made_by=made_by,
        losses=losses,
        provenance=provenance,
    )


if __name__ == "__main__":
    run(main, snakemake)
