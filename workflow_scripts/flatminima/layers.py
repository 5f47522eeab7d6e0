"""Which weights of a model are matrices of linear layers, and along which axis inputs run.

Any causal language model of transformers: ``nn.Linear`` stores ``[out, in]``, GPT-2's
``Conv1D`` the transpose, and a mixture of experts all experts of a layer as one
``[experts, out, in]`` parameter (or its transpose, which the module says itself). Where a
module says nothing, the model is run once on a few tokens and the products that a weight
enters tell over which of its axes they sum (``_Products``). What is multiplied in no such
way (convolutions, embeddings, norms, biases) stays as it is, and so do routers, which are
whole matrices that are no linear layers in transformers; ``not_selected`` names them.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flatminima.errors import UserError, one_line
from flatminima.quantizer_specs import Layers

logger = logging.getLogger(__name__)

# Their weights are looked up, or mix positions: no matrices of linear layers.
_NO_MATRICES = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Arguments of a product and the axis of each that it sums over.
_SUMS = {
    "mm": ((0, 1), (1, 0)), "addmm": ((1, 1), (2, 0)), "linear": ((1, 1),),
    "bmm": ((0, 2), (1, 1)), "baddbmm": ((1, 2), (2, 1)), "_grouped_mm": ((0, -1), (1, -2)),
    "mv": ((0, 1),), "addmv": ((1, 1),),
}  # fmt: skip
_COPIES = {"clone", "_to_copy", "contiguous", "index", "index_select"}
_TOKENS = 16  # that a model is run on to see its products
_FOUND = "_products_of_weights"  # where a model keeps what was found


@dataclass(frozen=True)
class LinearWeight:
    """One weight of linear layers and the axis that holds its inputs, -1 or -2.

    ``[out, in]`` or ``[in, out]``, with a leading axis of experts where there are three.
    ``experts`` above 1 are matrices below each other in a weight of two axes.
    """

    weight: Tensor
    input_axis: int
    experts: int = 1

    @property
    def in_features(self) -> int:
        """Inputs of the layer."""
        return self.matrices().shape[-1]

    def matrices(self) -> Tensor:
        """``[experts, out, in]`` view of the weight; one expert where the layer has none."""
        weight = self.weight.detach()
        stack = weight if weight.ndim == 3 else weight.unflatten(0, (self.experts, -1))
        return stack.movedim(self.input_axis, -1)

    def restored(self, matrices: Tensor) -> Tensor:
        """Inverse of ``matrices``: a tensor of the weight's own shape."""
        return matrices.movedim(-1, self.input_axis).reshape(self.weight.shape)


def linear_layers(model: nn.Module, layers: str = "blocks") -> dict[str, LinearWeight]:
    """The weights that ``layers`` selects, by parameter name.

    ``blocks`` is every linear layer but the output head, whatever the head is called
    (``embed_out`` or ``lm_head``); ``blocks+head`` includes it. A parameter that layers share
    appears once. Raises ``UserError`` where the head shares its weight with the input embedding,
    which would be changed too.
    """
    from transformers.pytorch_utils import Conv1D

    if layers not in get_args(Layers):
        raise UserError(f"layers: {layers!r} is not valid; valid: {', '.join(get_args(Layers))}")
    head = _find_head(model)
    with_head = layers == "blocks+head"
    if with_head and head is None:
        raise UserError("layers: 'blocks+head' needs an output head; use 'blocks'")
    if with_head and head.weight is model.get_input_embeddings().weight:
        raise UserError(
            "layers: 'blocks+head' would also change the input embedding, which is tied to the "
            "head of this model; use 'blocks'"
        )
    # Layers may share a parameter, which ``named_parameters`` lists under the first name only.
    parameter_names = {id(parameter): name for name, parameter in model.named_parameters()}
    selected = {}
    for prefix, module in model.named_modules():
        if isinstance(module, _NO_MATRICES) or (module is head and not with_head):
            continue
        if isinstance(module, nn.Linear | Conv1D):
            input_axis = -1 if isinstance(module, nn.Linear) else -2
            name = parameter_names[id(module.weight)]
            selected.setdefault(name, LinearWeight(module.weight, input_axis))
            continue
        transposed = getattr(module, "is_transposed", None)  # of experts in one parameter
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.ndim < 2 or min(parameter.shape[-2:]) == 1:
                continue
            if parameter.ndim == 3 and transposed is not None:
                selected[name] = LinearWeight(parameter, -2 if transposed else -1)
            elif found := _multiplied(model, name, parameter):
                selected[name] = found
    return selected


def _find_head(model: nn.Module) -> nn.Module | None:
    """The output head: what the model says, else its last linear layer of the vocabulary's size."""
    rows = getattr(getattr(model, "config", None), "vocab_size", None)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == rows]
    return model.get_output_embeddings() or (linear[-1] if linear else None)


