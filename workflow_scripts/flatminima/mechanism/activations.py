"""Activations: their kurtosis as outlier-safe pre-training defines it, and W4A4 beside W4.

The paper holds weight kurtosis against a work that measures activations. Its measure is
taken token by token: fourth moment about zero over the squared variance, less 3, values
below 0 set to 0, then the mean over tokens (dmis-lab/Outlier-Safe-Pre-Training,
``evaluate_kurtosis.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flatminima.intervals import percentile_interval, summarise
from flatminima.mechanism.scoring import VARIANT
from flatminima.quantizer_specs import FP32, AffineQuantizer, AnyQuantizer
from flatminima.quantizers import fake_quantize, quantized_weights
from flatminima.scoring import Forward, ModelForward, batches, score

WEIGHTS, ACTIVATIONS, BOTH = "W", "A", "W+A"


def token_kurtosis(states: Tensor) -> Tensor:
    """Uncentred excess kurtosis of each token's vector, ``[..., features]`` to ``[...]``.

    Never below zero; zero for a constant vector.
    """
    states = states.double()
    fourth = (states**4).mean(dim=-1)
    variance = states.var(dim=-1, correction=0)
    excess = torch.where(variance > 0, fourth / variance**2 - 3.0, 0.0)
    return excess.clamp(min=0.0)


@torch.inference_mode()
def hidden_kurtosis(
    model: nn.Module, tokens: np.ndarray, *, batch_size: int, resamples: int, device: str = "cpu"
) -> list[dict]:
    """Mean token kurtosis of each hidden state, with an interval over sequences.

    State 0 is the embedding, the last one the output of the last block after its norm.
    """
    found: list[list[np.ndarray]] = []
    for ids in batches(tokens, batch_size, device):
        states = model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        found.append([token_kurtosis(state).mean(dim=1).cpu().numpy() for state in states])
    rng = np.random.default_rng(0)
    rows = []
    for number, parts in enumerate(zip(*found, strict=True)):
        values = np.concatenate(parts)
        drawn = rng.integers(0, len(values), (resamples, len(values)))
        low, high = percentile_interval(values[drawn].mean(axis=1))
        rows.append({"measure": "kurtosis", "name": f"state{number}", "value": values.mean(),
                     "low": low, "high": high, "n": len(values)})  # fmt: skip
    return rows


@contextmanager
def rounded_inputs(model: nn.Module, bits: int) -> Iterator[None]:
    """Round the input of every linear layer but the head: symmetric, a scale for each token."""
    spec = AffineQuantizer(bits=bits, granularity="channel", symmetric=True)
    head = model.get_output_embeddings()

    def rounded(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states = inputs[0]
        return (fake_quantize(states.reshape(-1, states.shape[-1]), spec).reshape(states.shape),)

    hooks = [
        module.register_forward_pre_hook(rounded)
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not head
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def weights_and_activations(
    model: nn.Module,
    tokens: np.ndarray,
    spec: AnyQuantizer,
    *,
    bits: int,
    step: int,
    batch_size: int,
    resamples: int,
    device: str = "cpu",
) -> list[dict]:
    """Loss added by rounding weights, activations (``bits``) and both, nats per token."""
    whole, quantized = ModelForward(model), ModelForward(model, quantized_weights(model, spec))

    def rounded(forward: Forward) -> Forward:
        def run(ids: Tensor) -> Iterator[Tensor]:
            with rounded_inputs(model, bits):
                return forward(ids)

        return run

    forwards = {
        FP32: whole, WEIGHTS: quantized, ACTIVATIONS: rounded(whole), BOTH: rounded(quantized),
    }  # fmt: skip
    records = score(tokens, forwards, batch_size=batch_size, device=device)
    tables = [r.table(step, n, FP32 if n == FP32 else VARIANT) for n, r in records.items()]
    scores = pd.concat(tables, ignore_index=True)
    table = summarise(scores, ["step"], resamples=resamples, seed=0).set_index("quantizer")
    return [
        {"measure": "added_loss", "name": name, "value": row["delta_nll_nats_per_token"],
         "low": np.log1p(row["gap_low_pct"] / 100), "high": np.log1p(row["gap_high_pct"] / 100),
         "n": row["n_sequences"]}
        for name, row in table.loc[[WEIGHTS, ACTIVATIONS, BOTH]].iterrows()
    ]  # fmt: skip
