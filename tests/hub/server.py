"""A hub of a few tiny repositories: a real HTTP server on the loopback interface.

It speaks as much of the Hugging Face hub's protocol as the unmodified ``huggingface_hub``
and ``transformers`` use to read: branches, model and dataset information,
trees, files with ``X-Repo-Commit`` and ``ETag``, large files behind a redirect to another
origin with ``X-Linked-Etag`` and ``X-Linked-Size``, ranges, and the error codes.
"""

import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from threading import Thread
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.hub.faults import Fault, Faults

Content = bytes | Callable[[], bytes]
Branches = Mapping[str, Mapping[str, Content]]
LARGE = (".safetensors", ".bin", ".zst", ".parquet")  # what is stored with LFS
CHUNK = 1 << 16


@dataclass
class Request:
    """One line of the hub's log."""

    method: str
    path: str  # with the query
    status: int
    origin: str  # "hub", or "storage" for the bytes of large files
    range: str | None
    authorization: str | None
    time: float


@dataclass
class Blob:
    """A file of a commit."""

    name: str
    size: int
    sha256: str
    oid: str  # git's hash of its content
    large: bool
    read: Callable[[], bytes]

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid


@dataclass
class Repository:
    """Branches of files; a branch that is a string is another name for that branch."""

    kind: str  # "model" or "dataset"
    name: str
    branches: dict[str, Mapping[str, Content] | str]
    versions: dict[str, int] = field(default_factory=dict)

    def commit(self, branch: str) -> str:
        """The 40 digits that stand for a branch; they change with every push."""
        target = self.branches[branch]
        if isinstance(target, str):
            return self.commit(target)
        text = f"{self.kind}/{self.name}/{branch}/{self.versions.get(branch, 0)}"
        return hashlib.sha1(text.encode()).hexdigest()

    def branch_of(self, revision: str) -> str | None:
        """The branch that a branch name or a commit means."""
        if revision in self.branches:
            target = self.branches[revision]
            return target if isinstance(target, str) else revision
        return next((self.branch_of(b) for b in self.branches if self.commit(b) == revision), None)

    def blobs(self, branch: str) -> dict[str, Blob]:
        """Files of a branch; lazy content is made here and not kept."""
        files = self.branches[branch]
        assert not isinstance(files, str)
        return {name: describe_content(name, content) for name, content in sorted(files.items())}


@lru_cache(maxsize=4096)
def describe_content(name: str, content: Content) -> Blob:
    def read() -> bytes:
        return content() if callable(content) else content

    data = read()
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    sha256 = hashlib.sha256(data).hexdigest()
    return Blob(name, len(data), sha256, git, name.endswith(LARGE), read)


