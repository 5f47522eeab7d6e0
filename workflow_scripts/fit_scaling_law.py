"""Fit the power law of the low-bit loss up to the onset, and compare the end with it."""

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
        excess = suite_excess(audit, phases, spacing=spacing)
        logger.info(excess_sentence(excess))
    except UserError as error:
        excess = {"reason": str(error)}
        logger.info(excess["reason"])
    write_json(law, excess)


if __name__ == "__main__":
    run(main, snakemake)
