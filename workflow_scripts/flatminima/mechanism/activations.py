"""Activations and weights: kurtosis of activations, W4A4 compared with W4, and anisotropy.

*Kurtosis*: the paper compares weight kurtosis with a work that measures activations. Its
measure is taken per token: the fourth moment about zero over the squared variance, minus 3,
with negative values set to 0, and then the mean over tokens
(dmis-lab/Outlier-Safe-Pre-Training, ``evaluate_kurtosis.py``).

*Anisotropy*: Godey et al. (arXiv 2404.07647) explain the late loss of quality of small Pythia
models by a head whose vectors crowd into one direction. The mean cosine rises then, and the
first singular values dominate.

Every measurement is a row with measure, name, value, low, high and n. Intervals are over
sequences. Numbers that only depend on weights are exact and have no interval.
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
    # The squared norm of the sum contains all pairs, and each vector with itself.
    different_pairs = unit.sum(dim=0).pow(2).sum() - unit.pow(2).sum()
    return float(different_pairs / (count * (count - 1)))


def singular_entropy(matrix: Tensor) -> float:
    """Entropy of the normalised singular values over that of equal ones: 1 isotropic, 0 rank 1."""
    singular_values = torch.linalg.svdvals(matrix.double())
    shares = singular_values / singular_values.sum()
    return float(torch.special.entr(shares).sum() / np.log(len(singular_values)))


@torch.inference_mode()
def hidden_states(visit: Visit) -> Iterator[tuple[Tensor, ...]]:
    """Hidden states of each batch, ``[batch, length, features]`` each.

    State 0 is the embedding, the last one the output of the last block after its norm.
    """
    for ids in batches(visit.tokens, visit.batch_size, visit.device):
        yield visit.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states


@contextmanager
def rounded_inputs(model: nn.Module, bits: int) -> Iterator[None]:
    """Round the input of every linear layer except the head: symmetric, with a scale per token."""
    spec = AffineQuantizer(bits=bits, granularity="channel", symmetric=True)
    head = model.get_output_embeddings()

    def round_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states = inputs[0]
        # A channel of the quantizer is a row. Rows are tokens here, so each token has a scale.
        per_token = states.reshape(-1, states.shape[-1])
        return (fake_quantize(per_token, spec).reshape(states.shape),)

    hooks = [
        module.register_forward_pre_hook(round_input)
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
    by_batch = [
        [token_kurtosis(state).mean(dim=1).cpu().numpy() for state in states]
        for states in hidden_states(visit)
    ]
    rng = np.random.default_rng(0)
    for number, state_by_batch in enumerate(zip(*by_batch, strict=True)):
        sequence_means = np.concatenate(state_by_batch)
        low, high = mean_interval(sequence_means, visit.resamples, rng)
        mean = sequence_means.mean()
        yield "kurtosis", f"state{number}", mean, low, high, len(sequence_means)


def rounding_rows(visit: Visit, settings: Mapping) -> Rows:
    """Loss added by rounding weights, activations and both, nats per token."""
    spec = read_spec(settings["low_bit"])
    plain = ModelForward(visit.model)
    quantized = ModelForward(visit.model, quantized_weights(visit.model, spec))

    def with_rounded_inputs(forward: Forward) -> Forward:
        def forward_rounded(ids: Tensor) -> Iterator[Tensor]:
            with rounded_inputs(visit.model, settings["bits"]):
                return forward(ids)

        return forward_rounded

    forwards = {
        FP32: plain,
        "W": quantized,
        "A": with_rounded_inputs(plain),
        "W+A": with_rounded_inputs(quantized),
    }
    scores = score(visit.tokens, forwards, batch_size=visit.batch_size, device=visit.device)
    table = summarise(scores_table(scores, visit.step), ["step"], resamples=visit.resamples, seed=0)
    for name, row in table.set_index("quantizer").drop(index=FP32).iterrows():
        # The loss is ln(1 + gap / 100), so its interval follows from that of the gap.
        low, high = np.log1p(row[["gap_low_pct", "gap_high_pct"]].to_numpy(float) / 100)
        added_loss = row["delta_nll_nats_per_token"]
        yield "added_loss", name, added_loss, low, high, row["n_sequences"]


def anisotropy_rows(visit: Visit) -> Rows:
    """Mean cosine and singular entropy of embedding and head; mean cosine of the last states."""
    weights = matrices(visit.model)
    for kind, name in embedding_names(visit.model).items():
        for measure in (mean_cosine, singular_entropy):
            exact = measure(weights[name])
            yield measure.__name__, kind, exact, exact, exact, len(weights[name])

    sequence_cosines = np.array(
        [mean_cosine(sequence) for states in hidden_states(visit) for sequence in states[-1]]
    )
    low, high = mean_interval(sequence_cosines, visit.resamples, np.random.default_rng(0))
    mean = sequence_cosines.mean()
    yield "mean_cosine", "last state", mean, low, high, len(sequence_cosines)


def activation_table(visit: Visit, settings: Mapping) -> pd.DataFrame:
    """All rows of one checkpoint; ``settings`` has low_bit (a definition) and bits."""
    rows = [*kurtosis_rows(visit), *rounding_rows(visit, settings), *anisotropy_rows(visit)]
    return pd.DataFrame([(visit.step, *row) for row in rows], columns=COLUMNS)
