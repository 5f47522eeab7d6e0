"""The weights of a model that are matrices of linear layers, and which axis is their input.

Quantizers share a scale along the inputs of a layer, so the input axis decides the numbers.
It is known for some layers of transformers: ``nn.Linear`` stores ``[out, in]`` and GPT-2's
``Conv1D`` stores ``[in, out]``. A mixture of experts may store all experts of a layer in one
parameter, ``[experts, out, in]`` or ``[experts, in, out]``; some modules say which
(``is_transposed``).

For any other parameter, the model is run once on a few tokens. The matrix products that the
parameter enters show over which of its axes they sum: that axis is the input (``_Products``).

Parameters that enter no such product are not selected: convolutions, embeddings, norms, biases.
Routers are not selected either, because transformers does not store them as linear layers.
``not_selected`` lists them.
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

# Their weights are looked up, or mix positions: they are not matrices of linear layers.
_NO_MATRICES = (nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Names of torch's matrix products. For each: the positions of the arguments that may be a
# weight, and the axis of that argument which the product sums over. "mm" computes a[i, k] b[k, j],
# so it sums over axis 1 of its argument 0 and over axis 0 of its argument 1.
_SUMMED_AXES = {
    "mm": ((0, 1), (1, 0)),
    "addmm": ((1, 1), (2, 0)),
    "linear": ((1, 1),),
    "bmm": ((0, 2), (1, 1)),
    "baddbmm": ((1, 2), (2, 1)),
    "_grouped_mm": ((0, -1), (1, -2)),
    "mv": ((0, 1),),
    "addmv": ((1, 1),),
}
_COPIES = {"clone", "_to_copy", "contiguous", "index", "index_select"}
_TOKENS = 16  # length of the sequence that shows the products
_CACHE = "_products_of_weights"  # attribute of a model that keeps the observed products


@dataclass(frozen=True)
class LinearWeight:
    """One weight of linear layers, and the axis of its inputs.

    ``input_axis`` is -1 for ``[out, in]`` and -2 for ``[in, out]``. A weight of three axes has
    its experts along the first. A weight of two axes may also have ``experts`` matrices, one
    below the other.
    """

    weight: Tensor
    input_axis: int
    experts: int = 1

    @property
    def in_features(self) -> int:
        """Inputs of the layer."""
        return self.matrices().shape[-1]

    def matrices(self) -> Tensor:
        """``[experts, out, in]`` view of the weight. A layer without experts has one."""
        weight = self.weight.detach()
        # A matrix of ``experts * out`` rows becomes a stack. Without experts it is a stack of one.
        stack = weight if weight.ndim == 3 else weight.unflatten(0, (self.experts, -1))
        return stack.movedim(self.input_axis, -1)  # inputs last

    def restored(self, matrices: Tensor) -> Tensor:
        """Inverse of ``matrices``: a tensor of the weight's own shape."""
        return matrices.movedim(-1, self.input_axis).reshape(self.weight.shape)


def linear_layers(model: nn.Module, layers: str = "blocks") -> dict[str, LinearWeight]:
    """The weights that ``layers`` selects, by parameter name.

    ``blocks`` is every linear layer except the output head; ``blocks+head`` includes the head. A
    parameter that several layers share appears once. Raises ``UserError`` for ``blocks+head`` if
    the head shares its weight with the input embedding, which would then be quantized too.
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
    # Layers may share a parameter. ``named_parameters`` lists it once, under its first name.
    parameter_names = {id(parameter): name for name, parameter in model.named_parameters()}
    selected = {}
    for prefix, module in model.named_modules():
        if isinstance(module, _NO_MATRICES):
            continue
        if module is head and not with_head:
            continue
        if isinstance(module, nn.Linear | Conv1D):
            input_axis = -1 if isinstance(module, nn.Linear) else -2
            name = parameter_names[id(module.weight)]
            # The first layer that has the weight decides. A layer that shares it has the same axis.
            selected.setdefault(name, LinearWeight(module.weight, input_axis))
            continue

        is_transposed = getattr(module, "is_transposed", None)  # of experts in one parameter
        for name, parameter in module.named_parameters(prefix, recurse=False):
            # Vectors, and kernels of depthwise convolutions, are no matrices.
            if parameter.ndim < 2 or min(parameter.shape[-2:]) == 1:
                continue
            if parameter.ndim == 3 and is_transposed is not None:
                selected[name] = LinearWeight(parameter, -2 if is_transposed else -1)
                continue
            linear_weight = _from_products(model, name, parameter)
            if linear_weight is not None:
                selected[name] = linear_weight
    return selected


def _find_head(model: nn.Module) -> nn.Module | None:
    """The model's output head, or else its last linear layer as wide as the vocabulary."""
    head = model.get_output_embeddings()
    if head:
        return head
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    candidates = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and module.out_features == vocabulary
    ]
    return candidates[-1] if candidates else None


def _from_products(model: nn.Module, name: str, parameter: Tensor) -> LinearWeight | None:
    """A parameter outside linear layers, as the stack of matrices that the model multiplies with.

    ``None`` if the parameter enters no product, if its products disagree on the axis, or if it is
    a single matrix, which is a router.
    """
    if _CACHE not in model.__dict__:
        model.__dict__[_CACHE] = _observe_products(model)
    products = model.__dict__[_CACHE][kind_of(name), parameter.shape]
    if len(products) != 1:
        return None
    [(axis, summed_length, product_size)] = products
    if axis is None:  # not an axis of the parameter
        return None

    # How many products it takes to use every element once.
    experts, remainder = divmod(parameter.numel(), product_size)
    if parameter.ndim == 3 and axis > 0:
        linear_weight = LinearWeight(parameter, axis - 3)
    elif parameter.ndim == 2 and experts > 1 and not remainder:
        linear_weight = LinearWeight(parameter, axis - 2, experts)
    else:
        return None
    # A product over a part of the inputs is not the layer's.
    return linear_weight if linear_weight.in_features == summed_length else None


