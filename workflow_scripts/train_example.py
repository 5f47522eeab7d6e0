"""Train a small model with the transformers Trainer, watched by the convergence monitor."""

import tempfile
from pathlib import Path

import torch

from flatminima.example_run import ExampleSettings, move_whole, train
from flatminima.jobs import logged


def main(*, run: str, validation: str, record: str, settings: dict) -> None:
    """Leave the run's checkpoints in the folder ``run``, whole or not at all."""
    torch.set_num_threads(1)  # results do not depend on --cores
    with tempfile.TemporaryDirectory(dir=Path(run).parent) as folder:
        train(ExampleSettings(**settings), Path(folder) / "run", Path(validation), Path(record))
        move_whole(Path(folder) / "run", Path(run))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            run=snakemake.output.run,
            validation=snakemake.output.validation,
            record=snakemake.output.record,
            settings=snakemake.params.settings,
        )
