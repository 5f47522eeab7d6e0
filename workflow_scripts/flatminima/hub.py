"""The Hugging Face hub: revisions, checkpoints and tokenizers, through its own client.

``HF_HUB_OFFLINE``, ``HF_HOME``, ``HF_ENDPOINT`` and ``HF_TOKEN`` work as they do there. Added
to what the client does: a hub that is busy or breaks off is asked again, every file is held
to the hash that the hub states, and what goes wrong is one line with repository and revision.
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars, parse_ratelimit_headers
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from flatminima.errors import UserError, one_line
from flatminima.files import atomic_path, file_sha256
from flatminima.jobs import log

Result = TypeVar("Result")

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
ATTEMPTS, LONGEST_PAUSE_S = 12, 60.0  # about six minutes in all
BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses that pass
_NO_MORE_BYTES = 416
_OF_THE_CLIENT = (HTTPError, OSError, EOFError, RuntimeError)  # the last are hf_xet's
# How the client says that a body ended early: before its own length, and before the file's.
_CUT = re.compile(r"received \d+ bytes, expected \d+|of size \d+ but has size \d+")


class HubError(UserError):
    """A revision could not be fetched, or what was fetched cannot be trusted."""


class RevisionMissing(HubError):
    """The hub does not have this revision, or nothing that can be loaded in it.

    ``reason`` says which, without the name of the repository.
    """

    def __init__(self, repo: str, revision: str, reason: str) -> None:
        super().__init__(f"{repo} at {revision}: {reason}")
        self.reason = reason


# Asking, and asking again


def ask(action: Callable[[], Result], repo: str, revision: str, file: str = "") -> Result:
    """What ``action`` returns, repeated for some minutes while its errors are such that pass.

    Raises ``RevisionMissing`` for what the hub does not have, ``HubError`` for whatever else
    the hub's client or the disk raises.
    """
    what = f"{repo} at {revision}" + (f": {file}" if file else "")

    def attempt() -> Result:
        try:
            return action()
        except LocalEntryNotFoundError as error:  # not in the cache either: why is behind it
            raise error.__cause__ or error from None

    def tell(state: RetryCallState) -> None:
        reason = describe_error(state.outcome.exception())
        log(f"{what}: {reason}; again in {state.upcoming_sleep:g} s")

    try:
        return Retrying(
            retry=retry_if_exception(passes),
            stop=stop_after_attempt(ATTEMPTS),
            wait=_pause,
            before_sleep=tell,
            reraise=True,
        )(attempt)
    except _OF_THE_CLIENT as error:
        raise _one_line(error, what, repo, revision) from error


def passes(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (*BUSY, _NO_MORE_BYTES)
    # The connection's (refused, reset, timed out), hf_xet's, or a body that ended early.
    broken = isinstance(error, HTTPError | ConnectionError | EOFError | RuntimeError)
    return broken or _CUT.search(str(error)) is not None


def describe_error(error: BaseException) -> str:
    """An error of the hub's client in a few words."""
    if isinstance(error, HfHubHTTPError):
        response = error.response
        if response.status_code == _NO_MORE_BYTES:
            return "the body is cut off: the hub has fewer bytes than it says"
        told = response.headers.get("X-Error-Message") or response.reason_phrase
        return f"the hub answers {response.status_code} {told}"
    if cut := _CUT.search(str(error)):
        return f"the body is cut off ({cut[0]})"
    return one_line(error)


def _pause(state: RetryCallState) -> float:
    """Seconds to wait: twice as long each time, and no shorter than the server asked for."""
    error, asked = state.outcome.exception(), 0.0
    if isinstance(error, HfHubHTTPError):
        limit = parse_ratelimit_headers(error.response.headers)
        after = error.response.headers.get("Retry-After", "").strip()
        if limit is not None and limit.remaining == 0:
            asked = float(limit.reset_in_seconds)
        elif after.isdigit():
            asked = float(after)
    return max(asked, min(LONGEST_PAUSE_S, 2.0 ** (state.attempt_number - 1)))


def _one_line(error: BaseException, what: str, repo: str, revision: str) -> HubError:
    if isinstance(error, RevisionNotFoundError):
        return RevisionMissing(repo, revision, "the hub has no such revision")
    if isinstance(error, EntryNotFoundError):
        reason = f"a file that it lists is not there ({describe_error(error)})"
        return RevisionMissing(repo, revision, reason)
    hub = constants.ENDPOINT
    if isinstance(error, GatedRepoError):
        return HubError(
            f"{repo} at {revision}: the repository is gated; accept its terms at {hub}/{repo} and "
            "set HF_TOKEN to a token of that account"
        )
    if isinstance(error, RepositoryNotFoundError):
        return HubError(
            f"{repo} at {revision}: {hub} has no such repository, or it is private and HF_TOKEN "
            "does not open it"
        )
    of_the_disk = isinstance(error, OSError) and not isinstance(error, HTTPError | ConnectionError)
    plain = of_the_disk and not _CUT.search(str(error))
    return HubError(f"{what}: {error if plain else describe_error(error)}")


