"""Train one fork of a suite and write the checkpoints that are measured later."""

from collections.abc import Mapping
from pathlib import Path

from flatminima.conditions import Condition
from flatminima.device import take_device
from flatminima.errors import UserError
from flatminima.files import describe_run, file_sha256
from flatminima.jobs import run
from flatminima.model import load_model
from flatminima.text.tokens import check_ids, read_tokens
from flatminima.training.gradients import set_attention
from flatminima.training.loop import fork_recipe, train_job


def input_hashes(inputs: Mapping[str, str | list[str]]) -> dict[str, str]:
    """sha256 of each input file by file name, without folders."""
    hashes = {}
    for paths in inputs.values():
        listed_paths = [paths] if isinstance(paths, str) else paths
        for path in listed_paths:
            if Path(path).is_file():
                hashes[Path(path).name] = file_sha256(path)
    return hashes


def main(
    inputs: dict,
    checkpoints: str,
    losses: str,
    provenance: str,
    seed: int,
    settings: dict,
    source: str,
    device: str,
    key: str,
    threads: int,
    workspace: str,
    save_every: int,
    code: str,
) -> None:
    """Write ``checkpoints``/step{step}, the loss of each update, and what decided them.

    ``source`` is the folder of the checkpoint that the fork starts from. ``inputs`` has the files
    of this checkpoint or their provenance, the training tokens (``train``), and a training state
    (``state``) if Adam's moments are restored. ``settings`` are those of a ``Condition``, and
    ``key`` is its key in the configuration. ``seed`` decides the data order only.
    """
    # Before the record of the run: this sets the number of threads and the numeric mode.
    device = take_device(device, threads)
    condition = Condition(**settings)
    recipe = fork_recipe(condition, seed)
    hashes = input_hashes(inputs)
    made_by = {
        **describe_run(device=device, threads=threads),
        **settings,
        "seed": seed,
        "inputs": hashes,
        "code": code,
    }
    model = load_model(source, device)
    tokens = read_tokens(inputs["train"])
    length = condition.fork.get("length", tokens.shape[1])
    # A fork may train on shorter sequences. Each stored sequence is then cut into equal pieces, so
    # that all tokens of the text are used.
    if tokens.shape[1] % length:
        raise UserError(
            f"fork length: {length} does not divide the {tokens.shape[1]} tokens of a training "
            "sequence (batches.train.length)"
        )
    tokens = tokens.reshape(-1, length)
    check_ids(tokens, model.config.vocab_size, whose="the vocabulary")
    set_attention(model, recipe.compute.attention)
    train_job(
        model,
        tokens,
        condition.schedule,
        recipe,
        start=condition.start,
        stop=condition.stop,
        initial_state=inputs.get("state"),
        key=key,
        checkpoints={step: f"{checkpoints}/step{step}" for step in condition.saved_steps},
        workspace=workspace,
        save_every=save_every,
        made_by=made_by,
        losses=losses,
        provenance=provenance,
    )


if __name__ == "__main__":
    run(main, snakemake)
