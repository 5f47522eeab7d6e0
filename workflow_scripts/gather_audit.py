"""Gather the probes of all revisions of a suite."""

from flatminima.files import read_rows
from flatminima.jobs import log, logged
from flatminima.schedules import read_schedule
from flatminima.scoring import gather_audit


def main(
    *,
    tables: list[str],
    sequences: list[str],
    suite: str,
    schedule: dict | None,
    total_steps: int,
    tokens_per_step: int | None,
    audit: str,
    all_sequences: str,
) -> None:
    """Write ``audit.csv`` and the per-sequence scores of the whole suite."""
    probes = read_rows(tables)
    lr, lr_max = (
        (read_schedule(schedule, total_steps), schedule["lr_max"]) if schedule else (None, None)
    )
    gathered = gather_audit(probes, lr, suite=suite, lr_max=lr_max, tokens_per_step=tokens_per_step)
    gathered.to_csv(audit, index=False)
    read_rows(sequences).to_parquet(all_sequences, index=False)
    last = gathered[gathered["step"] == gathered["step"].max()].set_index("role")["gap_pct"]
    log(f"final gap: low bit {last['low_bit']:.2f} %, high bit {last['high_bit']:.3f} %")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            tables=snakemake.input.tables,
            sequences=snakemake.input.sequences,
            suite=snakemake.wildcards.suite,
            audit=snakemake.output.audit,
            all_sequences=snakemake.output.sequences,
            schedule=snakemake.params.schedule,
            total_steps=snakemake.params.total_steps,
            tokens_per_step=snakemake.params.tokens_per_step,
        )
