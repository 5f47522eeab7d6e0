"""Fetches revisions, checkpoints and tokenizers from the Hugging Face hub with its own client.

``HF_HUB_OFFLINE``, ``HF_HOME``, ``HF_ENDPOINT`` and ``HF_TOKEN`` work as usual. This module adds
three things to the client. It repeats requests if the hub is busy or a connection breaks. It
compares every file with the hash that the hub states. It reports errors in one line with
repository and revision. Weights of any format become one safetensors file with their own dtype.

Rules without weights import this module too, so torch is imported only by functions on weights.
"""

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import TypeVar

import tenacity
from huggingface_hub import HfApi, constants, errors, hf_hub_download, try_to_load_from_cache
from huggingface_hub.utils import disable_progress_bars, parse_ratelimit_headers

from flatminima.errors import DamagedFile, UserError, one_line
from flatminima.files import (
    CONFIG_FILE,
    PICKLES,
    WEIGHTS_FILE,
    WEIGHTS_INDEX,
    atomic_path,
    check_whole,
    file_sha256,
    read_index,
)

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

TOKENIZER_FILE = "tokenizer.json"
_GO_ONLINE = "unset HF_HUB_OFFLINE, or fetch it once while online"
STAGING = ".download"  # folder of files that are not complete yet
# About six minutes in total.
ATTEMPTS = 12
LONGEST_PAUSE_S = 60.0
MOST_WRONG_DIGESTS = 2  # downloads of one file
# HTTP status codes that may pass. 416: a file is still shorter than announced.
BUSY = (408, 416, 425, 429, 500, 502, 503, 504)
# A refused, reset or timed-out connection, an incomplete answer, and errors of hf_xet.
_BROKEN = (errors.HTTPError, ConnectionError, EOFError, json.JSONDecodeError, RuntimeError)


class HubError(UserError):
    """A revision could not be fetched, or a fetched file is wrong."""


class RevisionMissing(HubError):
    """The hub has no such revision, or no weights in it. ``reason`` has no repository name."""

    def __init__(self, repo: str, revision: str, reason: str) -> None:
        super().__init__(f"{repo} at {revision}: {reason}")
        self.reason = reason


# Requests and their repetition


def ask(action: Callable[[], Answer], repo: str, revision: str, file: str = "") -> Answer:
    """Return what ``action`` returns; repeat it for some minutes while its errors may pass.

    Raises ``RevisionMissing`` if the hub does not have the revision or the file, and ``HubError``
    for every other error of the hub's client or of the disk.
    """
    requested = f"{repo} at {revision}" + (f": {file}" if file else "")

    def attempt() -> Answer:
        try:
            return action()
        except errors.LocalEntryNotFoundError as error:
            # The client reports a missing cache entry. Its cause says why the hub failed.
            raise error.__cause__ or error from None

    def log_pause(state: tenacity.RetryCallState) -> None:
        reason = _reason(state.outcome.exception(), repo)
        logger.warning(f"{requested}: {reason}; next attempt in {state.upcoming_sleep:g} s")

    try:
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=_pause,
            before_sleep=log_pause,
            reraise=True,
        )(attempt)
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise RevisionMissing(repo, revision, _reason(error, repo)) from error
    except (*_BROKEN, OSError) as error:
        raise HubError(f"{requested}: {_reason(error, repo)}") from error


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in BUSY
    if isinstance(error, errors.OfflineModeIsEnabled):
        return False
    return isinstance(error, _BROKEN) or "Consistency check failed" in str(error)


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds to wait: twice as long each time, and at least as long as the server demands."""
    error = state.outcome.exception()
    demanded_s = 0.0
    if isinstance(error, errors.HfHubHTTPError):
        headers = error.response.headers
        rate_limit = parse_ratelimit_headers(headers)
        retry_after = headers.get("Retry-After", "")
        if rate_limit is not None and rate_limit.remaining == 0:
            demanded_s = float(rate_limit.reset_in_seconds)
        elif retry_after.isdigit():
            demanded_s = float(retry_after)
    return max(demanded_s, tenacity.wait_exponential(max=LONGEST_PAUSE_S)(state))


def _reason(error: BaseException, repo: str) -> str:
    """An error of the hub's client in a few words."""
    hub = constants.ENDPOINT
    if isinstance(error, errors.RevisionNotFoundError):
        return "the hub has no such revision"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"the repository is gated; accept its terms at {hub}/{repo} and set HF_TOKEN to a "
            "token of that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} has no such repository, or it is private and HF_TOKEN gives no access"
    if isinstance(error, errors.HfHubHTTPError):
        response = error.response
        message = response.headers.get("X-Error-Message") or response.reason_phrase
        return f"the hub answers {response.status_code} {message}"
    return one_line(error)


# Revisions and their files


