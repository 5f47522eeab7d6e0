"""Probe a series of checkpoints at full precision, low bit and high bit, whose run they are."""

from flatminima.files import read_json, write_json, write_rows
from flatminima.jobs import progress, run
from flatminima.model import load_model
from flatminima.scoring import Prober, write_probes


def main(folders: dict, validation: str, probe: dict, threads: int, code: str,
         sequences: str, provenance: str, table: str | None = None,
         training: str | None = None) -> None:  # fmt: skip
    """Write the scores of each sequence, what made them, and a row per quantizer if asked for.

    ``folders`` maps steps to checkpoint folders; no more than one model is in memory.
    ``training`` says what made the checkpoints, where that is a file.
    """
    prober = Prober(validation, probe, threads)
    scores = [
        prober(load_model(folder, prober.device), step)
        for step, folder in progress(folders.items(), "probing", total=len(folders))
    ]
    if table is None:
        write_rows(scores, sequences)
    else:
        write_probes(scores, resamples=probe["resamples"], table=table, sequences=sequences)
    trained = {} if training is None else {"training": read_json(training)}
    write_json(provenance, {**prober.made_by, **trained, "code": code})


if __name__ == "__main__":
    run(main, snakemake)
