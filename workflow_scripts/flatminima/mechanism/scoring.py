"""Scores of many variants of one model, a few of them in memory at a time."""

from collections.abc import Iterable, Mapping
from itertools import islice

import numpy as np
import pandas as pd
from torch import Tensor, nn

from flatminima import scoring
from flatminima.quantizer_specs import FP32

VARIANTS_AT_ONCE = 24
VARIANT = "variant"  # the role of a changed model in a table of scores

Variant = tuple[str, Mapping[str, Tensor]]


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
            found = scoring.score_variants(
                model, tokens, dict(handful), batch_size=batch_size, device=device
            )
            first = [FP32] if not tables else []
            tables += [
                found[name].table(step, name, FP32 if name == FP32 else VARIANT)
                for name in (*first, *(name for name, _ in handful))
            ]
    except (FloatingPointError, ValueError) as error:
        raise type(error)(f"step {step}: {error}") from error
    return pd.concat(tables, ignore_index=True)