@dataclass(frozen=True)
class Revision:
    """A branch or tag of a repository, with the commit it meant at the time of the request.

    ``files`` maps each file name to its hash: sha256 for large files, git's own hash for small
    ones. For a dataset the hashes are not requested and are ``None``.
    """

    repo: str
    name: str
    commit: str
    files: Mapping[str, str | None]

    def __str__(self) -> str:
        return f"{self.repo} at {self.name}"


def find_revision(
    repo: str, revision: str, kind: str = "model", required_file: str = CONFIG_FILE
) -> Revision:
    """The commit and files of ``revision``, from one request to the hub.

    With HF_HUB_OFFLINE they come from the user's cache, which must contain ``required_file``.
    Raises the errors of ``ask``.
    """
    if constants.is_offline_mode():
        return _cached_revision(repo, revision, kind, required_file)
    request = partial(
        HfApi().repo_info,
        repo,
        revision=revision,
        timeout=constants.HF_HUB_ETAG_TIMEOUT,
        repo_type=kind,
        files_metadata=kind == "model",  # of datasets only the names of the files are needed
    )
    repo_info = ask(request, repo, revision)
    files = {}
    for file in repo_info.siblings or ():
        # Small files are in git itself, which names them by its own hash.
        files[file.rfilename] = file.lfs.sha256 if file.lfs else file.blob_id
    return Revision(repo, revision, repo_info.sha, files)


def _cached_revision(repo: str, revision: str, kind: str, required_file: str) -> Revision:
    """The files of a revision that are in the user's cache."""
    cached = try_to_load_from_cache(repo, required_file, revision=revision, repo_type=kind)
    if not isinstance(cached, str):
        raise HubError(
            f"{repo} at {revision}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does "
            f"not contain {required_file} of this revision; {_GO_ONLINE}"
        )
    # The cache has a folder for each commit; its name is the commit.
    snapshot = Path(cached.removesuffix(required_file))
    paths = sorted(path for path in snapshot.rglob("*") if path.is_file())
    # Each file of a snapshot is a link to a file that is named by its hash.
    files = {path.relative_to(snapshot).as_posix(): path.resolve().name for path in paths}
    return Revision(repo, revision, snapshot.name, files)


def list_branches(repo: str) -> dict[str, str]:
    """Commit of each branch of a repository, in the order of their names."""
    refs = ask(partial(HfApi().list_repo_refs, repo), repo, "its list of branches")
    return {branch.name: branch.target_commit for branch in refs.branches}


# Files


def fetch_file(revision: Revision, name: str, folder: Path) -> Path:
    """Path of a complete file of ``revision`` with the correct hash.

    It is in the user's cache if the file is there, else in ``folder``. Raises the errors of
    ``ask``.
    """
    if name not in revision.files:
        raise _lacks(revision.repo, revision.name, name)
    cached = try_to_load_from_cache(revision.repo, name, revision=revision.commit)
    if isinstance(cached, str):
        if _agrees(Path(cached), revision.files[name]):
            return Path(cached)
        logger.warning(f"{revision}: {name} in the cache is damaged and is not used: {cached}")
    if constants.is_offline_mode():
        raise HubError(
            f"{revision}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does not contain "
            f"a complete {name}; {_GO_ONLINE}"
        )
    disable_progress_bars()

    wrong_digests = 0

    def download() -> Path:
        nonlocal wrong_digests
        # Not the user's cache, which may contain the damaged file.
        folders = {"local_dir": folder, "cache_dir": folder / ".cache"}
        path = Path(hf_hub_download(revision.repo, name, revision=revision.commit, **folders))
        if _agrees(path, revision.files[name]):
            return path
        path.unlink()
        wrong_digests += 1
        reason = "its hash is not the one that the hub states"
        # After two wrong downloads the connection is not to blame: the hub has a wrong file.
        if wrong_digests == MOST_WRONG_DIGESTS:
            raise HubError(
                f"{revision}: {name}: {reason}, in {wrong_digests} downloads; the file is wrong on "
                f"{constants.ENDPOINT}; try another mirror (HF_ENDPOINT)"
            )
        raise EOFError(reason)  # counts as a broken connection, so that ``ask`` downloads again

    return ask(download, revision.repo, revision.name, name)


def _lacks(repo: str, revision: str, name: str) -> HubError:
    """The error for a file that a revision lacks: on the hub, or offline in the user's cache."""
    if constants.is_offline_mode():
        # The hub may have the file. So the revision is not missing.
        return HubError(
            f"{repo} at {revision}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} contains no "
            f"{name} of this revision; {_GO_ONLINE}"
        )
    return RevisionMissing(repo, revision, f"it has no {name}")


