"""Average checkpoints of a suite's own run and probe the result."""

import pandas as pd

from flatminima.files import write_json, write_table
from flatminima.forks.averaging import average_model
from flatminima.intervals import summarise
from flatminima.jobs import logged
from flatminima.schedules import read_kind
from flatminima.scoring import Prober


def main(*, suite: str, name: str, definition: dict, folders: list[str], steps: list[int],
         validation: str, probe: dict, threads: int, code: str, table: str, sequences: str,
         provenance: str) -> None:  # fmt: skip
    """Write a row per quantizer, the scores of each sequence, and what made them.

    ``folders`` are checkpoints of ``steps``, in order; the rows carry the last step.
    """
    prober = Prober(validation, probe, threads)
    shares = read_kind(definition).weights(len(folders))
    scores = prober(average_model(folders, shares, prober.device), steps[-1])
    write_table(sequences, scores)
    rows = summarise(scores, ["step"], resamples=probe["resamples"], seed=0)
    first = pd.DataFrame({"suite": suite, "schedule": name, "seed": pd.NA}, index=rows.index)
    write_table(table, pd.concat([first, rows], axis=1))
    averaged = {"definition": definition, "steps": steps, "shares": shares, "code": code}
    write_json(provenance, {**prober.made_by, **averaged})


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            suite=snakemake.wildcards.suite,
            name=snakemake.wildcards.average,
            validation=snakemake.input.validation,
            threads=snakemake.threads,
            **dict(snakemake.output.items()),
            **snakemake.params,
        )
