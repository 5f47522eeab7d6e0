"""Activations beside weights: their kurtosis, W4A4 beside W4, and anisotropy.

*Kurtosis*: the paper holds weight kurtosis against a work that measures activations. Its
measure is taken token by token: fourth moment about zero over the squared variance, less 3,
values below 0 set to 0, then the mean over tokens (dmis-lab/Outlier-Safe-Pre-Training,
``evaluate_kurtosis.py``).

*Anisotropy*: Godey et al. (arXiv 2404.07647) tie the late loss of quality of small Pythia
models to a head whose vectors crowd into one direction: a mean cosine that rises and singular
values that are dominated by the first ones.

Every measurement is a row with measure, name, value, low, high and n. Intervals are over
sequences; values of the weights alone are exact and have none.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flatminima.intervals import summarise
from flatminima.mechanism.visits import Visit, embedding_names, matrices, mean_interval
from flatminima.quantizer_specs import FP32, AffineQuantizer, read_spec
from flatminima.quantizers import fake_quantize, quantized_weights
from flatminima.scoring import Forward, ModelForward, batches, score, scores_table

COLUMNS = ["step", "measure", "name", "value", "low", "high", "n"]
Rows = Iterator[tuple[str, str, float, float, float, int]]  # from measure to n of COLUMNS


def token_kurtosis(states: Tensor) -> Tensor:
    """Uncentred excess kurtosis of each token's vector, ``[..., features]`` to ``[...]``.

    Never below zero; zero for a constant vector.
    """
    states = states.double()
    fourth = (states**4).mean(dim=-1)
    variance = states.var(dim=-1, correction=0)
    excess = torch.where(variance > 0, fourth / variance**2 - 3.0, 0.0)
    return excess.clamp(min=0.0)


def mean_cosine(vectors: Tensor) -> float:
    """Mean cosine of all pairs of different rows of ``[n, d]``: 0 isotropic, 1 one direction."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    count = len(unit)
    return float((unit.sum(dim=0).pow(2).sum() - unit.pow(2).sum()) / (count * (count - 1)))


def singular_entropy(matrix: Tensor) -> float:
    """Entropy of the normalised singular values over that of equal ones: 1 isotropic, 0 rank 1."""
    values = torch.linalg.svdvals(matrix.double())
    return float(torch.special.entr(values / values.sum()).sum() / np.log(len(values)))


@torch.inference_mode()
def hidden_states(visit: Visit) -> Iterator[tuple[Tensor, ...]]:
    """Hidden states of each batch, ``[batch, length, features]`` each.

    State 0 is the embedding, the last one the output of the last block after its norm.
    """
    for ids in batches(visit.tokens, visit.batch_size, visit.device):
        yield visit.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states


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


def kurtosis_rows(visit: Visit) -> Rows:
    """Mean token kurtosis of each hidden state."""
    found = [
        [token_kurtosis(state).mean(dim=1).cpu().numpy() for state in states]
        for states in hidden_states(visit)
    ]
    rng = np.random.default_rng(0)
    for number, parts in enumerate(zip(*found, strict=True)):
        values = np.concatenate(parts)
        ends = mean_interval(values, visit.resamples, rng)
        yield "kurtosis", f"state{number}", values.mean(), *ends, len(values)


def rounding_rows(visit: Visit, settings: Mapping) -> Rows:
    """Loss added by rounding weights, activations and both, nats per token."""
    spec, plain = read_spec(settings["low_bit"]), ModelForward(visit.model)
    quantized = ModelForward(visit.model, quantized_weights(visit.model, spec))

    def rounded(forward: Forward) -> Forward:
        def run(ids: Tensor) -> Iterator[Tensor]:
            with rounded_inputs(visit.model, settings["bits"]):
                return forward(ids)

        return run

    forwards = {FP32: plain, "W": quantized, "A": rounded(plain), "W+A": rounded(quantized)}
    found = score(visit.tokens, forwards, batch_size=visit.batch_size, device=visit.device)
    table = summarise(scores_table(found, visit.step), ["step"], resamples=visit.resamples, seed=0)
    for name, row in table.set_index("quantizer").drop(index=FP32).iterrows():
        ends = np.log1p(row[["gap_low_pct", "gap_high_pct"]].to_numpy(float) / 100)
        yield "added_loss", name, row["delta_nll_nats_per_token"], *ends, row["n_sequences"]


def anisotropy_rows(visit: Visit) -> Rows:
    """Mean cosine and singular entropy of embedding and head; mean cosine of the last states."""
    weights = matrices(visit.model)
    for kind, name in embedding_names(visit.model).items():
        for measure in (mean_cosine, singular_entropy):
            value = measure(weights[name])
            yield measure.__name__, kind, value, value, value, len(weights[name])
    values = np.array([mean_cosine(one) for states in hidden_states(visit) for one in states[-1]])
    ends = mean_interval(values, visit.resamples, np.random.default_rng(0))
    yield "mean_cosine", "last state", values.mean(), *ends, len(values)


def activation_table(visit: Visit, settings: Mapping) -> pd.DataFrame:
    """All rows of one checkpoint; ``settings`` has low_bit (a definition) and bits."""
    rows = [*kurtosis_rows(visit), *rounding_rows(visit, settings), *anisotropy_rows(visit)]
    return pd.DataFrame([(visit.step, *row) for row in rows], columns=COLUMNS)
