"""Fetch one revision of a suite from the Hugging Face hub."""

from dataclasses import asdict

from workflow_scripts.lib.hub.checkpoints import download_checkpoint
from workflow_scripts.lib.logs import logged, say
from workflow_scripts.lib.provenance import write_json


def main(*, repo: str, revision: str, folder: str, record: str) -> None:
    """Write the checkpoint to ``folder``, and a record of its commit and the files it came as."""
    download = download_checkpoint(repo, revision, folder)
    write_json(record, asdict(download))
    say(f"{repo} {revision} is commit {download.commit}, {download.bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            repo=snakemake.params.repo,
            revision=snakemake.params.revision,
            folder=snakemake.params.folder,
            record=snakemake.output.record,
        )
