"""The Hugging Face hub: revisions, checkpoints and tokenizers, through its own client.

``HF_HUB_OFFLINE``, ``HF_HOME``, ``HF_ENDPOINT`` and ``HF_TOKEN`` work as they do there. Added
to what the client does: a hub that is busy or breaks off is asked again, every file is held
to the hash that the hub states, and what goes wrong is one line with repository and revision.
Whatever form weights have there, they end as one safetensors file in the dtype they came in.

Rules without weights read this module, so torch is imported where weights are.
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

Result = TypeVar("Result")

TOKENIZER_FILE = "tokenizer.json"
STAGING = ".download"  # what is on the way to its place in a folder
ATTEMPTS, LONGEST_PAUSE_S = 12, 60.0  # about six minutes in all
MOST_WRONG_DIGESTS = 2  # downloads of one file
BUSY = (408, 416, 425, 429, 500, 502, 503, 504)  # 416: there are fewer bytes than it says
# The connection's (refused, reset, timed out), half an answer, hf_xet's.
_BROKEN = (errors.HTTPError, ConnectionError, EOFError, json.JSONDecodeError, RuntimeError)


class HubError(UserError):
    """A revision could not be fetched, or what was fetched cannot be trusted."""


class RevisionMissing(HubError):
    """The hub has no such revision, or nothing in it to load; ``reason`` says so without names."""

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
        except errors.LocalEntryNotFoundError as error:  # not in the cache either: why is behind it
            raise error.__cause__ or error from None

    def tell(state: tenacity.RetryCallState) -> None:
        reason = _reason(state.outcome.exception(), repo)
        logger.warning(f"{what}: {reason}; again in {state.upcoming_sleep:g} s")

    try:
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(_passes),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=_pause,
            before_sleep=tell,
            reraise=True,
        )(attempt)
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise RevisionMissing(repo, revision, _reason(error, repo)) from error
    except (*_BROKEN, OSError) as error:
        raise HubError(f"{what}: {_reason(error, repo)}") from error


def _passes(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in BUSY
    if isinstance(error, errors.OfflineModeIsEnabled):
        return False
    return isinstance(error, _BROKEN) or "Consistency check failed" in str(error)


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds to wait: twice as long each time, and no shorter than the server asked for."""
    error, asked = state.outcome.exception(), 0.0
    if isinstance(error, errors.HfHubHTTPError):
        headers = error.response.headers
        limit, after = parse_ratelimit_headers(headers), headers.get("Retry-After", "")
        if limit is not None and limit.remaining == 0:
            asked = float(limit.reset_in_seconds)
        elif after.isdigit():
            asked = float(after)
    return max(asked, tenacity.wait_exponential(max=LONGEST_PAUSE_S)(state))


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
        return f"{hub} has no such repository, or it is private and HF_TOKEN does not open it"
    if isinstance(error, errors.HfHubHTTPError):
        told = error.response.headers.get("X-Error-Message") or error.response.reason_phrase
        return f"the hub answers {error.response.status_code} {told}"
    return one_line(error)


# What a revision holds


@dataclass(frozen=True)
class Revision:
    """A branch or tag of a repository, pinned to the commit it meant when it was asked for.

    ``files`` has the hash of each file: sha256 of a large one, git's own of a small one. Those
    of a dataset are not asked for.
    """

    repo: str
    name: str
    commit: str
    files: Mapping[str, str | None]

    def __str__(self) -> str:
        return f"{self.repo} at {self.name}"


def find_revision(
    repo: str, revision: str, kind: str = "model", holding: str = CONFIG_FILE
) -> Revision:
    """Ask the hub once what ``revision`` holds; raises what ``ask`` raises.

    Where HF_HUB_OFFLINE is set, it is what the user's cache holds beside the file ``holding``.
    """
    if constants.is_offline_mode():
        found = try_to_load_from_cache(repo, holding, revision=revision, repo_type=kind)
        if not isinstance(found, str):
            raise HubError(
                f"{repo} at {revision}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does "
                "not hold this revision"
            )
        snapshot = Path(found.removesuffix(holding))  # a file there is a link, named by its hash
        paths = sorted(path for path in snapshot.rglob("*") if path.is_file())
        files = {path.relative_to(snapshot).as_posix(): path.resolve().name for path in paths}
        return Revision(repo, revision, snapshot.name, files)
    options = {"revision": revision, "timeout": constants.HF_HUB_ETAG_TIMEOUT, "repo_type": kind}
    options["files_metadata"] = kind == "model"
    info = ask(partial(HfApi().repo_info, repo, **options), repo, revision)
    files = {s.rfilename: s.lfs.sha256 if s.lfs else s.blob_id for s in info.siblings or ()}
    return Revision(repo, revision, info.sha, files)


def list_branches(repo: str) -> dict[str, str]:
    """Commit of each branch of a repository, in the order of their names."""
    refs = ask(partial(HfApi().list_repo_refs, repo), repo, "its list of branches")
    return {branch.name: branch.target_commit for branch in refs.branches}


# Files


