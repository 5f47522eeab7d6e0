"""Files of a hub revision: from the user's cache or downloaded, resumed, and always checked."""

import os
from pathlib import Path

from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from flatminima.hub.errors import HubError, one_line
from flatminima.hub.retrying import PATIENT, BrokenOff, Patience, persist
from flatminima.hub.revisions import HubFile, Revision
from flatminima.jobs import log


def fetch_file(revision: Revision, name: str, folder: Path, patience: Patience = PATIENT) -> Path:
    """A path at which a file of ``revision`` lies whole, its size and hash checked.

    That is the user's cache where the file is there already, and else ``folder``, where an
    unfinished download is resumed. Wrong bytes are fetched once more from the start. Raises
    ``HubError``, or ``RevisionMissing`` where the hub lists the file and does not have it.
    """
    file = revision.files[name]
    cached = try_to_load_from_cache(revision.repo, name, revision=revision.commit)
    if isinstance(cached, str):
        if file.agrees(Path(cached)):
            return Path(cached)
        log(f"{revision}: {name} in the cache is damaged and not used: {cached}")
    if constants.is_offline_mode():
        raise HubError(
            f"{revision}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does not hold "
            f"{name} whole"
        )
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name.replace('/', '--')}.{file.sha256 or file.git or revision.commit}.part"
    with one_line(revision.repo, revision.name):
        for attempt in ("first", "second"):
            persist(
                lambda: _download(revision, file, part),
                f"{revision}: {name}",
                patience,
                progress=lambda: _size(part),
            )
            if file.agrees(part):
                return part
            part.unlink()
            log(f"{revision}: {name} came with wrong bytes at the {attempt} download")
    raise HubError(f"{revision}: {name} came twice with other bytes than the hub says it has")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _download(revision: Revision, file: HubFile, part: Path) -> None:
    """Append what ``part`` lacks of the file; raises where the body ends early.

    The hub's own download deletes an unfinished file when it fails and never finds one that
    another process left, so it cannot go on after a kill; this one can.
    """
    have = _size(part)
    if file.size is not None and have >= file.size > 0:
        return
    endpoint = constants.ENDPOINT
    url = hf_hub_url(revision.repo, file.name, revision=revision.commit, endpoint=endpoint)
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        resumed = response.status_code == 206
        start = response.headers.get("Content-Range", "")
        if resumed and not start.startswith(f"bytes {have}-"):
            raise BrokenOff(f"asked to go on at byte {have}, the server sends {start!r}")
        with open(part, "ab" if resumed else "wb") as stream:
            for block in response.iter_bytes():
                stream.write(block)
                stream.flush()  # a kill loses nothing that arrived
            os.fsync(stream.fileno())
    if file.size is not None and _size(part) < file.size:
        raise BrokenOff(f"{_size(part)} of {file.size} bytes")
