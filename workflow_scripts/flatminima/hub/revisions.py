"""What a revision of a hub repository holds, asked once and pinned to a commit."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, try_to_load_from_cache

from flatminima.files import file_sha256
from flatminima.hub.errors import HubError, one_line
from flatminima.hub.retrying import PATIENT, BrokenOff, Patience, persist


def git_hash(path: Path) -> str:
    """The name that git gives to the content of a file, in hexadecimal."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class HubFile:
    """A file as the hub describes it: large ones by their sha256, small ones by git's hash."""

    name: str
    size: int | None
    sha256: str | None
    git: str | None

    def agrees(self, path: Path) -> bool:
        """Whether the file at ``path`` is this one, byte for byte."""
        if self.size not in (None, path.stat().st_size):
            return False
        if self.sha256:
            return file_sha256(path) == self.sha256
        return self.git is None or git_hash(path) == self.git


@dataclass(frozen=True)
class Revision:
    """A branch or tag of a repository, pinned to the commit it meant when it was asked for."""

    repo: str
    name: str
    commit: str
    files: Mapping[str, HubFile]

    def __str__(self) -> str:
        return f"{self.repo} at {self.name}"


def find_revision(repo: str, revision: str, patience: Patience = PATIENT) -> Revision:
    """Ask the hub once what ``revision`` holds; the user's cache where HF_HUB_OFFLINE is set.

    Raises ``RevisionMissing`` where the hub has no such revision, ``HubError`` for the rest.
    """
    if constants.is_offline_mode():
        return _cached_revision(repo, revision)
    with one_line(repo, revision):
        return persist(lambda: _ask(repo, revision), f"{repo} at {revision}", patience)


def resolve(repo: str, revision: str, patience: Patience = PATIENT) -> str:
    """The commit that a branch or tag means now."""
    return find_revision(repo, revision, patience).commit


def list_branches(repo: str, patience: Patience = PATIENT) -> dict[str, str]:
    """Commit of each branch of a repository, in the order of their names."""
    api = HfApi(endpoint=constants.ENDPOINT)
    with one_line(repo, "its list of branches"):
        refs = persist(lambda: api.list_repo_refs(repo), f"branches of {repo}", patience)
    return {branch.name: branch.target_commit for branch in refs.branches}


def _ask(repo: str, revision: str) -> Revision:
    timeout = constants.HF_HUB_ETAG_TIMEOUT
    api = HfApi(endpoint=constants.ENDPOINT)
    try:
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=timeout)
    except json.JSONDecodeError as error:
        raise BrokenOff("the answer is no JSON") from error
    files = {
        s.rfilename: HubFile(s.rfilename, s.size, s.lfs.sha256 if s.lfs else None, s.blob_id)
        for s in info.siblings or ()
    }
    return Revision(repo, revision, info.sha, files)


def _cached_revision(repo: str, revision: str) -> Revision:
    """What the user's cache holds of a revision; files there are named by their hash."""
    config = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(config, str):
        raise HubError(
            f"{repo} at {revision}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does not "
            "hold this revision"
        )
    snapshot = Path(config).parent
    files = {}
    for path in sorted(p for p in snapshot.rglob("*") if p.is_file()):
        name, blob = path.relative_to(snapshot).as_posix(), path.resolve().name
        sha256, git = (blob if len(blob) == digits else None for digits in (64, 40))
        files[name] = HubFile(name, path.stat().st_size, sha256, git)
    return Revision(repo, revision, snapshot.name, files)
