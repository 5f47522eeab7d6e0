"""The number that matters of the table of layers; apart, for the names of layers need torch."""

import pandas as pd

from flatminima.mechanism.headlines import last_step
from flatminima.mechanism.layers import short_name
from flatminima.mechanism.layerwise import ALL

_DELTA = "delta_nll_nats_per_token"


def layers(table: pd.DataFrame) -> str:
    """The matrix that adds most loss alone at the last step, beside all of the blocks together."""
    step, last = last_step(table)
    alone = last[last["probe"] == "in"].set_index("tensor")[_DELTA]
    whole = last.loc[last["probe"] == ALL, _DELTA].item()
    return (
        f"most loss alone at step {step:,}: {short_name(alone.idxmax())}, {alone.max():.4f} "
        f"nats/token; all of the blocks together {whole:.4f}"
    )
