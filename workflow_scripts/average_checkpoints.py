"""Average checkpoints of a suite's own run and probe the result (section 6)."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from flatminima.errors import UserError
from flatminima.files import write_json, write_table
from flatminima.intervals import summarise
from flatminima.jobs import run
from flatminima.model import load_model
from flatminima.schedules import read_kind
from flatminima.scoring import Prober


def average_model(folders: Sequence[str], weights: Sequence[float], device: str) -> nn.Module:
    """The last checkpoint's model with the weighted mean of all of them, summed in float64.

    One checkpoint is in memory at a time, and the sums. Raises ``UserError`` where a checkpoint
    has other parameters than the first.
    """
    sums: dict[str, Tensor] = {}
    model = parameters = None
    for folder, weight in zip(folders, weights, strict=True):
        model = parameters = None  # freed before the next checkpoint is loaded
        model = load_model(folder)
        parameters = model.state_dict()
        if not sums:
            sums = {
                name: torch.zeros_like(parameter, dtype=torch.float64)
                for name, parameter in parameters.items()
            }
        shapes = {name: parameter.shape for name, parameter in parameters.items()}
        if shapes != {name: total.shape for name, total in sums.items()}:
            raise UserError(f"{folder}: its parameters are not those of {folders[0]}")
        for name, parameter in parameters.items():
            sums[name].add_(parameter.double(), alpha=weight)
    model.load_state_dict(sums)
    return model.to(device)


def main(suite: str, average: str, definition: dict, folders: list[str], steps: list[int],
         validation: str, probe: dict, resamples: int, threads: int, code: str, table: str,
         sequences: str, provenance: str) -> None:  # fmt: skip
    """Write a row per quantizer, the scores of each sequence, and what made them.

    ``folders`` are checkpoints of ``steps``, in order; the rows carry the last step.
    """
    prober = Prober(validation, probe, threads)
    weights = read_kind(definition).weights(len(folders))
    scores = prober(average_model(folders, weights, prober.device), steps[-1])
    write_table(sequences, scores)
    rows = summarise(scores, ["step"], resamples=resamples, seed=0)
    first = pd.DataFrame({"suite": suite, "schedule": average, "seed": pd.NA}, index=rows.index)
    write_table(table, pd.concat([first, rows], axis=1))
    averaged = {"definition": definition, "steps": steps, "weights": weights, "code": code}
    write_json(provenance, {**prober.made_by, **averaged})


if __name__ == "__main__":
    run(main, snakemake)
