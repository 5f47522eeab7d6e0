"""Follow the weights from checkpoint to checkpoint: grid positions, codes, distances."""

from flatminima.files import write_table
from flatminima.jobs import progress, run
from flatminima.mechanism.drift import drift_tables
from flatminima.quantizer_specs import read_spec


def main(
    *,
    weights: dict,
    quantizer: dict,
    layers: str,
    spacing: int,
    drift: str,
    displacement: str,
) -> None:
    """Write positions and codes of every step, and distances between evenly spaced ones.

    ``weights`` maps steps to files; ``layers`` are those whose weights are followed.
    """
    states = progress(weights.items(), "drift", total=len(weights))
    spec = read_spec(quantizer)
    positions, distances = drift_tables(states, spec, layers=layers, spacing=spacing)
    write_table(drift, positions)
    write_table(displacement, distances)


if __name__ == "__main__":
    run(main, snakemake)
