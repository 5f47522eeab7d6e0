"""Probe a range of revisions at full precision, low bit and high bit."""

from flatminima.files import write_json
from flatminima.jobs import logged, progress
from flatminima.model import WEIGHTS_FILE, load_model
from flatminima.revisions.absent import absence
from flatminima.scoring import Prober, write_probes


def main(*, folders: dict, validation: str, probe: dict, threads: int, code: str,
         table: str, sequences: str, provenance: str) -> None:  # fmt: skip
    """Write a row per step and quantizer, the scores of each sequence, and what made them.

    ``folders`` maps steps to checkpoint folders; no more than one model is in memory.
    """
    prober = Prober(validation, probe, threads)
    there = {s: path for s, path in folders.items() if absence(f"{path}/{WEIGHTS_FILE}") is None}
    scores = [
        prober(load_model(folder, prober.device), step)
        for step, folder in progress(there.items(), "probing", total=len(there))
    ]
    write_probes(scores, resamples=probe["resamples"], table=table, sequences=sequences)
    write_json(provenance, {**prober.made_by, "code": code})


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            validation=snakemake.input.validation,
            threads=snakemake.threads,
            table=snakemake.output.table,
            sequences=snakemake.output.sequences,
            provenance=snakemake.output.provenance,
            **snakemake.params,
        )