def _multiplied(model: nn.Module, name: str, parameter: Tensor) -> LinearWeight | None:
    """A parameter of no linear layer as the stack of matrices that the model multiplies with.

    ``None`` where products disagree or are none, or where it is a router: one whole matrix.
    """
    if _FOUND not in model.__dict__:
        model.__dict__[_FOUND] = _run(model)
    notes = model.__dict__[_FOUND][kind_of(name), parameter.shape]
    axis, size, part = next(iter(notes)) if len(notes) == 1 else (None, 0, 1)
    if axis is None:
        return None
    experts, rest = divmod(parameter.numel(), part)
    if parameter.ndim == 3 and axis > 0:
        found = LinearWeight(parameter, axis - 3)
    elif parameter.ndim == 2 and experts > 1 and not rest:
        found = LinearWeight(parameter, axis - 2, experts)
    else:
        return None
    return found if found.in_features == size else None


def _run(model: nn.Module) -> dict[tuple, set]:
    """What ``_Products`` notes in one run over a few tokens; nothing where it cannot run."""
    products, mode = _Products(model), model.training
    try:
        ids = torch.arange(1, 1 + _TOKENS, device=next(model.parameters()).device)[None]
        with torch.inference_mode(False), torch.no_grad(), products:
            model.eval()(input_ids=ids, use_cache=False)
    except Exception as error:  # noqa: BLE001, any model of anybody
        logger.warning(f"cannot tell which axis of a weight is the input: {one_line(error, 200)}")
        logger.debug("", exc_info=error)
        products.notes.clear()
    finally:
        model.train(mode)
    return products.notes


class _Products(TorchDispatchMode):
    """Over which axis of each parameter the matrix products sum that it enters.

    ``notes`` has by kind of name and shape, so that a weight which no token reached (of an
    expert, say) lies as those in other layers do: the axis, how many numbers a product sums,
    and how many of the parameter one product holds. A parameter is known by its memory,
    through views, and through copies of whole slices of it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.notes: dict[tuple, set] = defaultdict(set)
        self._homes: dict[int, list] = defaultdict(list)  # by storage: span, key, axis by stride
        self._copies: list[Tensor] = []  # kept, so that no storage is used twice
        for name, parameter in model.named_parameters():
            axes = {parameter.stride(a): a for a in range(parameter.ndim) if parameter.shape[a] > 1}
            self._know(parameter, (kind_of(name), parameter.shape), axes)

    def _know(self, tensor: Tensor, key: tuple, axes: dict[int, int]) -> None:
        first = tensor.storage_offset()
        place = (range(first, first + tensor.numel()), key, axes)
        self._homes[tensor.untyped_storage()._cdata].append(place)

    def _home(self, tensor: object) -> tuple[tuple, dict[int, int]] | None:
        if not isinstance(tensor, Tensor):
            return None
        places, at = self._homes[tensor.untyped_storage()._cdata], tensor.storage_offset()
        return next(((key, axes) for span, key, axes in places if at in span), None)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        for position, axis in _SUMS.get(name, ()):
            tensor = args[position]
            if (home := self._home(tensor)) and tensor.numel():
                key, axes = home
                part = tensor.shape[-2] * tensor.shape[-1]
                self.notes[key].add((axes.get(tensor.stride(axis)), tensor.shape[axis], part))
        if name in _COPIES and (home := self._home(args[0])) and isinstance(found, Tensor):
            key, axes = home
            source, moved = args[0], found.ndim - args[0].ndim  # axes that an index adds in front
            axes = {
                found.stride(a + moved): axes[source.stride(a)]
                for a in range(source.ndim)
                if a + moved >= 0 and source.stride(a) in axes
            }
            self._know(found, key, axes)
            self._copies.append(found)
        return found


def kind_of(name: str) -> str:
    """A parameter's name with ``*`` for the numbers of layers and experts."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def not_selected(model: nn.Module, selected: Iterable[str]) -> dict[str, int]:
    """Weights outside ``selected``: how many, by name with ``*`` for numbers, most first.

    Vectors (biases, norms) are one entry, ``vectors``; a shared weight counts once.
    """
    selected, counts = set(selected), {}
    for name, parameter in model.named_parameters():
        if name not in selected:
            kind = "vectors" if parameter.ndim < 2 else kind_of(name)
            counts[kind] = counts.get(kind, 0) + parameter.numel()
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def matrices_of(model: nn.Module, layers: str) -> dict[str, Tensor]:
    """``[out, in]`` of every selected matrix in name order, each expert's by its own name."""
    found = {}
    for name, layer in sorted(linear_layers(model, layers).items()):
        matrices = layer.matrices()
        if layer.weight.ndim == 2 and layer.experts == 1:
            found[name] = matrices[0]
        else:
            found |= {f"{name}[{expert}]": matrix for expert, matrix in enumerate(matrices)}
    return found


def count_weights(model: nn.Module) -> int:
    """Weights of a model, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
