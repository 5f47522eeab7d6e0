"""The pooled kurtosis in parts: the very number of the whole sample, in a part of its memory."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from flatminima import kurtosis
from flatminima.kurtosis import pooled_kurtosis

SHAPES = ([(3,)], [(64, 64), (64, 192), (5, 7)], [(1000, 333), (77, 129), (512, 512)])


def sample(shapes, scale: float = 1.0) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    drawn = [generator.standard_t(4, shape) * scale + 0.01 for shape in shapes]
    return [array.astype(np.float32) for array in drawn]


@pytest.mark.parametrize("part", [128, 1000, 4096, kurtosis.PART])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_in_parts_it_is_scipys_to_the_last_bit(part, shapes, scale, monkeypatch):
    monkeypatch.setattr(kurtosis, "PART", part)
    arrays = sample(shapes, scale)
    whole = np.concatenate([array.ravel() for array in arrays]).astype(float)
    assert pooled_kurtosis(arrays) == stats.kurtosis(whole)


def test_it_needs_a_part_of_the_memory_of_its_weights(monkeypatch):
    monkeypatch.setattr(kurtosis, "PART", 2**12)
    arrays = sample([(1000, 1000), (500, 1000)])
    tracemalloc.start()
    pooled_kurtosis(arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * sum(array.nbytes for array in arrays)
