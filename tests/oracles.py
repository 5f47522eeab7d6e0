"""Slow, plain computations that the library's results are held against.

Nothing here imports the library or torch. Sums, products and quotients of two float32
numbers that are computed in float64 and then rounded to float32 are what IEEE single
precision gives (float64 has more than twice the digits), so ``quantize_group`` says to
the bit what float32 arithmetic must give, wherever no result is subnormal.
"""

import math
from statistics import NormalDist

import numpy as np

SMALLEST_NORMAL = 2.0**-126


def single(value: float) -> float:
    """A float64 number rounded to float32."""
    return float(np.float32(value))


def quantize_group(weights, bits: int, symmetric: bool):
    """Values, codes, zero point and scale of one group of float32 weights.

    Codes and zero point are ``None`` where the group is kept as it is.
    """
    weights = [float(w) for w in weights]
    low, high = min(weights), max(weights)
    if symmetric:
        first, last = -(2 ** (bits - 1) - 1), 2 ** (bits - 1) - 1
        scale = single(max(abs(low), abs(high)) / last)
    else:
        first, last = 0, 2**bits - 1
        scale = single(single(high - low) / last)
    if scale < SMALLEST_NORMAL:
        return weights, None, None, scale
    zero = 0.0 if symmetric else single(round(single(-low / scale)))
    codes = []
    values = []
    for weight in weights:
        code = single(round(single(weight / scale)) + zero)
        code = min(max(code, first), last)
        codes.append(code)
        values.append(single(single(code - zero) * scale))
    return values, codes, zero, scale


def quantize_matrix(weight: np.ndarray, bits: int, granularity: str, symmetric: bool, group_size):
    """Values of a float32 ``[out, in]`` matrix, and ``(row, start, stop, scale)`` of each group."""
    rows, columns = weight.shape
    if granularity == "tensor":
        values, _, _, scale = quantize_group(weight.reshape(-1), bits, symmetric)
        return np.array(values, np.float32).reshape(weight.shape), [(None, 0, columns, scale)]
    size = columns if granularity == "channel" else group_size
    result = np.empty_like(weight)
    groups = []
    for row in range(rows):
        for start in range(0, columns, size):
            stop = min(start + size, columns)
            values, _, _, scale = quantize_group(weight[row, start:stop], bits, symmetric)
            result[row, start:stop] = values
            groups.append((row, start, stop, scale))
    return result, groups


def nf4_book() -> list[float]:
    """Eight positive and seven negative quantiles and zero, scaled to a largest value of 1."""
    offset = 0.9677083
    quantile = NormalDist().inv_cdf
    positive = [quantile(offset + (0.5 - offset) * i / 8) for i in range(8)]
    negative = [-quantile(offset + (0.5 - offset) * i / 7) for i in range(7)]
    return sorted(x / positive[0] for x in [*positive, 0.0, *negative])


def quantize_code_book(weight: np.ndarray, kind: str) -> np.ndarray:
    """Values of a float32 ``[out, in]`` matrix in nf4, mxfp4 or nvfp4, in plain float64.

    The code of nf4 are quantiles of the normal distribution (QLoRA, appendix E); e2m1 is
    spelled from its bits (OCP Microscaling Formats 1.0, table 5).
    """
    spelled = [2.0 ** max(e - 1, 0) * ((e > 0) + m / 2) for e in range(4) for m in range(2)]
    book = np.array(
        nf4_book() if kind == "nf4" else sorted({s * x for x in spelled for s in (-1, 1)})
    )
    size = {"nf4": 64, "mxfp4": 32, "nvfp4": 16}[kind]
    tensor_scale = abs(weight).max() / (6 * 448)
    result = np.zeros_like(weight)
    for row in range(len(weight)):
        for start in range(0, weight.shape[1], size):
            block = weight[row, start : start + size].astype(np.float64)
            largest = abs(block).max()
            if largest == 0:
                continue
            if kind == "nf4":
                scale = largest
            elif kind == "mxfp4":
                scale = 2.0 ** (math.floor(math.log2(largest)) - 2)
            else:
                scale = _e4m3(largest / 6 / tensor_scale) * tensor_scale
            if scale > 0:
                nearest = abs(block[:, None] / scale - book).argmin(axis=1)
                result[row, start : start + size] = book[nearest] * scale
    return result


def _e4m3(value: float) -> float:
    """Rounded to four exponent and three mantissa bits, ties to even, 448 at most."""
    exponent = max(math.floor(math.log2(value)), -6)
    step = 2.0 ** (exponent - 3)
    return min(round(value / step) * step, 448.0)


def log_softmax(logits) -> list[float]:
    """Log-probabilities of one position, in float64."""
    logits = [float(x) for x in logits]
    top = max(logits)
    normaliser = top + math.log(math.fsum(math.exp(x - top) for x in logits))
    return [x - normaliser for x in logits]


def token_scores(reference_logits, logits, tokens):
    """NLL, KL from the reference and top-1 change of each scored token of one sequence.

    ``logits`` is ``[length, vocabulary]``: row t predicts token t + 1.
    """
    scores = []
    for position in range(len(tokens) - 1):
        p = log_softmax(reference_logits[position])
        q = log_softmax(logits[position])
        nll = -q[int(tokens[position + 1])]
        kl = math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))
        scores.append((nll, kl, p.index(max(p)) != q.index(max(q))))
    return scores


class BigramAdamW:
    """A bigram model (logits = table[token] + bias) trained by a textbook AdamW, in float64.

    Decoupled weight decay on the table and none on the bias, the gradient clipped by
    its global norm, moments corrected for their start at zero.
    """

    def __init__(self, table, bias, *, beta1, beta2, eps, weight_decay, clip_norm):
        self.weights = {"table": np.array(table, float), "bias": np.array(bias, float)}
        self.first = {name: np.zeros_like(w) for name, w in self.weights.items()}
        self.second = {name: np.zeros_like(w) for name, w in self.weights.items()}
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.decay = {"table": weight_decay, "bias": 0.0}
        self.clip_norm = clip_norm
        self.updates = 0

    def loss_and_gradients(self, ids):
        """Mean NLL of a batch ``[sequences, length]`` and its gradient by weight."""
        gradients = {name: np.zeros_like(w) for name, w in self.weights.items()}
        pairs = [(a, b) for row in ids for a, b in zip(row[:-1], row[1:], strict=True)]
        loss = 0.0
        for token, target in pairs:
            log_probabilities = log_softmax(self.weights["table"][token] + self.weights["bias"])
            loss -= log_probabilities[target] / len(pairs)
            slope = np.exp(log_probabilities)
            slope[target] -= 1.0
            gradients["table"][token] += slope / len(pairs)
            gradients["bias"] += slope / len(pairs)
        return loss, gradients

    def update(self, ids, lr: float) -> float:
        """One update; returns the loss before it."""
        loss, gradients = self.loss_and_gradients(ids)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
        self.updates += 1
        for name, gradient in gradients.items():
            gradient = gradient * min(1.0, self.clip_norm / norm)
            self.first[name] += (1 - self.beta1) * (gradient - self.first[name])
            self.second[name] += (1 - self.beta2) * (gradient**2 - self.second[name])
            mean = self.first[name] / (1 - self.beta1**self.updates)
            spread = self.second[name] / (1 - self.beta2**self.updates)
            self.weights[name] *= 1 - lr * self.decay[name]
            self.weights[name] -= lr * mean / (np.sqrt(spread) + self.eps)
        return loss
