"""The probe of real quantized inference: what one would ship, beside the simulated gap.

The same weights go through torchao, bitsandbytes and the GGUF format, for the layers that
the simulated probe quantizes and no others, so that the format is the only difference. A
back-end that is not installed, or that a device or a layer does not allow, is skipped by
name with its reason.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata, util

import numpy as np
import pandas as pd
import torch
from torch import nn

from flatminima.deployed_formats import (
    NotHere,
    bitsandbytes_int8,
    bitsandbytes_nf4,
    gguf_model,
    torchao_int4,
    torchao_int8,
    torchao_intx,
)
from flatminima.evaluation import score
from flatminima.intervals import summarise
from flatminima.jobs import log
from flatminima.probing import Prober
from flatminima.roles import HIGH_BIT, LOW_BIT

DEPLOYED = "deployed"  # the role of their rows


@dataclass(frozen=True)
class Format:
    """One way to ship a model. ``counterpart`` is the role of the simulated quantizer beside it.

    ``convert`` takes a copy of the model, which layers (``layers.Layers``) and the low-bit
    group size, and returns the model to run; it raises ``NotHere`` where it cannot.
    """

    package: str
    counterpart: str
    description: str
    convert: Callable[[nn.Module, str, int], nn.Module]


FORMATS = {
    "gguf_q4_1": Format(
        "gguf", LOW_BIT, "GGUF Q4_1: 4 bits, scale and minimum in float16, groups of 32",
        lambda model, layers, group: gguf_model(model, layers, "Q4_1"),
    ),
    "gguf_q8_0": Format(
        "gguf", HIGH_BIT, "GGUF Q8_0: 8 bits symmetric, scale in float16, groups of 32",
        lambda model, layers, group: gguf_model(model, layers, "Q8_0"),
    ),
    "torchao_int4": Format(
        "torchao", LOW_BIT, "Int4WeightOnlyConfig: packed 4-bit kernels in bfloat16",
        torchao_int4,
    ),
    "torchao_intx4": Format(
        "torchao", LOW_BIT, "IntxWeightOnlyConfig of 4 bits, asymmetric, not packed, float32",
        torchao_intx,
    ),
    "torchao_int8": Format(
        "torchao", HIGH_BIT, "Int8WeightOnlyConfig: 8 bits symmetric per output channel",
        torchao_int8,
    ),
    "bitsandbytes_nf4": Format(
        "bitsandbytes", LOW_BIT, "NF4: 4-bit normal-float code book, groups of 64",
        bitsandbytes_nf4,
    ),
    "bitsandbytes_int8": Format(
        "bitsandbytes", HIGH_BIT, "LLM.int8(): weights and activations in 8 bits, outliers apart",
        bitsandbytes_int8,
    ),
}  # fmt: skip


class _Choice(nn.Module):
    """Two models as one: the parameter ``which`` says whose answer is given.

    ``evaluation.score`` swaps parameters between variants of a model; this lets it swap whole
    models. The second is kept out of sight of its check that all weights are float32.
    """

    def __init__(self, reference: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.reference = reference
        self.which = nn.Parameter(torch.zeros(()), requires_grad=False)
        self._other = (other,)

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> object:
        model = self._other[0] if bool(self.which) else self.reference
        return model(input_ids=input_ids, use_cache=use_cache)


def probe_format(
    model: nn.Module, prober: Prober, step: int, name: str
) -> tuple[pd.DataFrame | None, str]:
    """Per-sequence scores of one format as ``Prober`` gives them, or why there are none."""
    form = FORMATS[name]
    if util.find_spec(form.package) is None:
        return None, f"the package {form.package} is not installed"
    low_bit = next(s for n, s in prober.specs.items() if prober.roles[n] == LOW_BIT)
    try:
        group = low_bit.group_size or 128
        other = form.convert(copy.deepcopy(model), low_bit.layers, group).eval()
        scores = score(
            _Choice(model, other), prober.tokens, {name: {"which": torch.ones(())}},
            batch_size=prober.batch_size, device=prober.device,
        )[name]  # fmt: skip
    except NotHere as reason:
        return None, str(reason)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:200]
    table = pd.DataFrame(
        {
            "step": step,
            "quantizer": name,
            "role": DEPLOYED,
            "sequence": np.arange(len(scores.scored), dtype=np.int32),
            "nll_nats": scores.nll_nats,
            "kl_nats": scores.kl_nats,
            "top1_changed": scores.top1_changed,
            "scored": np.array(scores.scored, dtype=np.int32),
        }
    )
    return table, ""


def probe_deployed(
    model: nn.Module, prober: Prober, step: int, simulated: pd.DataFrame, *, resamples: int
) -> pd.DataFrame:
    """One row per format of ``FORMATS``, measured or skipped, beside its simulated counterpart.

    ``simulated`` are the per-sequence scores that ``prober`` gave of the same model. Columns:
    step, format, package, version, status, reason, the measured columns of the audit,
    counterpart, simulated_gap_pct, and difference_points, the former gap minus the latter.
    """
    tables, reasons = [simulated], {}
    for name in FORMATS:
        table, reasons[name] = probe_format(model, prober, step, name)
        if table is None:
            log(f"step {step}: {name} skipped: {reasons[name]}")
        else:
            tables.append(table)
    rows = summarise(pd.concat(tables), ["step"], resamples=resamples, seed=0)
    return _beside(rows, reasons, step)


def _beside(rows: pd.DataFrame, reasons: Mapping[str, str], step: int) -> pd.DataFrame:
    simulated = rows[rows["role"] != DEPLOYED].set_index("role")
    measured = rows[rows["role"] == DEPLOYED].set_index("quantizer").drop(columns=["step", "role"])
    found = []
    for name, form in FORMATS.items():
        beside = simulated.loc[form.counterpart]
        there = name in measured.index
        numbers = measured.loc[name].to_dict() if there else dict.fromkeys(measured.columns)
        found.append(
            {
                "step": step,
                "format": name,
                "package": form.package,
                "version": metadata.version(form.package) if there else "",
                "status": "measured" if there else "skipped",
                "reason": reasons[name],
                **numbers,
                "counterpart": beside["quantizer"],
                "simulated_gap_pct": beside["gap_pct"],
                "difference_points": numbers["gap_pct"] - beside["gap_pct"] if there else None,
            }
        )
    whole = {"n_sequences": "Int64", "n_tokens": "Int64"}
    return pd.DataFrame(found).astype(whole)
