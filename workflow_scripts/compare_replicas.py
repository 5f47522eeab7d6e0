"""Hold the onset of every small run against its own FP32 minimum."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.replication import run_phases


def main(tables: list, sequences: list, names: list, spacing: int, resamples: int, runs: str,
         comparison: str) -> None:  # fmt: skip
    """Write all probes of all runs, and a row per run with its minimum and its onset.

    ``names`` has suite, width, seed, weight_decay, weights and tokens_per_step of each run.
    """
    found = []
    for name, table in zip(names, map(pd.read_csv, tables), strict=True):
        seen = table["step"] * name["tokens_per_step"] / name["weights"]
        about = pd.DataFrame(name, index=table.index).drop(columns="tokens_per_step")
        found.append(pd.concat([about.assign(tokens_per_weight=seen), table], axis=1))
    write_table(runs, pd.concat(found, ignore_index=True))
    rows = [
        run_phases(table, pd.read_parquet(path), spacing=spacing, resamples=resamples)
        for table, path in zip(found, sequences, strict=True)
    ]
    write_table(comparison, pd.DataFrame(rows))


if __name__ == "__main__":
    run(main, snakemake)
