"""Probe a series of checkpoints at full precision, low bit and high bit, whose run they are."""

from flatminima.errors import Diverged
from flatminima.files import read_json, write_json, write_rows
from flatminima.jobs import progress, run
from flatminima.scoring import Prober


def main(folders: dict, validation: str, probe: dict, threads: int, code: str,
         sequences: str, provenance: str, training: str | None = None) -> None:  # fmt: skip
    """Write the scores of each sequence, and what made them.

    ``folders`` maps steps to checkpoint folders; no more than one model is in memory. A
    checkpoint that has diverged is named and left out; the others go on, but for a fork's.
    ``training`` says what made the checkpoints, where they are those of a fork or the like.
    """
    prober, scores = Prober(validation, probe, threads), []
    for step, folder in progress(folders.items(), "probing", total=len(folders)):
        scores += prober.checkpoint(folder, step)
    trained = {} if training is None else {"training": read_json(training)}
    for reason in prober.made_by.get("left_out", {}).values() if trained else ():
        raise Diverged(reason)
    write_rows(scores, sequences)
    write_json(provenance, {**prober.made_by, **trained, "code": code})


if __name__ == "__main__":
    run(main, snakemake)
