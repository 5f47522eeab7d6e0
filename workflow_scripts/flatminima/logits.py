"""Next-token logits of a model with other weights in place of some of its own.

The logits of a batch are ``[tokens, vocabulary]``, for Pythia 50,304 numbers a token and
by far the largest thing that a measurement makes. Where they would take more than
``LOGITS_AT_ONCE``, the head is applied to some positions at a time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

LOGITS_AT_ONCE = 2**23  # numbers; 32 MiB, which the caches of processors hold for the most part
_TRIED = 4  # positions on which a head is tried


def next_token_logits(
    model: nn.Module, ids: Tensor, weights: Mapping[str, Tensor], at_once: int = LOGITS_AT_ONCE
) -> Iterator[Tensor]:
    """Logits of the positions that are scored, ``[some positions, vocabulary]`` at a time.

    ``ids`` is ``[batch, length]``; positions come sequence by sequence, the last of each
    left out. ``weights`` replaces parameters by name for this forward pass. Pieces of
    the same model are equally long whatever the weights are.
    """
    head = head_in_pieces(model, ids, at_once)
    if head is None:
        yield _all_logits(model, ids, weights)[:, :-1].flatten(0, 1)
        return
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    weight = weights.get(named[id(head.weight)], head.weight)
    bias = head.bias if head.bias is None else weights.get(named[id(head.bias)], head.bias)
    states = _final_states(model, ids, weights)[:, :-1].flatten(0, 1)
    for part in states.split(max(1, at_once // head.out_features)):
        yield nn.functional.linear(part, weight, bias)


def head_in_pieces(
    model: nn.Module, ids: Tensor, at_once: int = LOGITS_AT_ONCE
) -> nn.Linear | None:
    """The head where it is to be applied to some positions of ``[batch, length]`` at a time.

    ``None`` where all logits are small enough, or are not just what a linear head makes.
    """
    head = _plain_head(model)
    if head is None or ids.numel() * head.out_features <= at_once or not _is_plain(model, head):
        return None
    return head


def _all_logits(model: nn.Module, ids: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    arguments = {"input_ids": ids, "use_cache": False}
    if isinstance(weights, OnUse):
        with weights.in_place(model):
            return model(**arguments).logits
    return functional_call(model, dict(weights), (), arguments).logits


def _final_states(model: nn.Module, ids: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """What the head is applied to, ``[batch, length, width]``."""
    arguments = {"input_ids": ids, "use_cache": False}
    if isinstance(weights, OnUse):
        with weights.in_place(model):
            return model.base_model(**arguments).last_hidden_state
    prefix = f"{model.base_model_prefix}."
    inner = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
    return functional_call(model.base_model, inner, (), arguments).last_hidden_state


def _plain_head(model: nn.Module) -> nn.Linear | None:
    """The head where it is a linear layer on top of a model that can run without it."""
    find = getattr(model, "get_output_embeddings", None)
    head = find() if find else None
    alone = getattr(model, "base_model", model) is not model
    return head if alone and isinstance(head, nn.Linear) else None


@torch.no_grad()
def _is_plain(model: nn.Module, head: nn.Linear) -> bool:
    """Whether logits are the head's outputs and nothing else; some families scale or cap them."""
    if model.config.model_type == "gpt_neox":
        return True
    ids = torch.arange(_TRIED, device=head.weight.device)[None]
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.allclose(logits, head(_final_states(model, ids, {})), rtol=1e-5, atol=1e-6)


class OnUse(Mapping):
    """Weights that are made when their layer runs and gone when it has run.

    Never more than one layer's are there at a time. ``make`` is what makes one from its name.
    """

    def __init__(self, names: list[str], make: object) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """Let each layer of ``model`` run with its weight of this mapping."""
        own, hooks = {}, []

        def put(module: nn.Module, name: str, attribute: str) -> None:
            module._parameters[attribute] = nn.Parameter(self[name], requires_grad=False)

        def restore(module: nn.Module, attribute: str) -> None:
            module._parameters[attribute] = own[module, attribute]

        for name in self._names:
            path, _, attribute = name.rpartition(".")
            module = model.get_submodule(path)
            own[module, attribute] = module._parameters[attribute]
            hooks += [
                module.register_forward_pre_hook(lambda m, _, n=name, a=attribute: put(m, n, a)),
                module.register_forward_hook(lambda m, *_, a=attribute: restore(m, a)),
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for module, attribute in own:
                restore(module, attribute)
