"""Where a split's text comes from: the first source of an ordered list that can be had.

A source is a local file (``path``) or a file of a hub dataset (``repo``, ``file`` and
``revision``, main where left out). It names its file. A source that is not there, or that
lacks this file, is passed over with its reason, and nothing else ever takes its place.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, try_to_load_from_cache

from flatminima.errors import UserError, suggest
from flatminima.hub.errors import HubError, one_line
from flatminima.hub.retrying import PATIENT, Patience, persist
from flatminima.text.names import COMPRESSIONS, FORMATS, PATTERN, file_format


class TextError(UserError):
    """Text that cannot be had or read, in one line that names the file."""


class NotAvailable(Exception):
    """Why a source cannot be had here and now, without its name."""


@dataclass(frozen=True)
class TextFile:
    """A file that was found: its ``name`` for people, and where and how `datasets` opens it."""

    name: str
    location: str
    format: str
    field: str = "text"
    commit: str | None = None


def describe_source(source: Mapping) -> str:
    """A source of the configuration in a few words."""
    if "path" in source:
        return source["path"]
    revision = f" at {source['revision']}" if "revision" in source else ""
    return f"{source['repo']}{revision}: {source['file']}"


def find_first(
    sources: Sequence[Mapping], what: str, patience: Patience = PATIENT
) -> tuple[TextFile, list[dict[str, str]]]:
    """The first source that can be had, and those before it with the reason of each.

    ``what`` names the text in the error, a ``TextError`` where none can be had.
    """
    passed_over: list[dict[str, str]] = []
    for source in sources:
        name = describe_source(source)
        try:
            return find_file(source, patience), passed_over
        except NotAvailable as error:
            passed_over.append({"source": name, "reason": str(error)})
    reasons = "; ".join(f"{entry['source']} ({entry['reason']})" for entry in passed_over)
    raise TextError(f"{what}: none of its sources can be had: {reasons}")


def find_file(source: Mapping, patience: Patience = PATIENT) -> TextFile:
    """The file of one source; raises ``NotAvailable`` where it cannot be had.

    A package that the file needs and that is missing is a ``TextError``: what is installed
    must not decide which text is taken.
    """
    file = source.get("path") or source["file"]
    if package := COMPRESSIONS.get(PurePosixPath(file).suffix):
        _need(package, describe_source(source))
    return _local(source) if "path" in source else _on_hub(source, patience)


def _need(package: str, name: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise TextError(f"{name}: reading it needs the package {package}, which is not installed")


def _local(source: Mapping) -> TextFile:
    path = Path(source["path"])
    if not path.is_file():
        raise NotAvailable("is no file" if path.exists() else "no such file")
    if PATTERN.search(str(path.absolute())):
        raise TextError(f"{path.absolute()}: a folder above it has one of * ? [ ] in its name")
    field = source.get("field", "text")
    return TextFile(source["path"], str(path.absolute()), file_format(path.name), field)


def _on_hub(source: Mapping, patience: Patience) -> TextFile:
    repo, file, revision = source["repo"], source["file"], source.get("revision", "main")
    name, form, field = describe_source(source), file_format(file), source.get("field", "text")
    if constants.is_offline_mode():
        cached = _in_cache(repo, file, revision)
        if cached is None:
            raise NotAvailable(f"HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} lacks it")
        return TextFile(name, str(cached), form, field, _commit_of(cached, file))
    commit, files = _ask(repo, revision, patience)
    if file not in files:
        raise NotAvailable(f"there is no {file} in it; {suggest(file, _closest(file, files))}")
    cached = _in_cache(repo, file, commit)
    location = str(cached) if cached else f"hf://datasets/{repo}@{commit}/{file}"
    return TextFile(name, location, form, field, commit)


def _ask(repo: str, revision: str, patience: Patience) -> tuple[str, list[str]]:
    """The commit that a revision means now, and the names of its files."""
    name = f"datasets/{repo}"

    def ask() -> tuple[str, list[str]]:
        api = HfApi(endpoint=constants.ENDPOINT)
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        info = api.dataset_info(repo, revision=revision, timeout=timeout)
        return info.sha, [sibling.rfilename for sibling in info.siblings or ()]

    try:
        with one_line(name, revision):
            return persist(ask, f"{name} at {revision}", patience)
    except HubError as error:
        raise NotAvailable(str(error)) from error


def _closest(file: str, files: Sequence[str], most: int = 5) -> list[str]:
    """A few of a repository's text files, for the message: those of the same folder first."""
    folder = PurePosixPath(file).parent
    texts = [name for name in files if set(PurePosixPath(name).suffixes) & set(FORMATS)]
    return sorted(texts, key=lambda name: (PurePosixPath(name).parent != folder, name))[:most]


def _in_cache(repo: str, file: str, revision: str) -> Path | None:
    """The file in the user's cache, where an earlier download left it."""
    found = try_to_load_from_cache(repo, file, revision=revision, repo_type="dataset")
    return Path(found) if isinstance(found, str) else None


def _commit_of(cached: Path, file: str) -> str:
    """The commit in ``…/snapshots/<commit>/<file>``."""
    return cached.parts[-1 - len(PurePosixPath(file).parts)]
