"""Train a suite from one step to another and keep the checkpoints in between."""

import torch

from flatminima.files import describe_run, file_sha256, write_table
from flatminima.jobs import logged
from flatminima.model import prepare_backend
from flatminima.text.tokens import read_tokens
from flatminima.training.pretraining import pretrain
from flatminima.training.workspace import Workspace, fingerprint


def main(*, train: str, initial_state: str | None, checkpoints: dict, final_state: str,
         losses: str, workspace: str, save_every: int, threads: int, settings: dict,
         code: str) -> None:  # fmt: skip
    """Write checkpoints (step to folder), the state at the end, the loss of every update."""
    torch.set_num_threads(threads)
    prepare_backend()
    inputs = [file_sha256(path) for path in (train, initial_state) if path]
    made_by = {**describe_run(threads=threads), **settings, "due": list(checkpoints)}
    identity = fingerprint(**made_by, inputs=inputs, code=code)
    with Workspace(workspace, identity, save_every) as unfinished:
        table = pretrain(
            read_tokens(train),
            checkpoints=checkpoints,
            initial_state=initial_state,
            final_state=final_state,
            workspace=unfinished,
            **settings,
        )
        write_table(losses, table)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            train=snakemake.input.train,
            initial_state=snakemake.input.get("state"),
            final_state=snakemake.output.state,
            losses=snakemake.output.losses,
            threads=snakemake.threads,
            save_every=snakemake.resources.save_every,
            **snakemake.params,
        )