def _observe_products(model: nn.Module) -> dict[tuple, set]:
    """``_Products.products`` of one run over a few tokens; empty if the model cannot run."""
    observer = _Products(model)
    was_training = model.training
    try:
        ids = torch.arange(1, 1 + _TOKENS, device=next(model.parameters()).device)[None]
        with torch.inference_mode(False), torch.no_grad(), observer:
            model.eval()(input_ids=ids, use_cache=False)
    except Exception as error:  # noqa: BLE001, a model may raise anything
        logger.warning(f"cannot tell which axis of a weight is the input: {one_line(error, 200)}")
        logger.debug("", exc_info=error)
        observer.products.clear()
    finally:
        model.train(was_training)
    return observer.products


class _Products(TorchDispatchMode):
    """Records the axis of each parameter that matrix products sum over.

    ``products`` maps (name pattern, shape) to a set of (axis, its length, elements per product).
    Keying by pattern lets an expert that received no tokens inherit the layout of its siblings.

    A tensor is recognized as a parameter, or a view of one, by its memory. An axis is recognized
    by its stride, which views such as a transpose keep. A copy of slices is registered as if it
    were a parameter of its own.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.products: dict[tuple, set] = defaultdict(set)
        # By storage: the memory of each registered tensor, its key, and its axes by stride.
        self._registered: dict[int, list] = defaultdict(list)
        self._copies: list[Tensor] = []  # kept alive, so that no memory is used twice
        for name, parameter in model.named_parameters():
            axis_by_stride = {
                parameter.stride(axis): axis
                for axis in range(parameter.ndim)
                # The stride of an axis of length 1 says nothing.
                if parameter.shape[axis] > 1
            }
            self._register(parameter, (kind_of(name), parameter.shape), axis_by_stride)

    def _register(self, tensor: Tensor, key: tuple, axis_by_stride: dict[int, int]) -> None:
        first = tensor.storage_offset()
        memory = range(first, first + tensor.numel())
        storage = tensor.untyped_storage()._cdata
        self._registered[storage].append((memory, key, axis_by_stride))

    def _recognize(self, tensor: object) -> tuple[tuple, dict[int, int]] | None:
        """Key and axes of the registered tensor whose memory this one begins in."""
        if not isinstance(tensor, Tensor):
            return None
        offset = tensor.storage_offset()
        for memory, key, axis_by_stride in self._registered[tensor.untyped_storage()._cdata]:
            if offset in memory:
                return key, axis_by_stride
        return None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        for position, axis in _SUMMED_AXES.get(name, ()):
            self._record(args[position], axis)
        if name in _COPIES and isinstance(output, Tensor):
            self._record_copy(args[0], output)
        return output

    def _record(self, tensor: Tensor, axis: int) -> None:
        """Record that a product sums over ``axis`` of ``tensor``, if this is a parameter."""
        recognized = self._recognize(tensor)
        if recognized is None or not tensor.numel():
            return
        key, axis_by_stride = recognized
        product_size = tensor.shape[-2] * tensor.shape[-1]
        parameter_axis = axis_by_stride.get(tensor.stride(axis))
        self.products[key].add((parameter_axis, tensor.shape[axis], product_size))

    def _record_copy(self, source: Tensor, copy: Tensor) -> None:
        """Register a copy of a parameter, or of slices of one, under the parameter's key."""
        recognized = self._recognize(source)
        if recognized is None:
            return
        key, axis_by_stride = recognized
        new_axes = copy.ndim - source.ndim  # which an index adds in front
        copy_axis_by_stride = {}
        for axis in range(source.ndim):
            if axis + new_axes >= 0 and source.stride(axis) in axis_by_stride:
                stride = copy.stride(axis + new_axes)
                copy_axis_by_stride[stride] = axis_by_stride[source.stride(axis)]
        self._register(copy, key, copy_axis_by_stride)
        self._copies.append(copy)


def kind_of(name: str) -> str:
    """The pattern of a parameter's name: ``*`` in place of the numbers of layers and experts."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def not_selected(model: nn.Module, selected: Iterable[str]) -> dict[str, int]:
    """Number of weights outside ``selected`` by ``kind_of`` their names, most first.

    All vectors (biases, norms) are counted together as ``vectors``. A shared weight counts once.
    """
    selected = set(selected)
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if name not in selected:
            kind = "vectors" if parameter.ndim < 2 else kind_of(name)
            counts[kind] = counts.get(kind, 0) + parameter.numel()
    return dict(sorted(counts.items(), key=_most_first))


def _most_first(kind_and_count: tuple[str, int]) -> tuple[int, str]:
    """Sort key: larger counts first, equal counts by name."""
    kind, count = kind_and_count
    return -count, kind


def matrices_of(model: nn.Module, layers: str) -> dict[str, Tensor]:
    """Every selected matrix as ``[out, in]``, in name order; expert 3 of ``w`` is ``w[3]``."""
    matrix_by_name = {}
    for name, layer in sorted(linear_layers(model, layers).items()):
        matrices = layer.matrices()
        if layer.weight.ndim == 2 and layer.experts == 1:
            matrix_by_name[name] = matrices[0]
        else:
            for expert, matrix in enumerate(matrices):
                matrix_by_name[f"{name}[{expert}]"] = matrix
    return matrix_by_name


def count_weights(model: nn.Module) -> int:
    """Weights of a model, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