class TinyHub:
    """The server, as a context manager; ``models`` and ``datasets`` map repositories to branches.

    ``.endpoint`` is what ``HF_ENDPOINT`` is set to, ``.requests`` the log, ``.faults`` the
    switches. ``gated`` repositories need ``token``. Content is bytes or a function that
    makes them.
    """

    def __init__(
        self,
        models: Mapping[str, Branches] | None = None,
        datasets: Mapping[str, Branches] | None = None,
        *,
        gated: tuple[str, ...] = (),
        token: str = "hf_test",
    ) -> None:
        self.repositories = {
            (kind, name): Repository(kind, name, dict(branches))
            for kind, repos in (("model", models or {}), ("dataset", datasets or {}))
            for name, branches in repos.items()
        }
        self.gated = gated
        self.token = token
        self.faults = Faults()
        self.requests: list[Request] = []
        self.stored: dict[str, Blob] = {}

    def __enter__(self) -> "TinyHub":
        self._servers = []
        for origin in ("hub", "storage"):
            handler = type("Handler", (_Handler,), {"hub": self, "origin": origin})
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.daemon = True
            thread.start()
            self._servers.append(server)
        self.endpoint, self.storage = (
            f"http://127.0.0.1:{server.server_port}" for server in self._servers
        )
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def push(self, repo: str, branch: str, files: Mapping[str, Content], kind="model") -> None:
        """A new commit on ``branch``."""
        repository = self.repositories[kind, repo]
        repository.branches[branch] = files
        repository.versions[branch] = repository.versions.get(branch, 0) + 1

    def commit(self, repo: str, branch: str, kind: str = "model") -> str:
        """The commit that ``branch`` points to."""
        return self.repositories[kind, repo].commit(branch)

    def with_branch(self, path: str) -> str:
        """``path`` with the name of a branch where it has a commit."""
        for repository in self.repositories.values():
            for digits in re.findall(r"[0-9a-f]{40}(?![0-9a-f])", path):
                if f"/{repository.name}/" in path and (branch := repository.branch_of(digits)):
                    path = path.replace(digits, branch)
        return path

    def asked(self, pattern: str = "", method: str | None = None) -> list[Request]:
        """Requests of the log whose path the regular expression finds."""
        log = list(self.requests)
        return [
            r for r in log if re.search(pattern, r.path) and method in (None, r.method)
        ]  # fmt: skip

    def environment(self, home: str | Path, **more: str) -> dict[str, str]:
        """Environment of a subprocess whose libraries are to use this hub and ``home``."""
        dropped = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE")
        kept = {k: v for k, v in os.environ.items() if k not in dropped and k[:6] != "PYTEST"}
        proxy = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return {**kept, **proxy, "HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), **more}


class _Handler(BaseHTTPRequestHandler):
    hub: TinyHub
    origin: str
    protocol_version = "HTTP/1.1"
    fault: Fault | None = None

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self._status = 0
        fault = self.fault = self.hub.faults.meet(self.command, self.hub.with_branch(self.path))
        asked = Request(
            self.command, self.path, 0, self.origin, self.headers.get("Range"),
            self.headers.get("Authorization"), time.monotonic(),
        )  # fmt: skip
        self.hub.requests.append(asked)
        try:
            if fault and fault.kind == "status":
                self._send(fault.status, b"this is a fault", fault.headers)
            elif self.origin == "storage":
                self._file(self.hub.stored[urlsplit(self.path).path.rsplit("/", 1)[1]], {})
            else:
                self._route(unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        asked.status = self._status

    # What is asked for

    def _route(self, path: str, query: dict[str, list[str]]) -> None:
        if match := re.fullmatch(
            r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/([a-z-]+)(?:/(.*))?)?", path
        ):
            self._api(*match.groups(), query)
        elif match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve("dataset" if match[1] else "model", *match.groups()[1:])
        else:
            self._error(404, None, "no such page")

    def _repository(self, kind: str, name: str) -> Repository | None:
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            # The hub does not tell a stranger which repositories exist.
            self._error(401, "RepoNotFound", "Repository not found")
        elif name in self.hub.gated and not self._authorized():
            self._error(401, "GatedRepo", f"Access to {kind} {name} is restricted.")
        else:
            return repository
        return None

    def _authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _branch(self, repository: Repository, revision: str) -> str | None:
        if (repository.name, revision) in self.hub.faults.serves_main:
            revision = "main"
        branch = repository.branch_of(revision)
        if branch is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return branch

    def _api(self, kind, name, what, rest, query) -> None:
        repository = self._repository(kind, name)
        if repository is None:
            return
        if what == "refs":
            branches = [
                {"name": b, "ref": f"refs/heads/{b}", "targetCommit": repository.commit(b)}
                for b in sorted(repository.branches)
            ]
            return self._json({"branches": branches, "converts": [], "tags": []})
        revision, _, folder = (rest or "main").partition("/")
        branch = self._branch(repository, revision)
        if branch is None:
            return
        if what in (None, "revision"):
            self._json(self._info(repository, branch, "blobs" in query))
        elif what == "tree":
            self._tree(repository, branch, folder)
        else:
            self._error(404, None, f"no such thing as {what}")

    def _info(self, repository: Repository, branch: str, with_blobs: bool) -> dict:
        siblings = [{"rfilename": name} for name in sorted(repository.branches[branch])]
        if with_blobs:
            blobs = repository.blobs(branch)
            for sibling in siblings:
                blob = blobs[sibling["rfilename"]]
                sibling |= {"size": blob.size, "blobId": blob.oid}
                if blob.large:
                    sibling["lfs"] = {"size": blob.size, "sha256": blob.sha256, "pointerSize": 130}
        return {
            "_id": "0", "id": repository.name, "modelId": repository.name,
            "sha": repository.commit(branch), "private": False, "gated": False, "disabled": False,
            "downloads": 0, "likes": 0, "tags": [], "cardData": {}, "siblings": siblings,
            "lastModified": "2023-04-03T00:00:00.000Z", "createdAt": "2023-04-03T00:00:00.000Z",
        }  # fmt: skip

    def _tree(self, repository: Repository, branch: str, folder: str) -> None:
        """Files and folders right below ``folder``, as the hub lists them."""
        above, entries = f"{folder}/" if folder else "", {}
        for blob in repository.blobs(branch).values():
            if not blob.name.startswith(above):
                continue
            name, _, below = blob.name.removeprefix(above).partition("/")
            entry = {"type": "file", "path": f"{above}{name}", "size": blob.size, "oid": blob.oid}
            if below:
                entry |= {"type": "directory", "size": 0, "oid": "0" * 40}
            elif blob.large:
                entry["lfs"] = {"oid": blob.sha256, "size": blob.size, "pointerSize": 130}
            entries[name] = entry
        if entries:
            self._json(list(entries.values()))
        else:
            self._error(404, "EntryNotFound", f"{folder} does not exist")

    def _resolve(self, kind: str, name: str, revision: str, file: str) -> None:
        repository = self._repository(kind, name)
        branch = repository and self._branch(repository, revision)
        if not repository or not branch:
            return
        headers = {"X-Repo-Commit": repository.commit(branch)}
        if file not in repository.branches[branch]:
            return self._error(404, "EntryNotFound", "Entry not found", headers)
        blob = describe_content(file, repository.branches[branch][file])
        if not blob.large:
            return self._file(blob, headers)
        self.hub.stored[blob.sha256] = blob
        self._send(302, b"", headers | {
            "Location": f"{self.hub.storage}/lfs/{quote(name)}/{revision}/{file}/{blob.sha256}",
            "X-Linked-Etag": f'"{blob.sha256}"',
            "X-Linked-Size": str(blob.size),
            "ETag": f'"{blob.oid}"',
        })  # fmt: skip

    # How it is answered

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str | None, message: str, headers=None) -> None:
        coded = {"X-Error-Code": code} if code else {}
        told = {"X-Error-Message": message, **coded, **(headers or {})}
        self._send(status, json.dumps({"error": message}).encode(), told)

    def _file(self, blob: Blob, headers: dict[str, str]) -> None:
        headers = headers | {"ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"}
        body = blob.read()
        if self.fault and self.fault.kind == "wrong":
            body = bytes(byte ^ 0xFF for byte in body)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not match:
            return self._send(200, body, headers)
        first, last = int(match[1]), min(int(match[2] or len(body)), len(body) - 1)
        if first >= len(body):
            return self._send(416, b"", headers | {"Content-Range": f"bytes */{len(body)}"})
        if self.fault and self.fault.kind == "wrong_range":
            first = 0
        self._send(206, body[first : last + 1], headers | {
            "Content-Range": f"bytes {first}-{last}/{len(body)}"
        })  # fmt: skip

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._status = status
        fault = self.fault if self.command != "HEAD" else None
        if fault and fault.kind == "short":
            body = body[: fault.after]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault and fault.kind in ("reset", "truncate", "stall"):
            self._break_off(fault, body)
        else:
            for start in range(0, len(body), CHUNK):
                self.wfile.write(body[start : start + CHUNK])

    def _break_off(self, fault: Fault, body: bytes) -> None:
        self.wfile.write(body[: fault.after])
        if fault.kind == "stall":
            time.sleep(fault.seconds)
            self.wfile.write(body[fault.after :])
            return
        self.close_connection = True
        if fault.kind == "reset":
            time.sleep(0.05)  # what was sent arrives before the reset does
            self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
