"""Probe a series of checkpoints at full precision, low bit and high bit, whose run they are."""

from flatminima.errors import Diverged
from flatminima.files import read_json, write_json, write_rows
from flatminima.jobs import progress, run
from flatminima.scoring import Prober, write_probes


def main(folders: dict, validation: str, probe: dict, threads: int, code: str,
         sequences: str, provenance: str, table: str | None = None,
         training: str | None = None) -> None:  # fmt: skip
    """Write the scores of each sequence, what made them, and a row per quantizer if asked for.

    ``folders`` maps steps to checkpoint folders; no more than one model is in memory. A
    checkpoint that has diverged is named and left out; the others go on, but for a fork's.
    ``training`` says what made the checkpoints, where that is a file.
    """
    prober, scores = Prober(validation, probe, threads), []
    for step, folder in progress(folders.items(), "probing", total=len(folders)):
        scores += prober.checkpoint(folder, step)
    if table is None:  # a fork, whose end counts
        for reason in prober.made_by.get("left_out", {}).values():
            raise Diverged(reason)
        write_rows(scores, sequences)
    else:
        write_probes(scores, resamples=probe["resamples"], table=table, sequences=sequences)
    trained = {} if training is None else {"training": read_json(training)}
    write_json(provenance, {**prober.made_by, **trained, "code": code})


if __name__ == "__main__":
    run(main, snakemake)
