"""Gather the probes of all revisions of a suite."""

from pathlib import Path

from flatminima.errors import UserError
from flatminima.files import read_json, read_rows
from flatminima.jobs import run
from flatminima.schedules import read_schedule
from flatminima.scoring import gather_audit


def main(tables: list, scores: list, suite: str, schedule: dict | None, total_steps: int,
         tokens_per_step: int | None, audit: str, sequences: str) -> None:  # fmt: skip
    """Write ``audit.csv`` and the per-sequence scores of the whole suite.

    Raises ``UserError`` with the first reason where checkpoints are there and none is measured.
    """
    lr = read_schedule(schedule, total_steps) if schedule else None
    try:
        probes = read_rows(tables)
    except UserError:
        sheets = [Path(path).with_suffix(".json") for path in scores]
        left = [read_json(sheet).get("left_out", {}) for sheet in sheets if sheet.is_file()]
        reasons = [reason for found in left for reason in found.values()]
        if not reasons:
            raise
        raise UserError(
            f"{suite}: none of its {len(reasons)} checkpoints could be measured; {reasons[0]}"
        ) from None
    gathered = gather_audit(
        probes, lr, suite=suite, lr_max=schedule["lr_max"] if schedule else None,
        tokens_per_step=tokens_per_step,
    )  # fmt: skip
    gathered.to_csv(audit, index=False)
    read_rows(scores).to_parquet(sequences, index=False)


if __name__ == "__main__":
    run(main, snakemake)
