"""Hold the onset of every small run against its own FP32 minimum."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.replication import run_phases


def main(
    tables: list[pd.DataFrame], sequences: list[pd.DataFrame], names: list, spacing: int,
    resamples: int, runs: str, comparison: str,
) -> None:  # fmt: skip
    """Write all probes of all runs, and a row per run with its minimum and its onset.

    ``names`` has suite, width, seed, weight_decay, weights and tokens_per_step of each run.
    """
    whole, rows = [], []
    for name, table, scores in zip(names, tables, sequences, strict=True):
        seen = table["step"] * name["tokens_per_step"] / name["weights"]
        about = pd.DataFrame(name, index=table.index).drop(columns="tokens_per_step")
        whole.append(pd.concat([about.assign(tokens_per_weight=seen), table], axis=1))
        rows.append(run_phases(whole[-1], scores, spacing=spacing, resamples=resamples))
    write_table(runs, pd.concat(whole, ignore_index=True))
    write_table(comparison, pd.DataFrame(rows))


if __name__ == "__main__":
    run(main, snakemake)
