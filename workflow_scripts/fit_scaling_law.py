"""Fit the power law of the low-bit loss up to the onset, and hold the end against it."""

import logging

import pandas as pd

from flatminima.errors import UserError
from flatminima.files import write_json
from flatminima.jobs import run
from flatminima.scaling_law import excess_sentence, suite_excess

logger = logging.getLogger(__name__)


def main(audit: pd.DataFrame, phases: dict, law: str, spacing: int) -> None:
    """Write ``law``: exponent, prediction and excess, or the reason why there are none."""
    try:
        found = suite_excess(audit, phases, spacing=spacing)
        logger.info(excess_sentence(found))
    except UserError as error:
        found = {"reason": str(error)}
        logger.info(found["reason"])
    write_json(law, found)


if __name__ == "__main__":
    run(main, snakemake)
