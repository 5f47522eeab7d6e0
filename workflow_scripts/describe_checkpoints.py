"""Record what the checkpoints of a range of revisions hold."""

import pandas as pd

from workflow_scripts.lib.logs import logged, progress
from workflow_scripts.lib.revisions import describe_checkpoint


def main(*, weights: dict, commits: dict, tokens_per_step: int, output: str) -> None:
    """Write one row per revision; ``weights`` and ``commits`` map steps to files."""
    rows = [
        describe_checkpoint(step, path, commits.get(step), tokens_per_step)
        for step, path in progress(weights.items(), "describing", total=len(weights))
    ]
    pd.DataFrame(rows).to_csv(output, index=False)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        steps = snakemake.params.steps
        main(
            weights=dict(zip(steps, snakemake.input.weights, strict=True)),
            commits=dict(zip(steps, snakemake.input.get("commits", []), strict=False)),
            tokens_per_step=snakemake.params.tokens_per_step,
            output=snakemake.output.table,
        )
