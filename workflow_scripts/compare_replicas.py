"""Compare the onset of every small run with its own FP32 minimum."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.replication import run_phases


def main(
    tables: list[pd.DataFrame],
    sequences: list[pd.DataFrame],
    names: list,
    spacing: int,
    resamples: int,
    runs: str,
    comparison: str,
) -> None:
    """Write all probes of all runs, and a row per run with its minimum and its onset.

    ``names`` has suite, width, seed, weight_decay, weights and tokens_per_step of each run.
    """
    labelled_tables = []
    comparison_rows = []
    for name, table, scores in zip(names, tables, sequences, strict=True):
        tokens_per_weight = table["step"] * name["tokens_per_step"] / name["weights"]
        labels = pd.DataFrame(name, index=table.index).drop(columns="tokens_per_step")
        labels = labels.assign(tokens_per_weight=tokens_per_weight)
        labelled = pd.concat([labels, table], axis=1)
        labelled_tables.append(labelled)
        comparison_rows.append(run_phases(labelled, scores, spacing=spacing, resamples=resamples))
    write_table(runs, pd.concat(labelled_tables, ignore_index=True))
    write_table(comparison, pd.DataFrame(comparison_rows))


if __name__ == "__main__":
    run(main, snakemake)
