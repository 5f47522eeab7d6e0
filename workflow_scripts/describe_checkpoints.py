"""Record what the checkpoints of a range of revisions hold."""

from flatminima.files import read_json, write_rows
from flatminima.jobs import log, logged, progress
from flatminima.revisions.absent import absence
from flatminima.revisions.describing import (
    describe_checkpoint,
    describe_missing,
    revision_table,
)
from flatminima.revisions.fingerprints import fingerprint_checkpoint


def main(*, weights: dict, commits: dict, tokens_per_step: int, table: str,
         fingerprints: str) -> None:  # fmt: skip
    """Write a row and a fingerprint per revision; ``weights``, ``commits`` map steps to files."""
    rows, prints = [], []
    for step, path in progress(weights.items(), "describing", total=len(weights)):
        origin = read_json(commits[step]) if step in commits else {}
        if absence(path) is not None:
            rows.append(describe_missing(step, origin, tokens_per_step))
            continue
        prints.append(fingerprint_checkpoint(step, path))
        rows.append(describe_checkpoint(step, path, origin, prints[-1], tokens_per_step))
    described = revision_table(rows)
    write_rows([described], table)
    write_rows(prints, fingerprints)
    size = described["bytes"].sum() / 1e6
    log(f"{len(prints)} of {len(rows)} revisions are there, {size:,.1f} MB")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        steps = snakemake.params.steps
        main(
            weights=dict(zip(steps, snakemake.input.weights, strict=True)),
            commits=dict(zip(steps, snakemake.input.get("commits", []), strict=False)),
            tokens_per_step=snakemake.params.tokens_per_step,
            table=snakemake.output.table,
            fingerprints=snakemake.output.fingerprints,
        )