def fetch_file(revision: Revision, name: str, folder: Path) -> Path:
    """A path at which a file of ``revision`` lies whole, its hash checked.

    It is in the user's cache where that has the file, else in ``folder``. Raises as ``ask`` does.
    """
    if name not in revision.files:
        raise RevisionMissing(revision.repo, revision.name, f"{name} is missing")
    cached = try_to_load_from_cache(revision.repo, name, revision=revision.commit)
    if isinstance(cached, str):
        if _agrees(Path(cached), revision.files[name]):
            return Path(cached)
        logger.warning(f"{revision}: {name} in the cache is damaged and not used: {cached}")
    if constants.is_offline_mode():
        raise HubError(
            f"{revision}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does not hold "
            f"{name} whole"
        )
    disable_progress_bars()

    wrong_digests = 0

    def download() -> Path:
        nonlocal wrong_digests
        # Another cache than the user's, which may contain the damaged file.
        where = {"local_dir": folder, "cache_dir": folder / ".cache"}
        path = Path(hf_hub_download(revision.repo, name, revision=revision.commit, **where))
        if _agrees(path, revision.files[name]):
            return path
        path.unlink()
        wrong_digests += 1
        reason = "its sha256 is not the one that the hub states"
        # Two wrong downloads are no fault of the connection: the hub has a wrong file.
        if wrong_digests == MOST_WRONG_DIGESTS:
            raise HubError(f"{revision}: {name}: {reason}, in {wrong_digests} downloads")
        raise EOFError(reason)

    return ask(download, revision.repo, revision.name, name)


def _agrees(path: Path, digest: str) -> bool:
    if len(digest) == 64:
        return file_sha256(path) == digest
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == digest


def download_tokenizer(repo: str, revision: str, output: str | Path) -> str:
    """Copy a revision's ``tokenizer.json`` to ``output``; returns the commit it came from."""
    found = find_revision(repo, revision)
    if TOKENIZER_FILE not in found.files:
        raise RevisionMissing(repo, revision, f"it holds no {TOKENIZER_FILE}")
    with tempfile.TemporaryDirectory() as folder, atomic_path(output) as temporary:
        shutil.copyfile(fetch_file(found, TOKENIZER_FILE, Path(folder)), temporary)
    return found.commit


# Checkpoints


def download_checkpoint(repo: str, revision: str, folder: str | Path) -> dict:
    """Write ``model.safetensors`` and ``config.json`` of a revision to ``folder``.

    Only what is needed is fetched: safetensors, whole or in shards, else ``.bin`` files.
    Returns repo, revision and commit, ``files`` (sha256 by the hub's names) and their sum in
    ``bytes``. Raises ``RevisionMissing`` for what the hub does not have, else ``HubError``.
    """
    found, folder = find_revision(repo, revision), Path(folder)
    preferred = (WEIGHTS_FILE, WEIGHTS_INDEX, *PICKLES)
    start = next((form for form in preferred if form in found.files), None)
    if start is None or CONFIG_FILE not in found.files:
        lacking = CONFIG_FILE if start else "weights (model.safetensors or pytorch_model.bin)"
        raise RevisionMissing(repo, revision, f"it holds no {lacking}")
    staging = folder / STAGING
    try:
        paths = {name: fetch_file(found, name, staging) for name in (CONFIG_FILE, start)}
        weight_map = read_index(paths[start]) if start.endswith(".index.json") else {}
        shards = sorted(set(weight_map.values())) or [start]
        paths |= {name: fetch_file(found, name, staging) for name in shards if name not in paths}
        sizes = [path.stat().st_size for path in paths.values()]
        files = {
            name: digest if len(digest := found.files[name]) == 64 else file_sha256(path)
            for name, path in paths.items()
        }
        with atomic_path(folder / WEIGHTS_FILE) as temporary:
            if start == WEIGHTS_FILE:
                check_whole(paths[start])
                _move(paths[start], temporary, staging)
            else:
                join_weights([paths[name] for name in shards], weight_map, temporary)
        with atomic_path(folder / CONFIG_FILE) as temporary:
            _move(paths[CONFIG_FILE], temporary, staging)
    except (DamagedFile, OSError) as error:
        raise HubError(f"{found}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    origin = {"repo": repo, "revision": revision, "commit": found.commit}
    return origin | {"files": files, "bytes": sum(sizes)}


def _move(source: Path, target: Path, staging: Path) -> None:
    """Move a file of ``staging``, or copy one of the user's cache."""
    (shutil.move if source.is_relative_to(staging) else shutil.copyfile)(source, target)


def read_tensors(path: Path) -> dict:
    """Tensors of one file; a pickle is read as data and never run."""
    import torch
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        check_whole(path)
        return load_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise DamagedFile(
            f"{path.name} is a pickle that holds more than tensors, which could run code; refused"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise DamagedFile(f"{path.name} cannot be read as weights: {one_line(error)}") from error
    if not isinstance(found, dict) or not all(map(torch.is_tensor, found.values())):
        raise DamagedFile(f"{path.name} holds something other than named tensors; refused")
    return found


def join_weights(parts: Sequence[Path], expected: Collection[str], output: Path) -> None:
    """Write the tensors of all parts to one safetensors file; an index names those expected."""
    from safetensors.torch import save_file

    tensors, seen = {}, set()
    for path in parts:
        for name, tensor in read_tensors(path).items():
            address = tensor.untyped_storage().data_ptr()  # the format wants one for each tensor
            tensors[name] = tensor.clone() if address in seen else tensor.contiguous()
            seen.add(address)
    if missing := sorted(set(expected) - set(tensors)):
        raise DamagedFile(f"its shards lack {len(missing)} weights, such as {missing[0]}")
    save_file(tensors, output, metadata={"format": "pt"})
