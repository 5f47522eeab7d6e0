"""What all measurements share: visits of checkpoints, their weight matrices, mean intervals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pandas as pd
from torch import Tensor, nn

from flatminima.absent_steps import leaving_out_diverged
from flatminima.device import take_device
from flatminima.errors import UserError
from flatminima.files import write_rows
from flatminima.intervals import percentile_interval
from flatminima.jobs import progress
from flatminima.layers import linear_layers
from flatminima.model import load_model
from flatminima.text.tokens import read_tokens

Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Visit:
    """One checkpoint of a job: its step, its model on ``device``, and the tokens it is scored on.

    ``tokens`` is ``[sequences, length]``; ``resamples`` is of bootstraps over sequences.
    """

    step: int
    model: nn.Module
    tokens: np.ndarray
    batch_size: int
    resamples: int
    device: str = "cpu"


def measure_each(
    measure: Callable[[Visit], Measured],
    folders: Mapping[int, str],
    validation: str,
    settings: Mapping,
    threads: int,
) -> list[Measured]:
    """Call ``measure`` for each checkpoint of a job; one model is in memory at a time.

    ``folders`` maps steps to checkpoint folders. ``settings`` has ``device``, ``batch_size``,
    ``resamples`` and ``sequences``, the number of validation sequences that are used. A
    checkpoint that has diverged is left out, with a warning. Raises ``UserError`` for a model
    whose linear weights are not ``[out, in]`` matrices.
    """
    device = take_device(settings["device"], threads)
    tokens = read_tokens(validation)[: settings["sequences"]]

    def measure_checkpoint(step: int, folder: str) -> Measured:
        # The model is local to this function, so that it is freed before the next one is loaded.
        model = load_model(folder, device)
        for name, layer in linear_layers(model).items():
            if layer.weight.ndim != 2 or layer.input_axis % 2 != 1:
                raise UserError(
                    f"step {step}: {name} is not an [out, in] matrix; the measurements under "
                    "mechanism need nn.Linear layers"
                )
        visit = Visit(
            step, model, tokens, settings["batch_size"], settings["resamples"], device=device
        )
        return measure(visit)

    measurements = []
    for step, folder in progress(folders.items(), "checkpoints", total=len(folders)):
        with leaving_out_diverged(step):
            measurements.append(measure_checkpoint(step, folder))
    return measurements


def at_each_checkpoint(measure: Callable[[Visit, Mapping], pd.DataFrame]) -> Callable[..., None]:
    """The ``main`` of a script that writes ``measure(visit, settings)`` of each step.

    A checkpoint that has diverged is named and left out.
    """

    def main(*, folders: dict, validation: str, settings: dict, threads: int, table: str) -> None:
        measure_with_settings = partial(measure, settings=settings)
        tables = measure_each(measure_with_settings, folders, validation, settings, threads)
        write_rows(tables, table)

    return main


def mean_interval(
    measurements: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """95 % percentile interval of the mean of independent ``measurements``, ``[units]``."""
    drawn = rng.integers(0, len(measurements), (resamples, len(measurements)))
    return percentile_interval(measurements[drawn].mean(axis=1))


def matrices(model: nn.Module) -> dict[str, Tensor]:
    """Every weight matrix of a model by parameter name: blocks, input embedding, output head.

    A head that shares its weight with the input embedding appears once, as the embedding.
    """
    return {name: p.detach() for name, p in model.named_parameters() if p.ndim == 2}


def embedding_names(model: nn.Module) -> dict[str, str]:
    """Parameter names of ``embed_in`` and of ``head``, if it has a weight of its own."""
    name_by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    modules = {"embed_in": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    names = {}
    for kind, module in modules.items():
        name = None if module is None else name_by_id.get(id(module.weight))
        if name is not None and name not in names.values():
            names[kind] = name
    return names
