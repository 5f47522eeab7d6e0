"""A checkpoint of the hub, whole and checked, as one folder in Hugging Face format."""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from flatminima.files import atomic_path, file_sha256
from flatminima.hub.errors import HubError, RevisionMissing, one_line
from flatminima.hub.files import fetch_file
from flatminima.hub.retrying import PATIENT, Patience
from flatminima.hub.revisions import Revision, find_revision
from flatminima.hub.weights import (
    WeightsRefused,
    check_safetensors,
    find_weights,
    join_weights,
    read_index,
)
from flatminima.model import WEIGHTS_FILE

CONFIG_FILE = "config.json"
RECORD_FILE = "download.json"  # written last: where it is, the folder is whole
STAGING = ".download"  # unfinished files, kept for the next try


@dataclass(frozen=True)
class Download:
    """What was fetched: ``files`` maps the hub's names to sha256, ``bytes`` is their sum."""

    repo: str
    revision: str
    commit: str
    files: dict[str, str]
    bytes: int


def download_checkpoint(
    repo: str, revision: str, folder: str | Path, patience: Patience = PATIENT
) -> Download:
    """Write ``model.safetensors`` and ``config.json`` of a revision to ``folder``.

    Only what is needed is fetched: safetensors, whole or in shards, else ``.bin`` files,
    which are read as data and written as safetensors in the dtype they came in. Every file
    is checked against the hash that the hub states. A folder that is finished is checked
    against its own record and makes no request. Raises ``RevisionMissing`` for what the hub
    does not have and ``HubError`` for the rest.
    """
    folder = Path(folder)
    with one_line(repo, revision):
        finished = _finished(folder, repo, revision)
        if finished:
            return finished
        _clear(folder)
        found = find_revision(repo, revision, patience)
        download = _write(found, folder, patience)
        _finish(folder, download)
    return download


def _write(found: Revision, folder: Path, patience: Patience) -> Download:
    """Fetch the files of a revision and put weights and configuration where they belong."""
    start, staging = _first_file(found), folder / STAGING

    def fetch(name: str) -> Path:
        if name not in found.files:
            raise RevisionMissing(found.repo, found.name, f"{name} is missing")
        return fetch_file(found, name, staging, patience)

    paths = {name: fetch(name) for name in (CONFIG_FILE, start)}
    try:
        weight_map = read_index(paths[start]) if start.endswith(".index.json") else {}
        shards = sorted(set(weight_map.values())) or [start]
        paths |= {name: fetch(name) for name in shards if name not in paths}
        download = Download(
            found.repo, found.name, found.commit,
            {name: found.files[name].sha256 or file_sha256(path) for name, path in paths.items()},
            sum(path.stat().st_size for path in paths.values()),
        )  # fmt: skip
        if shards == [WEIGHTS_FILE]:
            check_safetensors(paths[start], start)
            _place(paths[start], folder / WEIGHTS_FILE, staging)
        else:
            with atomic_path(folder / WEIGHTS_FILE) as temporary:
                join_weights([(name, paths[name]) for name in shards], weight_map, temporary)
    except WeightsRefused as error:
        raise HubError(f"{found}: {error}") from error
    _place(paths[CONFIG_FILE], folder / CONFIG_FILE, staging)
    return download


def _clear(folder: Path) -> None:
    """Delete what another revision or a killed job left, but not the unfinished downloads."""
    for name in (RECORD_FILE, WEIGHTS_FILE, CONFIG_FILE):
        (folder / name).unlink(missing_ok=True)


def _first_file(found: Revision) -> str:
    start = find_weights(found.files)
    if start is None or CONFIG_FILE not in found.files:
        lacking = CONFIG_FILE if start else "weights (model.safetensors or pytorch_model.bin)"
        raise RevisionMissing(found.repo, found.name, f"it holds no {lacking}")
    return start


def _place(source: Path, target: Path, staging: Path) -> None:
    """Move a file from ``staging``, or copy it from the user's cache."""
    if source.parent == staging:
        os.replace(source, target)
        return
    with atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)


def _finish(folder: Path, download: Download) -> None:
    """Record what the folder holds, then delete what was only on the way."""
    written = {name: file_sha256(folder / name) for name in (WEIGHTS_FILE, CONFIG_FILE)}
    with atomic_path(folder / RECORD_FILE) as temporary:
        content = json.dumps(asdict(download) | {"written": written}, indent=2)
        temporary.write_text(content + "\n", encoding="utf-8")
    shutil.rmtree(folder / STAGING, ignore_errors=True)


def _finished(folder: Path, repo: str, revision: str) -> Download | None:
    """What a finished folder holds of this revision; nothing where it is not whole."""
    try:
        record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
        written = record.pop("written")
        download = Download(**record)
        whole = all(file_sha256(folder / name) == sha256 for name, sha256 in written.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return download if whole and (download.repo, download.revision) == (repo, revision) else None