# What a revision holds


@dataclass(frozen=True)
class HubFile:
    """A file as the hub describes it: a large one by its sha256, a small one by git's hash."""

    size: int | None
    digest: str | None

    @property
    def sha256(self) -> str | None:
        """The sha256 where the hub states it."""
        return self.digest if self.digest and len(self.digest) == 64 else None

    def agrees(self, path: Path) -> bool:
        """Whether the file at ``path`` is this one, byte for byte."""
        if self.size not in (None, path.stat().st_size):
            return False
        if self.sha256:
            return file_sha256(path) == self.sha256
        content = path.read_bytes()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return self.digest in (None, git)


@dataclass(frozen=True)
class Revision:
    """A branch or tag of a repository, pinned to the commit it meant when it was asked for."""

    repo: str
    name: str
    commit: str
    files: Mapping[str, HubFile]

    def __str__(self) -> str:
        return f"{self.repo} at {self.name}"


def find_revision(repo: str, revision: str) -> Revision:
    """Ask the hub once what ``revision`` holds; the user's cache where HF_HUB_OFFLINE is set.

    Raises ``RevisionMissing`` where the hub has no such revision, ``HubError`` for the rest.
    """
    if constants.is_offline_mode():
        return _cached_revision(repo, revision)
    api = HfApi(endpoint=constants.ENDPOINT)

    def describe() -> Revision:
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        try:
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=timeout)
        except json.JSONDecodeError as error:
            raise EOFError("half an answer, which is no JSON") from error
        files = {
            s.rfilename: HubFile(s.size, s.lfs.sha256 if s.lfs else s.blob_id)
            for s in info.siblings or ()
        }
        return Revision(repo, revision, info.sha, files)

    return ask(describe, repo, revision)


def list_branches(repo: str) -> dict[str, str]:
    """Commit of each branch of a repository, in the order of their names."""
    api = HfApi(endpoint=constants.ENDPOINT)
    refs = ask(lambda: api.list_repo_refs(repo), repo, "its list of branches")
    return {branch.name: branch.target_commit for branch in refs.branches}


def _cached_revision(repo: str, revision: str) -> Revision:
    """What the user's cache holds of a revision; a file there is named by its hash."""
    config = try_to_load_from_cache(repo, CONFIG_FILE, revision=revision)
    if not isinstance(config, str):
        raise HubError(
            f"{repo} at {revision}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does not "
            "hold this revision"
        )
    snapshot = Path(config).parent
    paths = {p.relative_to(snapshot).as_posix(): p for p in snapshot.rglob("*") if p.is_file()}
    files = {n: HubFile(p.stat().st_size, p.resolve().name) for n, p in sorted(paths.items())}
    return Revision(repo, revision, snapshot.name, files)


# Files


def fetch_file(revision: Revision, name: str, folder: Path) -> Path:
    """A path at which a file of ``revision`` lies whole, its size and hash checked.

    That is the user's cache where the file is there already, and else in ``folder``. Wrong
    bytes are fetched once more. Raises ``HubError``, or ``RevisionMissing`` where the hub
    lists the file and does not have it.
    """
    if name not in revision.files:
        raise RevisionMissing(revision.repo, revision.name, f"{name} is missing")
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
    disable_progress_bars()

    def download() -> Path:
        # Another cache than the user's, which may hold the damaged file.
        where = {"local_dir": folder, "cache_dir": folder / ".cache"}
        return Path(hf_hub_download(revision.repo, name, revision=revision.commit, **where))

    for attempt in ("first", "second"):
        path = ask(download, revision.repo, revision.name, name)
        if file.agrees(path):
            return path
        path.unlink()
        log(f"{revision}: {name} came with wrong bytes at the {attempt} download")
    raise HubError(f"{revision}: {name} came twice with other bytes than the hub says it has")


def download_tokenizer(repo: str, revision: str, output: str | Path) -> str:
    """Copy a revision's ``tokenizer.json`` to ``output``; returns the commit it came from."""
    found = find_revision(repo, revision)
    if TOKENIZER_FILE not in found.files:
        raise RevisionMissing(repo, revision, f"it holds no {TOKENIZER_FILE}")
    with tempfile.TemporaryDirectory() as folder, atomic_path(output) as temporary:
        shutil.copyfile(fetch_file(found, TOKENIZER_FILE, Path(folder)), temporary)
    return found.commit
