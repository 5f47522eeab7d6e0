"""Names as they are printed in tables and figures."""

import re

import pandas as pd

PAPER_MODEL = "Pythia-160m"
SCHEDULES = {"cosine": "cosine", "sgdr": "SGDR", "oli": "OLI"}


def quantizer_label(name: str) -> str:
    """``INT4`` for a quantizer called ``int4_g64``; a name without a width stays as it is."""
    width = re.search(r"int(\d+)", name)
    return f"INT{width[1]}" if width else name


def role_labels(table: pd.DataFrame) -> dict[str, str]:
    """Printed name of each role in a table with the columns ``role`` and ``quantizer``.

    Raises ``ValueError`` where a role belongs to more than one quantizer.
    """
    names = table[["role", "quantizer"]].drop_duplicates()
    if names["role"].duplicated().any():
        role = names.loc[names["role"].duplicated(), "role"].iloc[0]
        found = ", ".join(names.loc[names["role"] == role, "quantizer"])
        raise ValueError(f"role {role}: one quantizer is expected, found {found}")
    labels = {role: quantizer_label(name) for role, name in names.itertuples(index=False)}
    return labels | {"fp32": "FP32"}
