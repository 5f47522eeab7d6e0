"""Anisotropy of embedding, head and last hidden states: the saturation of small models.

Godey et al. (arXiv 2404.07647) tie the late loss of quality of small Pythia models to a
head whose vectors crowd into one direction: a mean cosine that rises and singular values
that are dominated by the first ones. Both are measured here.
"""

import numpy as np
import torch
from torch import Tensor, nn

from flatminima.intervals import percentile_interval
from flatminima.mechanism.layers import embedding_names, matrices
from flatminima.scoring import batches


def mean_cosine(vectors: Tensor) -> float:
    """Mean cosine of all pairs of different rows of ``[n, d]``: 0 isotropic, 1 one direction."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    count = len(unit)
    return float((unit.sum(dim=0).pow(2).sum() - unit.pow(2).sum()) / (count * (count - 1)))


def singular_entropy(matrix: Tensor) -> float:
    """Entropy of the normalised singular values over that of equal ones: 1 isotropic, 0 rank 1."""
    values = torch.linalg.svdvals(matrix.double())
    shares = values / values.sum()
    entropy = -torch.where(shares > 0, shares * shares.log(), 0.0).sum()
    return float(entropy / np.log(len(values)))


@torch.inference_mode()
def state_cosines(model: nn.Module, tokens: np.ndarray, batch_size: int, device: str) -> np.ndarray:
    """Mean cosine of the last hidden states within each sequence, ``[sequences]``."""
    found = []
    for ids in batches(tokens, batch_size, device):
        states = model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        found += [mean_cosine(sequence) for sequence in states[-1]]
    return np.array(found)


def anisotropy(
    model: nn.Module, tokens: np.ndarray, *, batch_size: int, resamples: int, device: str = "cpu"
) -> list[dict]:
    """Rows with measure, name, value, interval and n of one checkpoint.

    Values of the weights are exact and have no interval; that of the states is over
    sequences.
    """
    rows = []
    weights = matrices(model)
    for kind, name in embedding_names(model).items():
        matrix = weights[name].detach()
        for measure, value in (
            ("mean_cosine", mean_cosine(matrix)), ("singular_entropy", singular_entropy(matrix)),
        ):  # fmt: skip
            rows.append({"measure": measure, "name": kind, "value": value, "low": value,
                         "high": value, "n": len(matrix)})  # fmt: skip
    values = state_cosines(model, tokens, batch_size, device)
    drawn = np.random.default_rng(0).integers(0, len(values), (resamples, len(values)))
    low, high = percentile_interval(values[drawn].mean(axis=1))
    rows.append({"measure": "mean_cosine", "name": "last state", "value": values.mean(),
                 "low": low, "high": high, "n": len(values)})  # fmt: skip
    return rows
