"""The freedom of a network to scale its channels, and what equalization does with it.

A normalization layer multiplies each channel by a gain, and the linear layers behind it multiply
the channel by a column of their weights. If the gain is divided by s and the columns are
multiplied by s, no output of the model changes. The same holds for the channels of the values in
attention: rows of the value projection, and columns of the output projection. Rounding is not
indifferent to s. A scale that is shared by several columns is too coarse for the small ones.

Equalization chooses s from the weights alone so that all columns have the same size, by norm or
by largest magnitude. It needs no data. For rectified networks this is cross-layer equalization
(Nagel et al., arXiv 1906.04721); between a normalization and its readers it is the weight half of
SmoothQuant (Xiao et al., arXiv 2211.10438). That sharpness changes under such scalings is the
argument of Dinh et al. (arXiv 1703.04933).

``ROUTES`` lists where each family of transformers has such channels. A family that it lacks has
none, and nothing is equalized there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from flatminima.layers import LinearWeight, linear_layers

Measure = Literal["norm", "max"]


# ---- where the families have free channels ---------------------------------------------------


@dataclass(frozen=True)
class NormRoute:
    """A normalization layer and all linear layers that read its output, named within a block.

    The gain of the layer is ``gain_offset`` plus its weight.
    """

    norm: str
    readers: tuple[str, ...]
    gain_offset: float = 0.0


@dataclass(frozen=True)
class ValueRoute:
    """The projection that contains the values, and the one that reads them, within a block.

    ``layout`` is how the rows of the first are arranged: ``values`` only; ``thirds`` of queries,
    keys and values; or ``by_head``, with the three parts of each head side by side.
    """

    projection: str
    output: str
    layout: Literal["values", "thirds", "by_head"] = "values"


Route = NormRoute | ValueRoute

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_VALUES = ValueRoute("self_attn.v_proj", "self_attn.o_proj")
_GATED_MLP = ("mlp.gate_proj", "mlp.up_proj")
_LLAMA: tuple[Route, ...] = (
    NormRoute("input_layernorm", _QKV),
    NormRoute("post_attention_layernorm", _GATED_MLP),
    _VALUES,
)
# The normalizations of Gemma multiply by one plus their weight.
_GEMMA2: tuple[Route, ...] = (
    NormRoute("input_layernorm", _QKV, gain_offset=1.0),
    NormRoute("pre_feedforward_layernorm", _GATED_MLP, gain_offset=1.0),
    _VALUES,
)
_OPT: tuple[Route, ...] = (
    NormRoute("self_attn_layer_norm", _QKV),
    NormRoute("final_layer_norm", ("fc1",)),
    ValueRoute("self_attn.v_proj", "self_attn.out_proj"),
)
ROUTES: dict[str, tuple[Route, ...]] = {
    "gpt_neox": (
        NormRoute("input_layernorm", ("attention.query_key_value",)),
        NormRoute("post_attention_layernorm", ("mlp.dense_h_to_4h",)),
        ValueRoute("attention.query_key_value", "attention.dense", "by_head"),
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "smollm3": _LLAMA,
    "granite": _LLAMA,
    "gemma": (
        NormRoute("input_layernorm", _QKV, gain_offset=1.0),
        NormRoute("post_attention_layernorm", _GATED_MLP, gain_offset=1.0),
        _VALUES,
    ),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2,
    # The output of the normalization before the experts is also read by their router.
    "mixtral": (NormRoute("input_layernorm", _QKV), _VALUES),
    "gpt2": (
        NormRoute("ln_1", ("attn.c_attn",)),
        NormRoute("ln_2", ("mlp.c_fc",)),
        ValueRoute("attn.c_attn", "attn.c_proj", "thirds"),
    ),
    "opt": _OPT,
    "xglm": _OPT,
    "phi": (
        # Attention and MLP are parallel and read the same normalization.
        NormRoute("input_layernorm", (*_QKV, "mlp.fc1")),
        ValueRoute("self_attn.v_proj", "self_attn.dense"),
    ),
    "bloom": (
        NormRoute("input_layernorm", ("self_attention.query_key_value",)),
        NormRoute("post_attention_layernorm", ("mlp.dense_h_to_4h",)),
        ValueRoute("self_attention.query_key_value", "self_attention.dense", "by_head"),
    ),
}
# Settings of a configuration under which the output of a normalization is read elsewhere too.
_UNUSABLE = {
    "opt": ("do_layer_norm_before", False),
    "bloom": ("apply_residual_connection_post_layernorm", True),
}


# ---- the free channels of a model ------------------------------------------------------------


@dataclass(frozen=True)
class Channels:
    """Channels that can be scaled without a change of the model's function.

    ``writers`` are parameters that are divided by the scales, with their index of each channel
    along the outputs, ``[channels]``. ``readers`` are weights that are multiplied, with the
    columns that read each channel, ``[channels, columns]``. Several heads may read one channel.
    """

    name: str
    writers: tuple[tuple[str, Tensor], ...]
    readers: tuple[tuple[str, Tensor], ...]
    gain_offset: float = 0.0
    is_of_values: bool = False  # else behind a normalization

    @property
    def count(self) -> int:
        """Number of channels."""
        return len(self.writers[0][1])


def free_channels(model: nn.Module) -> list[Channels]:
    """All channels of a model that ``ROUTES`` knows, in the order of its blocks."""
    config = model.config.get_text_config(decoder=True)
    routes = ROUTES.get(config.model_type, ())
    setting, unusable_value = _UNUSABLE.get(config.model_type, (None, None))
    if setting is not None and getattr(config, setting, None) == unusable_value:
        routes = ()
    found_channels = []
    for prefix, block in model.named_modules():
        for route in routes:
            channels = _channels_of(block, prefix, route, config)
            if channels is not None:
                found_channels.append(channels)
    return found_channels


def _channels_of(block: nn.Module, prefix: str, route: Route, config: object) -> Channels | None:
    """The channels of one route; ``None`` if the module is not a block that has this route."""
    names = [route.norm, *route.readers] if isinstance(route, NormRoute) else [route.projection]
    if isinstance(route, ValueRoute):
        names.append(route.output)
    modules = {name: _submodule(block, name) for name in names}
    # A normalization without a gain cannot take up the scales.
    if any(getattr(module, "weight", None) is None for module in modules.values()):
        return None
    writer = names[0]
    width = modules[writer].weight.numel()
    if isinstance(route, NormRoute):
        rows = torch.arange(width)
        columns = rows[:, None]
        offset = route.gain_offset
        readers = route.readers
    else:
        rows, columns = _value_channels(route, config)
        offset = 0.0
        readers = (route.output,)
    writers = [(f"{prefix}.{writer}.weight", rows)]
    if getattr(modules[writer], "bias", None) is not None:
        writers.append((f"{prefix}.{writer}.bias", rows))
    return Channels(
        name=f"{prefix}.{writer}",
        writers=tuple(writers),
        readers=tuple((f"{prefix}.{reader}.weight", columns) for reader in readers),
        gain_offset=offset,
        is_of_values=isinstance(route, ValueRoute),
    )


def _submodule(block: nn.Module, name: str) -> nn.Module | None:
    try:
        return block.get_submodule(name)
    except AttributeError:
        return None


def _value_channels(route: ValueRoute, config: object) -> tuple[Tensor, Tensor]:
    """Rows of the values in their projection, and the columns that read each of them."""
    heads = config.num_attention_heads
    value_heads = getattr(config, "num_key_value_heads", None) or heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    channel = torch.arange(value_heads * head_width)
    head = channel // head_width
    position = channel % head_width
    rows = {
        "values": channel,
        "thirds": 2 * len(channel) + channel,
        "by_head": (3 * head + 2) * head_width + position,
    }[route.layout]
    # In grouped-query attention, consecutive query heads share the values of one head.
    sharing = heads // value_heads
    query_heads = head[:, None] * sharing + torch.arange(sharing)
    return rows, query_heads * head_width + position[:, None]


# ---- scales ----------------------------------------------------------------------------------


def equalizing_scales(
    layers: Mapping[str, LinearWeight], channels: Channels, measure: Measure
) -> Tensor:
    """Scales after which all channels have columns of the same size, float64 ``[channels]``.

    ``layers`` has the readers by parameter name. The size of a channel is the norm, or the
    largest magnitude, of all columns that read it. The geometric mean of the scales is one. A
    channel whose columns are zero keeps the scale one.
    """
    if measure not in get_args(Measure):
        raise ValueError(f"measure {measure!r} is not valid; valid: {', '.join(get_args(Measure))}")
    sizes = []
    for name, columns in channels.readers:
        # [out, channels, columns]
        weights = layers[name].matrices()[0][:, columns].double()
        if measure == "norm":
            sizes.append(weights.square().sum(dim=(0, 2)))
        else:
            sizes.append(weights.abs().amax(dim=(0, 2)))
    if measure == "norm":
        size = torch.stack(sizes).sum(dim=0).sqrt()
    else:
        size = torch.stack(sizes).amax(dim=0)
    is_used = size > 0.0
    scales = torch.ones_like(size)
    if is_used.any():
        typical_size = size[is_used].log().mean().exp()
        scales[is_used] = typical_size / size[is_used]
    return scales


@dataclass
class MatrixScales:
    """Factors of one weight's rows and columns: ``[out, 1]`` and ``[in]``, float64."""

    rows: Tensor
    columns: Tensor

    def of(self, matrix: Tensor) -> Tensor:
        """The factor of each weight of ``matrix`` ``[out, in]``, in its dtype."""
        return (self.rows * self.columns).to(matrix)


