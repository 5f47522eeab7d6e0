"""FP32 perplexity of a Pythia-160m-shaped model on 2,048 tokens."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flatminima.quantizer_specs import FP32
from flatminima.scoring import ModelForward, score
from flatminima.tools.costs import describe_shape, forward_flop
from workflow_scripts.bench.models import VOCABULARY, fresh_model, random_tokens
from workflow_scripts.bench.results import Result, Target, judged
from workflow_scripts.bench.timing import Settings, median, ratio, side_by_side

ROW = "perplexity"
SEQUENCES, LENGTH = 4, 512
OURS, FULL, CHUNKED = "ours", "plain forward and cross-entropy", "the same with a chunked head"
LM_EVAL, PEAK = "lm-evaluation-harness, rolling log-likelihood", "matrix product"


class _Largest(TorchDispatchMode):
    """Notes how many elements the largest tensor has that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, tuple | list) else (made,):
            if isinstance(value, Tensor) and not func.is_view:
                self.elements = max(self.elements, value.numel())
        return made


@torch.inference_mode()
def plain(model: nn.Module, tokens: Tensor) -> float:
    """Mean NLL as tutorials compute it."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


@torch.inference_mode()
def chunked(model: nn.Module, tokens: Tensor) -> float:
    """The same, the head applied to 256 positions at a time."""
    states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
    head, total, targets = model.get_output_embeddings(), 0.0, tokens[:, 1:].flatten()
    for part, wanted in zip(states.flatten(0, 1).split(256), targets.split(256), strict=True):
        total += nn.functional.cross_entropy(head(part), wanted, reduction="sum").item()
    return total / targets.numel()


def _lm_eval(model: nn.Module, tokens: np.ndarray) -> Callable[[], float]:
    """What ``loglikelihood_rolling`` does with windows of token ids, on our model object."""
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    from flatminima.text.tokens import END_OF_TEXT, train_tokenizer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(["a few words"] * 9, 257), eos_token=END_OF_TEXT
    )
    device = next(model.parameters()).device.type
    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=SEQUENCES, device=device)
    windows = [(("", str(k)), row[:1].tolist(), row[1:].tolist()) for k, row in enumerate(tokens)]

    def run() -> float:
        found = wrapped._loglikelihood_tokens(windows, disable_tqdm=True)
        return -sum(value[0] for value in found) / (len(tokens) * (tokens.shape[1] - 1))

    return run


def run(settings: Settings) -> list[Result]:
    """Seconds beside the others, and the share of the machine's matrix products."""
    shape, sequences, length = ("14m", 2, 64) if settings.quick else ("160m", SEQUENCES, LENGTH)
    model = fresh_model(shape).to(settings.device)
    tokens = random_tokens(sequences, length)
    ids = torch.from_numpy(tokens.astype(np.int64)).to(settings.device)
    n = 512 if settings.quick else 2048
    matrices = [torch.randn(n, n, device=settings.device) for _ in range(2)]

    def ours() -> float:
        given = {"batch_size": sequences, "device": settings.device}
        return score(tokens, {FP32: ModelForward(model)}, **given)[FP32].mean_nll()

    actions = {
        OURS: ours,
        PEAK: lambda: [torch.mm(*matrices) for _ in range(8)],
        FULL: lambda: plain(model, ids),
        CHUNKED: lambda: chunked(model, ids),
    }
    note = ""
    try:
        actions[LM_EVAL] = _lm_eval(model, tokens)
    except Exception as error:  # not installed, or not made for this transformers
        note = f"{LM_EVAL} skipped: {' '.join(str(error).split())[:120]}"
    expected = actions[FULL]()
    for name in actions.keys() - {PEAK}:
        if not math.isclose(actions[name](), expected, rel_tol=1e-5):
            raise AssertionError(f"{name} finds another perplexity")
    seconds = side_by_side(actions, settings.rounds(5), settings)
    flop = forward_flop(describe_shape(model.config), sequences, length)
    return [
        *(_faster(seconds, name, note) for name in actions if name not in (OURS, PEAK)),
        _share(seconds, flop, 8 * 2 * n**3),
        _largest(ours, sequences * length * VOCABULARY),
    ]


def _faster(seconds: Mapping, name: str, note: str) -> Result:
    return judged(
        None, row=ROW, what="2,048 tokens", against=name, ours=median(seconds[OURS]),
        theirs=median(seconds[name]), unit="s", ratio=ratio(seconds[name], seconds[OURS]),
        means="times faster:", note=note if name == CHUNKED else "",
    )  # fmt: skip


def _share(seconds: Mapping, flop: float, flop_of_products: float) -> Result:
    ours = [flop / taken / 1e9 for taken in seconds[OURS]]
    best = [flop_of_products / taken / 1e9 for taken in seconds[PEAK]]
    return judged(
        Target("≥", 0.85), row=ROW, what="share of the matrix-product peak",
        against="torch.mm of 2048 x 2048", ours=median(ours), theirs=median(best),
        unit="GFLOP/s", ratio=ratio(ours, best), means="share:",
    )  # fmt: skip


def _largest(action: Callable, full: int) -> Result:
    with _Largest() as seen:
        action()
    return judged(
        Target("≤", 0.5), row=ROW, what="largest tensor that is made", against="all logits",
        ours=float(seen.elements), theirs=float(full), unit="elements",
        ratio=seen.elements / full, means="share:",
    )  # fmt: skip
