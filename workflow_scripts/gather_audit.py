"""Gather the probes of all revisions of a suite."""

from flatminima.files import read_rows
from flatminima.jobs import run
from flatminima.schedules import read_schedule
from flatminima.scoring import gather_audit


def main(tables: list, scores: list, suite: str, schedule: dict | None, total_steps: int,
         tokens_per_step: int | None, audit: str, sequences: str) -> None:  # fmt: skip
    """Write ``audit.csv`` and the per-sequence scores of the whole suite."""
    lr = read_schedule(schedule, total_steps) if schedule else None
    gathered = gather_audit(
        read_rows(tables), lr, suite=suite, lr_max=schedule["lr_max"] if schedule else None,
        tokens_per_step=tokens_per_step,
    )  # fmt: skip
    gathered.to_csv(audit, index=False)
    read_rows(scores).to_parquet(sequences, index=False)


if __name__ == "__main__":
    run(main, snakemake)
