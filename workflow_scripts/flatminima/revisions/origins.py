"""Where a checkpoint came from, as it is recorded; also where the hub does not have it."""

from pathlib import Path

from flatminima.files import write_json
from flatminima.hub.checkpoints import CONFIG_FILE, RECORD_FILE, download_checkpoint
from flatminima.hub.errors import RevisionMissing
from flatminima.model import WEIGHTS_FILE
from flatminima.revisions.absent import write_absent
from flatminima.revisions.findings import MISSING, PRESENT


def stand_in(folder: str | Path, reason: str) -> None:
    """Write the files of a revision that the hub does not have; ``reason`` is one line."""
    write_absent(Path(folder) / WEIGHTS_FILE, reason)
    for name in (CONFIG_FILE, RECORD_FILE):
        write_json(Path(folder) / name, {"absent": reason})


def fetch_revision(repo: str, revision: str, folder: str | Path) -> dict:
    """Put a hub checkpoint into ``folder``; its repo, revision, status, commit, files, bytes.

    Where the hub does not have it, status is ``missing`` and there is a reason instead.
    Raises ``hub.HubError`` where it cannot be told or fetched.
    """
    asked = {"repo": repo, "revision": revision}
    try:
        got = download_checkpoint(repo, revision, folder)
    except RevisionMissing as error:
        return {**asked, "status": MISSING, "reason": error.reason}
    return {
        **asked, "status": PRESENT, "commit": got.commit, "files": got.files, "bytes": got.bytes
    }  # fmt: skip
