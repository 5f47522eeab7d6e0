"""Where it breaks: one matrix quantized alone, and all but one.

``in``   only this matrix is quantized (block matrices, input embedding and head)
``out``  all of the paper's layers but this matrix are quantized
``all``  all of the paper's layers are

Where the losses added by the matrices one by one sum to that of all together, layers do
not compound; where ``out`` helps more than ``in`` hurts, they do.
"""

from collections.abc import Iterator

import pandas as pd
from torch import nn

from flatminima.intervals import summarise
from flatminima.mechanism.visits import (
    Variant,
    Visit,
    in_order,
    layer_sets,
    matrices,
    score_variants,
)
from flatminima.quantizer_specs import AnyQuantizer
from flatminima.quantizers import fake_quantize

ALL = "all"


def layer_variants(model: nn.Module, spec: AnyQuantizer) -> Iterator[Variant]:
    """The variants of one model: ``all``, then ``in <name>`` and ``out <name>``."""
    quantized = {n: fake_quantize(w.detach(), spec) for n, w in matrices(model).items()}
    blocks = layer_sets(model)["blocks"]
    whole = {name: quantized[name] for name in blocks}
    yield ALL, whole
    for name in in_order(quantized):
        yield f"in {name}", {name: quantized[name]}
    for name in in_order(blocks):
        yield f"out {name}", {n: w for n, w in whole.items() if n != name}


def probe_layers(visit: Visit, spec: AnyQuantizer) -> pd.DataFrame:
    """A row per probe of one checkpoint: step, probe (in, out, all, fp32), tensor and scores.

    ``removed_nats`` is what leaving the matrix out takes away from the loss that all
    together add (rows ``out``).
    """
    scores = score_variants(visit, layer_variants(visit.model, spec))
    table = summarise(scores, ["step"], resamples=visit.resamples, seed=0)
    named = table["quantizer"].str.split(" ", n=1, expand=True)
    table.insert(1, "probe", named[0])
    table.insert(2, "tensor", named[1].fillna(ALL))
    added = table.set_index("quantizer")["delta_nll_nats_per_token"]
    removed = added[ALL] - table["delta_nll_nats_per_token"]
    return table.assign(removed_nats=removed.where(table["probe"] == "out")).drop(
        columns=["quantizer", "role"]
    )
