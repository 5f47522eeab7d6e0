"""Gather the probes of all revisions of a suite."""

from flatminima.audit_table import gather_audit
from flatminima.errors import UserError
from flatminima.files import read_json, read_rows, write_table
from flatminima.jobs import run
from flatminima.schedules import read_schedule


def main(
    tables: list,
    scores: list,
    provenance: list,
    suite: str,
    schedule: dict | None,
    total_steps: int,
    tokens_per_step: int | None,
    audit: str,
    sequences: str,
) -> None:
    """Write ``audit.csv`` and the per-sequence scores of all checkpoints of the suite.

    ``provenance`` are the records beside ``scores``. They list the checkpoints that were left out.
    Raises ``UserError`` with the first reason if all checkpoints were left out.
    """
    lr = read_schedule(schedule, total_steps) if schedule else None
    try:
        probes = read_rows(tables)
    except UserError:  # no table has a row: no checkpoint could be measured
        reasons = [
            reason for path in provenance for reason in read_json(path).get("left_out", {}).values()
        ]
        if not reasons:
            raise
        raise UserError(
            f"{suite}: none of its {len(reasons)} checkpoints could be measured; {reasons[0]}"
        ) from None
    lr_max = schedule["lr_max"] if schedule else None
    gathered = gather_audit(probes, lr, suite=suite, lr_max=lr_max, tokens_per_step=tokens_per_step)
    write_table(audit, gathered)
    write_table(sequences, read_rows(scores))


if __name__ == "__main__":
    run(main, snakemake)
