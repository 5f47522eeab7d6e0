"""Fake-quantizing one matrix of Pythia-160m, INT4 in groups of 128, in one pass."""

from collections.abc import Callable, Sequence
from itertools import cycle

import torch
from torch import Tensor

from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import fake_quantize
from workflow_scripts.bench.peers import quantizers
from workflow_scripts.bench.results import Result, Target, judged
from workflow_scripts.bench.timing import Settings, median, ratio, side_by_side

ROW = "quantize"
SHAPE = (3072, 768)
SPEC = AffineQuantizer(bits=4, granularity="group", symmetric=False, group_size=128)
MATRICES = 12  # in turns, 113 MB: as in a model, none is still in the cache
COPY, OURS = "plain copy", "ours"


def _in_turns(action: Callable, matrices: Sequence[Tensor]) -> Callable[[], object]:
    """``action`` on the next matrix whenever it is called."""
    following = cycle(matrices)
    return lambda: action(next(following))


def run(settings: Settings) -> list[Result]:
    """Ours against each tool, against a copy."""
    device = settings.device
    shape = (96, 768) if settings.quick else SHAPE
    matrices = [torch.randn(shape, device=device) * 0.02 for _ in range(MATRICES)]
    tools, _ = quantizers()
    actions = {OURS: lambda w: fake_quantize(w, SPEC), COPY: torch.clone, **tools}
    turns = {name: _in_turns(action, matrices) for name, action in actions.items()}
    seconds = side_by_side(turns, settings.rounds(15), settings, inner=MATRICES)
    results = [_faster(seconds, name, None) for name in tools]
    if tools:
        best = min(tools, key=lambda name: ratio(seconds[name], seconds[OURS]))
        results.append(_faster(seconds, best, Target("≥", 15), what="against the best of them"))
    results += [
        _slower(seconds, "from memory", Target("≤", 2)),
        _slower(_cached(settings, matrices[0]), "in the cache", None),
    ]
    return results


def _cached(settings: Settings, matrix: Tensor) -> dict[str, list[float]]:
    actions = {OURS: lambda: fake_quantize(matrix, SPEC), COPY: matrix.clone}
    return side_by_side(actions, settings.rounds(15), settings, inner=MATRICES)


def _faster(seconds: dict, name: str, target: Target | None, what: str = "one pass") -> Result:
    return judged(
        target, row=ROW, what=f"INT4 g128, {what}", against=name,
        ours=1e3 * median(seconds[OURS]), theirs=1e3 * median(seconds[name]), unit="ms",
        ratio=ratio(seconds[name], seconds[OURS]), means="times faster:",
    )  # fmt: skip


def _slower(seconds: dict, where: str, target: Target | None) -> Result:
    return judged(
        target, row=ROW, what=f"INT4 g128, weights {where}", against=COPY,
        ours=1e3 * median(seconds[OURS]), theirs=1e3 * median(seconds[COPY]), unit="ms",
        ratio=ratio(seconds[OURS], seconds[COPY]), means="times as long:",
    )  # fmt: skip
