"""Four-bit formats with a code book instead of evenly spaced levels.

``nf4``     NormalFloat of QLoRA (Dettmers et al., arXiv 2305.14314, appendix E): quantiles of
            the normal distribution, blocks of 64 scaled by their largest magnitude.
``mxfp4``   E2M1 elements in blocks of 32 with a power of two as scale (OCP Microscaling
            Formats specification 1.0, sections 5.3.3 and 6.3).
``nvfp4``   E2M1 elements in blocks of 16, an E4M3 scale for each block and one float32
            scale for the tensor.

All are weight-only and calibration-free like the paper's probe, and round to nearest.
"""

import numpy as np
import torch
from scipy import stats
from torch import Tensor

FORMATS = {"nf4": 64, "mxfp4": 32, "nvfp4": 16}  # weights that share a scale
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_EXPONENT = 2  # of the largest element, 6 = 1.5 * 2^2
_NF4_OFFSET = 0.9677083  # the outermost quantile: mean of 1 - 1/30 and 1 - 1/32
_E4M3_MAX = 448.0


def nf4_code() -> np.ndarray:
    """The 16 values of NF4 in rising order, from -1 to 1, with an exact zero."""
    positive = stats.norm.ppf(np.linspace(_NF4_OFFSET, 0.5, 9)[:-1])
    negative = -stats.norm.ppf(np.linspace(_NF4_OFFSET, 0.5, 8)[:-1])
    return np.sort(np.concatenate([negative, [0.0], positive])) / positive.max()


def signed_e2m1() -> np.ndarray:
    """The 15 different values of E2M1 in rising order."""
    values = np.array(E2M1)
    return np.concatenate([-values[:0:-1], values])


def nearest(values: Tensor, code: np.ndarray) -> Tensor:
    """Each value replaced by the nearest entry of a rising ``code`` (the lower one at a tie)."""
    book = torch.tensor(code, dtype=torch.float32, device=values.device)
    return book[torch.bucketize(values, (book[1:] + book[:-1]) / 2)]


def _scales(blocks: Tensor, name: str) -> Tensor:
    """Scale of each block ``[..., size]``, kept as an axis of length 1."""
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    if name == "nf4":
        return largest
    if name == "mxfp4":
        # frexp: largest = mantissa * 2^exponent with a mantissa in [0.5, 1), exact.
        exponent = torch.frexp(largest).exponent - 1 - _E2M1_EXPONENT
        return torch.where(largest > 0, torch.ldexp(torch.ones_like(largest), exponent), 0.0)
    whole = largest.max() / (E2M1[-1] * _E4M3_MAX)
    wanted = largest / E2M1[-1] / whole
    return wanted.to(torch.float8_e4m3fn).to(torch.float32) * whole


def fake_quantize_format(weight: Tensor, name: str) -> Tensor:
    """Quantize and dequantize ``[out, in]`` float32 weights in one of ``FORMATS``.

    The last block of a row holds the remainder. A block whose scale is zero becomes zero.
    Raises ``ValueError`` for another name.
    """
    if name not in FORMATS:
        raise ValueError(f"format {name!r}: {', '.join(FORMATS)}")
    code = nf4_code() if name == "nf4" else signed_e2m1()
    size, width = FORMATS[name], weight.shape[1]
    padded = torch.nn.functional.pad(weight, (0, -width % size))
    blocks = padded.reshape(len(weight), -1, size)
    scale = _scales(blocks, name)
    values = nearest(blocks / scale, code) * scale
    values = torch.where(scale > 0, values, 0.0)
    return values.reshape(padded.shape)[:, :width]
