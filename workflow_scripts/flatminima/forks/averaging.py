"""Weights averaged over checkpoints of one run, without training (section 6); float64 sums."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from flatminima.model import load_model


def average_model(
    folders: Sequence[str | Path], shares: Sequence[float], device: str = "cpu"
) -> nn.Module:
    """The last checkpoint's model with the weighted mean of all of them, in float32.

    One checkpoint is in memory at a time, beside the sums. Raises ``ValueError`` where one
    has other weights than the first.
    """
    sums: dict[str, Tensor] = {}
    for folder, share in zip(folders, shares, strict=True):
        model = load_model(folder)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        if not sums:
            sums = {n: torch.zeros(w.shape, dtype=torch.float64) for n, w in weights.items()}
        shapes = {name: weight.shape for name, weight in weights.items()}
        if shapes != {name: total.shape for name, total in sums.items()}:
            raise ValueError(f"{folder}: its weights are not those of {folders[0]}")
        for name, weight in weights.items():
            sums[name].add_(weight.to(torch.float64), alpha=share)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(sums[name])
    return model.to(device)