def equalized_layers(
    model: nn.Module, layers: Mapping[str, LinearWeight], measure: Measure
) -> dict[str, MatrixScales]:
    """Scales by the name of each weight of ``layers`` that equalization changes.

    Channels with a reader outside ``layers`` are left alone: it would have to be scaled too.
    """
    scales_by_name: dict[str, MatrixScales] = {}

    def scales_of(name: str) -> MatrixScales:
        if name not in scales_by_name:
            rows, columns = layers[name].matrices()[0].shape
            scales_by_name[name] = MatrixScales(
                torch.ones(rows, 1, dtype=torch.float64), torch.ones(columns, dtype=torch.float64)
            )
        return scales_by_name[name]

    for channels in free_channels(model):
        names = [name for name, _ in channels.readers]
        if not all(name in layers for name in names):
            continue
        scales = equalizing_scales(layers, channels, measure).cpu()
        for name, columns in channels.readers:
            scales_of(name).columns[columns] *= scales[:, None]
        for name, rows in channels.writers:
            # Gains and biases are not quantized. Values are rows of a weight that is.
            if name in layers:
                scales_of(name).rows[rows] /= scales[:, None]
    return scales_by_name


# ---- the model itself ------------------------------------------------------------------------


@torch.no_grad()
def rescale(model: nn.Module, scales: Sequence[tuple[Channels, Tensor]]) -> None:
    """Scale channels of the model itself; its outputs stay as they are, up to rounding.

    Each ``scales`` is ``[channels]``: readers are multiplied, writers are divided.
    """
    parameters = dict(model.named_parameters())
    layers = linear_layers(model)
    for channels, factors in scales:
        for name, columns in channels.readers:
            matrix = layers[name].matrices()[0]
            for position in range(columns.shape[1]):
                matrix[:, columns[:, position]] *= factors.to(matrix)
        for name, rows in channels.writers:
            if name in layers:
                layers[name].matrices()[0][rows] /= factors.to(parameters[name])[:, None]
            else:
                vector = parameters[name]
                # A bias has no offset: only the gain is one plus its weight.
                offset = channels.gain_offset if name.endswith(".weight") else 0.0
                vector[rows] = (vector[rows] + offset) / factors.to(vector) - offset


def equalize(model: nn.Module, measure: Measure) -> None:
    """Equalize all free channels of the model itself."""
    layers = linear_layers(model)
    for channels in free_channels(model):
        rescale(model, [(channels, equalizing_scales(layers, channels, measure))])