def _agrees(path: Path, digest: str) -> bool:
    """Whether a file has the sha256 ``digest`` or, for a shorter digest, git's hash."""
    if len(digest) == 64:
        return file_sha256(path) == digest
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == digest


def download_tokenizer(repo: str, revision: str, output: str | Path) -> str:
    """Copy a revision's ``tokenizer.json`` to ``output``; returns the revision's commit."""
    pinned = find_revision(repo, revision)
    if TOKENIZER_FILE not in pinned.files:
        raise _lacks(repo, revision, TOKENIZER_FILE)
    with tempfile.TemporaryDirectory() as folder, atomic_path(output) as temporary:
        shutil.copyfile(fetch_file(pinned, TOKENIZER_FILE, Path(folder)), temporary)
    return pinned.commit


# Checkpoints


def download_checkpoint(repo: str, revision: str, folder: str | Path) -> dict:
    """Write ``model.safetensors`` and ``config.json`` of a revision to ``folder``.

    Only needed files are fetched: safetensors (one file or shards) or else ``.bin`` files.
    Returns repo, revision, commit, ``files`` (sha256 by the hub's names) and the total ``bytes``.
    Raises ``RevisionMissing`` if the hub lacks something, ``HubError`` for other failures.
    """
    folder = Path(folder)
    pinned = find_revision(repo, revision)
    formats = (WEIGHTS_FILE, WEIGHTS_INDEX, *PICKLES)
    first_file = next((name for name in formats if name in pinned.files), None)
    if first_file is None:
        weights = "weights (model.safetensors or pytorch_model.bin)"
        raise _lacks(repo, revision, weights)
    if CONFIG_FILE not in pinned.files:
        raise _lacks(repo, revision, CONFIG_FILE)

    staging = folder / STAGING
    try:
        paths = {name: fetch_file(pinned, name, staging) for name in (CONFIG_FILE, first_file)}
        weight_map = {}
        if first_file.endswith(".index.json"):
            weight_map = read_index(paths[first_file])
        parts = sorted(set(weight_map.values())) or [first_file]
        for name in parts:
            if name not in paths:
                paths[name] = fetch_file(pinned, name, staging)

        # Before the files are moved away.
        n_bytes = sum(path.stat().st_size for path in paths.values())
        digests = {name: _sha256(path, pinned.files[name]) for name, path in paths.items()}
        with atomic_path(folder / WEIGHTS_FILE) as temporary:
            if first_file == WEIGHTS_FILE:
                check_whole(paths[first_file])
                _move(paths[first_file], temporary, staging)
            else:
                join_weights([paths[name] for name in parts], weight_map, temporary)
        with atomic_path(folder / CONFIG_FILE) as temporary:
            _move(paths[CONFIG_FILE], temporary, staging)
    except (DamagedFile, OSError) as error:
        raise HubError(f"{pinned}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return {
        "repo": repo,
        "revision": revision,
        "commit": pinned.commit,
        "files": digests,
        "bytes": n_bytes,
    }


def _sha256(path: Path, hub_digest: str) -> str:
    """sha256 of a file. The hub states it for large files, and git's own hash for small ones."""
    return hub_digest if len(hub_digest) == 64 else file_sha256(path)


def _move(source: Path, target: Path, staging: Path) -> None:
    """Move a file of ``staging``, or copy a file of the user's cache."""
    if source.is_relative_to(staging):
        shutil.move(source, target)
    else:
        shutil.copyfile(source, target)


def read_tensors(path: Path) -> dict:
    """Tensors of one file, by name. A pickle is read as data; its code is never run."""
    import torch
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        check_whole(path)
        return load_file(path)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise DamagedFile(
            f"{path.name} is a pickle that contains more than tensors and could run code; refused; "
            "convert it to safetensors first"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise DamagedFile(f"{path.name} cannot be read as weights: {one_line(error)}") from error
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise DamagedFile(f"{path.name} contains other objects than named tensors; refused")
    return tensors


def join_weights(parts: Sequence[Path], expected: Collection[str], output: Path) -> None:
    """Write the tensors of all parts to one safetensors file.

    ``expected`` has the names of an index, or is empty. Raises ``DamagedFile`` if one is missing.
    """
    from safetensors.torch import save_file

    tensors = {}
    addresses = set()
    for path in parts:
        for name, tensor in read_tensors(path).items():
            # safetensors refuses tensors that share memory, such as tied embeddings.
            address = tensor.untyped_storage().data_ptr()
            # The first of several tensors that share memory keeps it, the others become copies.
            tensors[name] = tensor.clone() if address in addresses else tensor.contiguous()
            addresses.add(address)
    missing = sorted(set(expected) - set(tensors))
    if missing:
        raise DamagedFile(f"its shards lack {len(missing)} weights, such as {missing[0]}")
    save_file(tensors, output, metadata={"format": "pt"})
