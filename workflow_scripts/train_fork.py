"""Train one fork of a suite and probe it on the way."""

from flatminima.forks import job as fork_job
from flatminima.jobs import logged


def main(*, seed: int, inputs: dict, outputs: dict, settings: dict, probe: dict, threads: int,
         workspace: str, save_every: int, code: str) -> None:  # fmt: skip
    """Write the scores of each sequence, the loss of each update, and what made them."""
    fork_job.start(
        seed=seed, inputs=inputs, outputs=outputs, settings=settings, probe=probe,
        threads=threads, workspace=workspace, save_every=save_every, code=code,
    )  # fmt: skip


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            seed=int(snakemake.wildcards.seed),
            inputs=dict(snakemake.input.items()),
            outputs=dict(snakemake.output.items()),
            threads=snakemake.threads,
            save_every=snakemake.resources.save_every,
            **snakemake.params,
        )
