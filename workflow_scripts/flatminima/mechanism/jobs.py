"""What every job of this package does around its measurement."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from flatminima.jobs import progress
from flatminima.layers import linear_layers
from flatminima.model import assert_float32, choose_device, load_model, prepare_backend
from flatminima.quantizer_specs import AnyQuantizer, read_specs
from flatminima.quantizers import linear_weights
from flatminima.text.tokens import read_tokens


@dataclass(frozen=True)
class Visit:
    """One checkpoint of a job: its step, its model on ``device``, and the tokens it is scored on.

    ``tokens`` is ``[sequences, length]``.
    """

    step: int
    model: nn.Module
    tokens: np.ndarray
    device: str

    def weights(self, layers: str) -> dict[str, Tensor]:
        """Weights that a probe of these layers quantizes, by parameter name."""
        return {n: w.detach() for n, w in linear_weights(self.model, layers).items()}


def check_orientation(model: nn.Module) -> None:
    """Raise ``ValueError`` for a model whose linear weights are not ``[out, in]`` matrices."""
    for name, layer in linear_layers(model).items():
        if layer.weight.ndim != 2 or layer.input_axis % 2 != 1:
            raise ValueError(
                f"{name} is no [out, in] matrix; mechanism measures models that have only such ones"
            )


def prepare(settings: Mapping, threads: int) -> str:
    """Set torch's threads and numeric mode; the device that ``settings`` asks for."""
    torch.set_num_threads(threads)
    prepare_backend()
    return choose_device(settings["device"])


def visits(
    folders: Mapping[int, str], validation: str, settings: Mapping, *, name: str, threads: int
) -> Iterator[Visit]:
    """The checkpoints of a job one after another; one model is in memory at a time.

    ``settings`` has ``device`` and ``sequences``, the number of validation sequences that
    are used. Raises ``ValueError`` where the file holds fewer.
    """
    device = prepare(settings, threads)
    tokens = read_tokens(validation)
    if len(tokens) < settings["sequences"]:
        raise ValueError(
            f"{validation} holds {len(tokens)} sequences; mechanism asks for "
            f"{settings['sequences']}"
        )
    for step, folder in progress(folders.items(), name, total=len(folders)):
        model = load_model(folder, device)
        assert_float32(model)
        check_orientation(model)
        yield Visit(step, model, tokens[: settings["sequences"]], device)


def specs_of(quantizers: Mapping[str, Mapping]) -> dict[str, AnyQuantizer]:
    """Quantizers by role from their definitions in the configuration."""
    return read_specs(quantizers)
