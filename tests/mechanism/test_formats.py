"""Four-bit formats against their published code books and another library."""

import numpy as np
import pytest
import torch

from flatminima.mechanism.formats import (
    E2M1,
    FORMATS,
    fake_quantize_format,
    nearest,
    nf4_code,
    signed_e2m1,
)

# The code book that QLoRA's authors publish (appendix E), as float32.
PUBLISHED_NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip


def weights(rows=7, columns=128, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    )


def test_nf4_are_the_published_quantiles():
    # Theirs went through float32 before the quantiles were taken: 4e-4 at most.
    assert np.abs(nf4_code() - PUBLISHED_NF4).max() < 4e-4
    assert nf4_code()[7] == 0.0 and nf4_code()[0] == -1.0 and nf4_code()[15] == 1.0


def test_e2m1_are_all_values_that_its_bits_can_spell():
    spelled = []
    for exponent in range(4):
        for mantissa in range(2):
            scale = 2.0 ** max(exponent - 1, 0)
            spelled.append(scale * ((exponent > 0) + mantissa / 2))
    assert sorted(spelled) == list(E2M1)
    assert len(signed_e2m1()) == 15 and (np.diff(signed_e2m1()) > 0).all()


def test_mxfp4_gives_the_values_of_another_library():
    quants = pytest.importorskip("gguf.quants")
    kind = quants.GGMLQuantizationType.MXFP4
    ours = fake_quantize_format(weights(), "mxfp4").numpy()
    theirs = quants.dequantize(quants.quantize(weights().numpy(), kind), kind)
    assert np.allclose(ours, theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_code_times_scale_and_no_other_code_is_nearer(name):
    w = weights(columns=100)  # the last block holds a remainder
    q = fake_quantize_format(w, name)
    assert q.shape == w.shape and q.dtype == torch.float32
    # Rounding again changes nothing but where the largest value of a block has moved.
    if name == "nf4":
        assert torch.allclose(fake_quantize_format(q, name), q, atol=1e-6)
        block = w[0, :64] / w[0, :64].abs().max()
        code = torch.from_numpy(nf4_code()).float()
        best = code[(block[:, None] - code).abs().argmin(dim=1)] * w[0, :64].abs().max()
        assert torch.allclose(q[0, :64], best)
    # An element beyond 6 times its scale is cut by at most a quarter.
    assert ((q - w).abs() <= 0.25 * w.abs().amax()).all()


def test_mxfp4_scale_is_the_power_of_two_that_the_specification_names():
    w = torch.zeros(1, 32)
    w[0, 0], w[0, 1] = 6.0, 2.9
    assert fake_quantize_format(w, "mxfp4")[0, :2].tolist() == [6.0, 3.0]
    w[0, 0] = 7.9  # same power of two, so it saturates at 6
    assert fake_quantize_format(w, "mxfp4")[0, 0] == 6.0
    w[0, 0] = 8.0
    assert fake_quantize_format(w, "mxfp4")[0, :2].tolist() == [8.0, 3.0]


@pytest.mark.parametrize("name", FORMATS)
def test_zero_blocks_stay_zero(name):
    w = weights()
    w[2] = 0.0
    q = fake_quantize_format(w, name)
    assert torch.isfinite(q).all() and (q[2] == 0).all()


def test_another_name_is_one_line():
    with pytest.raises(ValueError, match="format 'fp4': nf4, mxfp4, nvfp4"):
        fake_quantize_format(weights(), "fp4")


def test_nearest_takes_the_nearest_entry():
    code = np.array([-1.0, 0.0, 0.5, 2.0])
    values = torch.tensor([-9.0, -0.51, -0.49, 0.26, 1.24, 1.26, 7.0])
    assert nearest(values, code).tolist() == [-1.0, -1.0, 0.0, 0.5, 0.5, 2.0, 2.0]
