"""Which weights of a model are matrices of linear layers, and along which axis inputs run.

Any causal language model of transformers: ``nn.Linear`` stores ``[out, in]``, GPT-2's
``Conv1D`` the transpose, and a mixture of experts all experts of a layer as one
``[experts, out, in]`` parameter (or its transpose, which the module says itself).
Routers are no linear layers in transformers and stay as they are; ``not_selected``
names them beside embeddings, norms and biases.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from torch import Tensor, nn

from flatminima.quantizer_specs import Layers

# A convolution over time mixes positions and is no matrix of a linear layer.
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class LinearWeight:
    """One weight of linear layers and the axis that holds its inputs.

    ``[out, in]`` or ``[in, out]``, with a leading axis of experts where there are three.
    """

    weight: Tensor
    input_axis: int

    @property
    def out_features(self) -> int:
        """Rows of the matrix, those of all experts together."""
        return self.weight.numel() // self.in_features

    @property
    def in_features(self) -> int:
        """Inputs of the layer."""
        return self.weight.shape[self.input_axis]

    def matrices(self) -> Tensor:
        """``[experts, out, in]`` view of the weight; one expert where the layer has none."""
        weight = self.weight.detach().movedim(self.input_axis, -1)
        return weight if weight.ndim == 3 else weight.unsqueeze(0)

    def restored(self, matrices: Tensor) -> Tensor:
        """Inverse of ``matrices``: a tensor of the weight's own shape."""
        weight = matrices if self.weight.ndim == 3 else matrices.squeeze(0)
        return weight.movedim(-1, self.input_axis)


def check_layers(layers: str) -> None:
    """Raise ``ValueError`` for a selection that is not known."""
    if layers not in get_args(Layers):
        raise ValueError(f"layers {layers!r}: {', '.join(get_args(Layers))}")


def linear_layers(model: nn.Module, layers: str = "blocks") -> dict[str, LinearWeight]:
    """The weights that ``layers`` selects, by parameter name.

    ``blocks`` is every linear layer but the output head, whatever the head is called
    (``embed_out`` or ``lm_head``); ``blocks+head`` includes it. Raises ``ValueError``
    where the head shares its weight with the input embedding, which would be altered
    too, and for a parameter of three or more axes whose orientation is not known.
    """
    check_layers(layers)
    head = model.get_output_embeddings()
    if layers == "blocks+head":
        _check_head(model, head)
    selected = {}
    for name, module in model.named_modules():
        if module is head and layers == "blocks":
            continue
        prefix = f"{name}." if name else ""
        for suffix, weight in _weights_of(module, prefix):
            selected[f"{prefix}{suffix}"] = weight
    return selected


def _check_head(model: nn.Module, head: nn.Module | None) -> None:
    if head is None:
        raise ValueError("layers blocks+head: this model has no output head")
    if head.weight is model.get_input_embeddings().weight:
        raise ValueError(
            "layers blocks+head: this model's head is tied to its input embedding; use blocks"
        )


def _weights_of(module: nn.Module, prefix: str) -> Iterator[tuple[str, LinearWeight]]:
    """Linear weights that the module itself holds, its children's left out."""
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, nn.Linear):
        yield "weight", LinearWeight(module.weight, -1)
    elif isinstance(module, Conv1D):
        yield "weight", LinearWeight(module.weight, -2)
    elif not isinstance(module, _CONVOLUTIONS):
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim < 3 or min(parameter.shape[-2:]) == 1:
                continue
            # Set by transformers where the experts of a layer are one parameter.
            transposed = getattr(module, "is_transposed", None)
            if parameter.ndim > 3 or transposed is None:
                raise ValueError(
                    f"{prefix}{name}: a weight of shape {tuple(parameter.shape)} in "
                    f"{type(module).__name__}; which axis holds its inputs is not known"
                )
            yield name, LinearWeight(parameter, -2 if transposed else -1)


def not_selected(model: nn.Module, selected: Iterable[str]) -> dict[str, int]:
    """Weights outside ``selected``: how many, by name with ``*`` for numbers.

    Vectors (biases, norms) are one entry, ``vectors``; a shared weight counts once.
    """
    selected, counts = set(selected), {}
    for name, parameter in model.named_parameters():
        if name not in selected:
            kind = "vectors" if parameter.ndim < 2 else re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
            counts[kind] = counts.get(kind, 0) + parameter.numel()
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def matrices_of(model: nn.Module, layers: str) -> dict[str, Tensor]:
    """``[out, in]`` of every selected matrix in name order, each expert's by its own name."""
    found = {}
    for name, layer in sorted(linear_layers(model, layers).items()):
        matrices = layer.matrices()
        if layer.weight.ndim == 2:
            found[name] = matrices[0]
        else:
            found |= {f"{name}[{expert}]": matrix for expert, matrix in enumerate(matrices)}
    return found


def count_weights(model: nn.Module) -> int:
    """Weights of a model, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
