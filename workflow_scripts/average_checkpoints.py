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
    """A model with the weighted mean of all checkpoints' parameters, summed in float64.

    Only one checkpoint and the sums are in memory. Raises ``UserError`` if a checkpoint has other
    parameters than the first.
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


def main(
    suite: str,
    average: str,
    definition: dict,
    folders: list[str],
    steps: list[int],
    validation: str,
    probe: dict,
    resamples: int,
    threads: int,
    code: str,
    table: str,
    sequences: str,
    provenance: str,
) -> None:
    """Write one row per quantizer, the scores of each sequence, and what decided them.

    ``folders`` are the checkpoints of ``steps``, in order. The rows have the last step.
    """
    prober = Prober(validation, probe, threads)
    weights = read_kind(definition).weights(len(folders))
    scores = prober(average_model(folders, weights, prober.device), steps[-1])
    write_table(sequences, scores)
    rows = summarise(scores, ["step"], resamples=resamples, seed=0)
    labels = pd.DataFrame({"suite": suite, "schedule": average, "seed": pd.NA}, index=rows.index)
    write_table(table, pd.concat([labels, rows], axis=1))
    average_settings = {"definition": definition, "steps": steps, "weights": weights, "code": code}
    write_json(provenance, {**prober.made_by, **average_settings})


if __name__ == "__main__":
    run(main, snakemake)
