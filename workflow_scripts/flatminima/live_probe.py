"""The INT4 and INT8 gap of a model that is being trained, on its own evaluation set."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from flatminima.evaluation import score
from flatminima.intervals import gap_pct
from flatminima.quantizers import linear_weights, quantized_weights, read_specs
from flatminima.roles import FP32

# Definitions as under ``quantizers`` in config.yaml, and how much of the evaluation set.
DEFAULT_PROBE = {
    "quantizers": {
        "int4": {"bits": 4, "granularity": "group", "symmetric": False, "group_size": 128},
        "int8": {"bits": 8, "granularity": "channel", "symmetric": True},
    },
    "sequences": 64,
    "batch_size": 8,
}


def fit_groups(quantizers: Mapping[str, Mapping], model: nn.Module) -> dict[str, dict]:
    """The definitions with groups no longer than the smallest row of the model's linear layers."""
    smallest = min(weight.shape[1] for weight in linear_weights(model).values())
    return {
        name: {**spec, "group_size": min(spec["group_size"], smallest)}
        if spec.get("group_size")
        else dict(spec)
        for name, spec in quantizers.items()
    }


def loader_tokens(loader: DataLoader, sequences: int) -> np.ndarray:
    """The first ``sequences`` of an evaluation set as ``[sequences, length]`` token ids.

    The data set is read directly: starting a loader would draw from torch's random numbers,
    which training needs. Raises ``ValueError`` where the sequences are not of one length.
    """
    if loader is None or not hasattr(loader, "dataset"):
        raise ValueError("the trainer has no evaluation set")
    data = loader.dataset
    count = min(sequences, len(data))
    rows = []
    for index in range(count):
        row = data[index]
        mask = row.get("attention_mask")
        if mask is not None and not np.asarray(mask).all():
            raise ValueError(f"evaluation sequence {index} is padded; pack them to one length")
        rows.append(np.asarray(row["input_ids"], dtype=np.int32).reshape(-1))
    if not rows or len({len(row) for row in rows}) != 1:
        lengths = sorted({len(row) for row in rows})
        raise ValueError(f"evaluation sequences of {lengths} tokens; pack them to one length")
    return np.stack(rows)


@contextmanager
def _measuring(model: nn.Module) -> Iterator[nn.Module]:
    """The model in float32, evaluating, without TF32; everything is put back afterwards."""
    training = model.training
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    tf32 = matmul.allow_tf32, cudnn.allow_tf32
    exact = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = False
        yield model if exact else copy.deepcopy(model).float()
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = tf32
        model.train(training)


def probe_gaps(model: nn.Module, loader: DataLoader, settings: Mapping) -> dict[str, float]:
    """Gap in percent (equation 3) of each quantizer, as ``int4_gap_pct``.

    Neither the weights nor the state of the random numbers changes.
    """
    tokens = loader_tokens(loader, settings["sequences"])
    device = str(next(model.parameters()).device)
    with _measuring(model) as measured:
        specs = read_specs(fit_groups(settings["quantizers"], measured))
        variants = {name: quantized_weights(measured, spec) for name, spec in specs.items()}
        scores = score(measured, tokens, variants, batch_size=settings["batch_size"], device=device)
    fp32 = scores[FP32].mean_nll()
    return {
        f"{name}_gap_pct": float(gap_pct(record.mean_nll(), fp32))
        for name, record in scores.items()
        if name != FP32
    }
