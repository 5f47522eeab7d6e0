"""Small fingerprints of checkpoints, from which distances can be told without the weights.

Weights are deleted once they are measured, yet whether a revision lies where it belongs
shows only beside the others. So of each checkpoint a random projection is kept: each
weight is given a random sign and added to one of ``BUCKETS`` sums (a count sketch:
Charikar, Chen and Farach-Colton, 2002, with the bucket taken in turn). Signs depend on the
tensor's name only, so that sketches of two checkpoints can be subtracted, and the squared
length of the difference estimates, without bias, the squared L2 distance of all weights;
its relative standard error is about sqrt(2 / BUCKETS), 1 % for a distance itself. Single
tensors have the same in fewer sums, 9 % for a distance.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from flatminima.model import read_weights, tensor_digests

BUCKETS = 4093  # a prime: no row or column of a matrix keeps falling into the same sum
TENSOR_BUCKETS = 61
WHOLE = "all"  # the row of a checkpoint as a whole
_FOLD = np.arange(BUCKETS) % TENSOR_BUCKETS


def _signs(name: str, count: int) -> np.ndarray:
    """Random signs of a tensor's weights, ``[count]`` of -1 and 1 in float32."""
    seed = list(hashlib.sha256(name.encode()).digest()[:16])
    bits = np.random.default_rng(seed).bytes(-(-count // 8))
    drawn = np.unpackbits(np.frombuffer(bits, np.uint8), count=count)
    return 1.0 - 2.0 * drawn.astype(np.float32)


def sketch(name: str, weights: np.ndarray) -> np.ndarray:
    """Sketch of one tensor, float64 ``[BUCKETS]``; those of all tensors are added up.

    ``weights`` is the tensor in any shape.
    """
    flat = np.asarray(weights, dtype=np.float32).ravel()
    signed = np.zeros(-(-flat.size // BUCKETS) * BUCKETS, dtype=np.float32)
    np.multiply(flat, _signs(name, flat.size), out=signed[: flat.size])
    return signed.reshape(-1, BUCKETS).sum(axis=0, dtype=np.float64)


def fingerprint_checkpoint(step: int, path: str | Path) -> pd.DataFrame:
    """Rows of one checkpoint: step, tensor, shape, n_weights, sha256, sum_of_squares, sketch.

    One row per tensor with a sketch of ``TENSOR_BUCKETS`` sums, and one called ``all`` of
    ``BUCKETS``. ``shape`` is text such as ``64x192``; sums are in float64.
    """
    digests = tensor_digests(path)
    rows, whole = [], np.zeros(BUCKETS)
    for name, tensor in read_weights(path):
        values = tensor.float().numpy()
        sums = sketch(name, values)
        whole += sums
        folded = np.bincount(_FOLD, weights=sums).tolist()
        squares = float(np.square(values, dtype=np.float64).sum())
        shape = "x".join(map(str, values.shape))
        rows.append((step, name, shape, values.size, digests[name], squares, folded))
    total = sum(row[3] for row in rows), sum(row[5] for row in rows)
    rows.append((step, WHOLE, "", total[0], "", total[1], whole.tolist()))
    columns = ["step", "tensor", "shape", "n_weights", "sha256", "sum_of_squares", "sketch"]
    return pd.DataFrame(rows, columns=columns)


def distances(fingerprints: pd.DataFrame, steps: Sequence[int]) -> np.ndarray:
    """Estimated L2 distance of all weights between each two of ``steps``, ``[steps, steps]``.

    Exactly zero for equal weights.
    """
    whole = fingerprints[fingerprints["tensor"] == WHOLE].set_index("step")["sketch"]
    sketches = np.stack([np.asarray(whole[step], dtype=np.float64) for step in steps])
    return np.stack([np.sqrt(np.square(sketches - one).sum(axis=1)) for one in sketches])
