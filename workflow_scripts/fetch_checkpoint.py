"""Fetch one revision of a suite from the Hugging Face hub."""

from flatminima.errors import UserError
from flatminima.files import write_json
from flatminima.jobs import log, logged
from flatminima.revisions.findings import MISSING
from flatminima.revisions.origins import fetch_revision, stand_in


def main(*, repo: str, revision: str, folder: str, record: str, may_be_missing: bool) -> None:
    """Write the checkpoint to ``folder``, and a record of its commit and the files it came as.

    A revision that the hub does not have ends the job in one line, or where it may be
    missing leaves a checkpoint without weights that says so.
    """
    origin = fetch_revision(repo, revision, folder)
    if origin["status"] == MISSING:
        if not may_be_missing:
            raise UserError(f"{repo} at {revision}: {origin['reason']}")
        stand_in(folder, origin["reason"])
        log(f"{repo} {revision} is missing: {origin['reason']}")
    else:
        log(f"{repo} {revision} is commit {origin['commit']}, {origin['bytes'] / 1e6:.1f} MB")
    write_json(record, origin)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            repo=snakemake.params.repo,
            revision=snakemake.params.revision,
            folder=snakemake.params.folder,
            record=snakemake.output.record,
            may_be_missing=snakemake.params.may_be_missing,
        )
