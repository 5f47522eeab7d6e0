"""Probe checkpoints of a run or a fork at full precision, low bit and high bit."""

from flatminima.errors import Diverged
from flatminima.files import read_json, write_json, write_rows
from flatminima.jobs import progress, run
from flatminima.scoring import Prober


def main(
    folders: dict,
    validation: str,
    probe: dict,
    threads: int,
    code: str,
    sequences: str,
    provenance: str,
    training: str | None = None,
) -> None:
    """Write the scores of each sequence, and what decided them.

    ``folders`` maps steps to checkpoint folders. Only one model is in memory at a time.
    ``training`` is the provenance of a fork's checkpoints. In a run, a checkpoint that has diverged
    is logged and left out. In a fork it is an error, because forks are compared at all steps.
    """
    prober = Prober(validation, probe, threads)
    scores = []
    for step, folder in progress(folders.items(), "probing", total=len(folders)):
        scores += prober.checkpoint(folder, step)

    made_by = dict(prober.made_by)
    if training is not None:
        reasons = list(made_by.get("left_out", {}).values())
        if reasons:
            raise Diverged(reasons[0])
        made_by["training"] = read_json(training)
    made_by["code"] = code
    write_rows(scores, sequences)
    write_json(provenance, made_by)


if __name__ == "__main__":
    run(main, snakemake)
