"""Scores of a model and its quantized variants, each layer read once for all of them.

The hidden states of all sequences are kept for every precision side by side. A layer's
weights are read, applied to the states at full precision, and quantized and applied to
those of each quantizer; then they are gone. What a layer is given beside the states, and
all that lies before and behind the layers, is the model's own forward.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from flatminima.evaluation import SequenceScores, batches, score_logits
from flatminima.logits import OnUse, next_token_logits
from flatminima.quantizers import QuantizerSpec, quantized_on_use
from flatminima.roles import FP32
from flatminima.streaming.stored import CannotStream, StoredModel

_STATES = "hidden_states"


@dataclass
class _Call:
    """What a layer is called with beside the hidden states, its first argument."""

    args: tuple
    kwargs: Mapping

    def run(self, layer: nn.Module, states: Tensor) -> Tensor:
        found = layer(states, *self.args, **self.kwargs)
        if not isinstance(found, Tensor) or found.shape != states.shape:
            raise CannotStream(f"a {type(layer).__name__} gives more than hidden states")
        return found


@torch.inference_mode()
def score_streamed(
    stored: StoredModel, tokens: np.ndarray, specs: Mapping[str, QuantizerSpec], *, batch_size: int
) -> dict[str, SequenceScores]:
    """What ``evaluation.score`` finds for the model and its quantized variants, to the bit.

    ``tokens`` is ``[sequences, length]``. In memory are never more than one layer, its
    quantized copy, the states ``[sequences, length, width]`` of each precision, and in the
    end embedding and head. Raises ``CannotStream`` where the model is no sequence of layers
    that hand on hidden states and nothing else, and what ``score`` raises.
    """
    model, layers = stored.model, decoder_layers(stored.model)
    specs = {FP32: None, **specs}
    inside = {name for layer in layers for name in stored.names_under(layer)}
    head = model.get_output_embeddings()
    of_head = stored.names_under(head)
    embedding = set(stored.names_under(model.get_input_embeddings()))
    around = [name for name in stored.names if name not in inside]
    first = [name for name in around if name not in of_head or name in embedding]
    with stored.loaded(first):
        started = [
            _record(model, layers, ids) for ids in batches(tokens, batch_size, stored.device)
        ]
    calls = [calls for _, calls in started]
    states = {name: [begin for begin, _ in started] for name in specs}
    del started
    for number, layer in enumerate(layers):
        following = layers[number + 1 : number + 2]
        with stored.loaded(stored.names_under(layer)):
            stored.expect([n for other in following for n in stored.names_under(other)] or around)
            for name, spec in specs.items():
                weights = _quantized(stored, layer, spec)
                with weights.in_place(model):
                    for batch, of_layers in enumerate(calls):
                        states[name][batch] = of_layers[number].run(layer, states[name][batch])
                del weights
    with stored.loaded(around), _replaced(layers, [_hand_on] * len(layers)):

        def logits_of(batch: int, ids: Tensor) -> list[Iterator[Tensor]]:
            return [
                next_token_logits(model, ids, _Finished(model, layers, states[name][batch], spec))
                for name, spec in specs.items()
            ]

        return score_logits(
            list(specs), tokens, logits_of, batch_size=batch_size, device=stored.device
        )


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model, found as the list of modules that holds most weights."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise CannotStream(f"{type(model).__name__} has no list of layers")
    return list(max(lists, key=lambda found: sum(p.numel() for p in found.parameters())))


def _hand_on(*args: object, **kwargs: object) -> Tensor:
    """A layer that changes nothing."""
    return args[0] if args else kwargs[_STATES]


@contextmanager
def _replaced(layers: Sequence[nn.Module], forwards: Sequence[Callable]) -> Iterator[None]:
    """The layers with other forward passes, in the order of ``layers``."""
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer, forward in zip(layers, forwards, strict=True):
        layer.__dict__["forward"] = forward
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            del layer.__dict__["forward"]
            if forward is not None:
                layer.__dict__["forward"] = forward


def _record(
    model: nn.Module, layers: Sequence[nn.Module], ids: Tensor
) -> tuple[Tensor, list[_Call]]:
    """What goes into the first layer, and how the model calls each of them."""
    made: list[tuple[int, Tensor, _Call]] = []

    def recorder(number: int) -> Callable:
        def forward(*args: object, **kwargs: object) -> Tensor:
            states = _hand_on(*args, **kwargs)
            rest = {key: value for key, value in kwargs.items() if key != _STATES}
            made.append((number, states, _Call(args[1:], rest)))
            return states

        return forward

    with _replaced(layers, [recorder(number) for number in range(len(layers))]):
        model.base_model(input_ids=ids, use_cache=False)
    in_order = [number for number, _, _ in made] == list(range(len(layers)))
    if not in_order or any(states is not made[0][1] for _, states, _ in made):
        raise CannotStream(f"{type(model).__name__} does more than run its layers one by one")
    return made[0][1], [call for _, _, call in made]


def _quantized(stored: StoredModel, module: nn.Module, spec: QuantizerSpec | None) -> OnUse:
    """The module's quantized weights, held; none at full precision."""
    if spec is None:
        return OnUse([], None)
    inside = set(stored.names_under(module))
    made = quantized_on_use(stored.model, spec)
    held = {name: made[name] for name in made if name in inside}
    return OnUse(list(held), held.__getitem__)


class _Finished(OnUse):
    """Lets the layers give the ``states`` that they gave; the head is quantized on use."""

    def __init__(
        self, model: nn.Module, layers: Sequence[nn.Module], states: Tensor,
        spec: QuantizerSpec | None,
    ) -> None:  # fmt: skip
        inside = {id(p) for layer in layers for p in layer.parameters()}
        made = {} if spec is None else quantized_on_use(model, spec)
        own = dict(model.named_parameters())
        super().__init__([n for n in made if id(own[n]) not in inside], made.__getitem__)
        self._last, self._states = layers[-1], states

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """Let the model run from behind its last layer."""
        with _replaced([self._last], [lambda *_, **__: self._states]), super().in_place(model):
            yield
