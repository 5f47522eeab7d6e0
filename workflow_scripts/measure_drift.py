"""Follow the weights from checkpoint to checkpoint: grid positions, codes, distances."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import logged, progress
from flatminima.mechanism.displacement import COLUMNS
from flatminima.mechanism.drift import drift_rows
from flatminima.quantizer_specs import read_spec


def main(*, weights: dict, quantizer: dict, layers: str, spacing: int, drift: str,
         displacement: str) -> None:  # fmt: skip
    """Write positions and codes of every step, and distances between evenly spaced ones.

    ``weights`` maps steps to files; ``layers`` are those whose weights are followed.
    """
    states = progress(weights.items(), "drift", total=len(weights))
    positions, distances = drift_rows(states, read_spec(quantizer), layers=layers, spacing=spacing)
    write_table(drift, pd.DataFrame(positions))
    write_table(displacement, pd.DataFrame(distances, columns=COLUMNS))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            drift=snakemake.output.drift,
            displacement=snakemake.output.displacement,
            **{k: v for k, v in snakemake.params.items() if k != "code"},
        )
