"""Fetch one revision of a suite from the Hugging Face hub."""

from pathlib import Path

from workflow_scripts.lib.hub import download_checkpoint
from workflow_scripts.lib.logs import logged, say
from workflow_scripts.lib.provenance import write_json


def main(*, repo: str, revision: str, weights: str, config: str, record: str) -> None:
    """Write weights and configuration, and a record of the commit they came from."""
    commit = download_checkpoint(repo, revision, Path(weights), Path(config))
    write_json(record, {"repo": repo, "revision": revision, "commit": commit})
    say(f"{repo} {revision} is commit {commit}")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            repo=snakemake.params.repo,
            revision=f"step{snakemake.wildcards.step}",
            weights=snakemake.output.weights,
            config=snakemake.output.config,
            record=snakemake.output.record,
        )
