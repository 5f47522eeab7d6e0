"""Scores of many variants of one model, a few of them in memory at a time."""

from collections.abc import Iterable, Mapping
from itertools import islice

import numpy as np
import pandas as pd
from torch import Tensor, nn

from flatminima.evaluation import SequenceScores, score
from flatminima.roles import FP32

VARIANTS_AT_ONCE = 24
VARIANT = "variant"  # the role of a changed model in a table of scores

Variant = tuple[str, Mapping[str, Tensor]]


def score_table(step: int, name: str, role: str, record: SequenceScores) -> pd.DataFrame:
    """Scores of one model in the columns that ``intervals.summarise`` reads."""
    return pd.DataFrame(
        {
            "step": step,
            "quantizer": name,
            "role": role,
            "sequence": np.arange(len(record.scored), dtype=np.int32),
            "nll_nats": record.nll_nats,
            "kl_nats": record.kl_nats,
            "top1_changed": record.top1_changed,
            "scored": np.array(record.scored, dtype=np.int32),
        }
    )


def score_variants(
    model: nn.Module,
    tokens: np.ndarray,
    variants: Iterable[Variant],
    *,
    step: int,
    batch_size: int,
    device: str = "cpu",
) -> pd.DataFrame:
    """Per-sequence scores of the model (role fp32) and of each variant (role variant).

    ``variants`` yields a name and the weights it replaces; they are made one handful at a
    time. ``tokens`` is ``[sequences, length]``. An error names the step.
    """
    tables, pending = [], iter(variants)
    try:
        while handful := list(islice(pending, VARIANTS_AT_ONCE)):
            found = score(model, tokens, dict(handful), batch_size=batch_size, device=device)
            first = [FP32] if not tables else []
            tables += [
                score_table(step, name, FP32 if name == FP32 else VARIANT, found[name])
                for name in (*first, *(name for name, _ in handful))
            ]
    except (FloatingPointError, ValueError) as error:
        raise type(error)(f"step {step}: {error}") from error
    return pd.concat(tables, ignore_index=True)
