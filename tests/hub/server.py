"""A hub of a few tiny repositories: a real HTTP server on the loopback interface.

It speaks as much of the Hugging Face hub's protocol as the unmodified ``huggingface_hub`` uses
to read: branches, model and dataset information, trees, files with ``X-Repo-Commit`` and
``ETag``, large files behind a redirect to another origin, ranges, and the error codes. It can
be told to have faults.
"""

import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from threading import Thread
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import pytest

Content = bytes | Callable[[], bytes]
Branches = Mapping[str, Mapping[str, Content]]
LARGE = (".safetensors", ".bin", ".zst", ".parquet")  # what is stored with LFS
CODES = {"RepoNotFound": 401, "GatedRepo": 401, "RevisionNotFound": 404, "EntryNotFound": 404}
API = re.compile(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/(refs|revision|tree)/?([^/]*)/?(.*))?")
RESOLVE = re.compile(r"/(?:(dataset)s/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class Request(NamedTuple):
    """One line of the hub's log; the bytes of large files have paths that begin with /lfs/."""

    method: str
    path: str  # with the query
    authorization: str | None


class Blob(NamedTuple):
    """A file of a commit."""

    size: int
    sha256: str
    oid: str  # git's hash of its content
    content: Content

    def read(self) -> bytes:
        return self.content() if callable(self.content) else self.content


@lru_cache(maxsize=4096)
def blob_of(content: Content) -> Blob:
    data = content() if callable(content) else content
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return Blob(len(data), hashlib.sha256(data).hexdigest(), git, content)


@dataclass
class Fault:
    """What happens to requests whose path the regular expression ``path`` finds.

    ``/a/b/resolve/<commit>/f`` is the hub's own answer for a file, ``/lfs/a/b/step1/f/`` the
    bytes of a large one. Kinds: ``status`` (answer with ``status`` and ``headers``), ``reset``
    (connection reset once ``after`` bytes of the body are out), ``truncate`` (closed cleanly
    there), ``short`` (only ``after`` bytes, and the length says so), ``wrong`` (right size,
    wrong bytes), ``stall`` (nothing for ``seconds`` once ``after`` bytes are out). ``times`` is
    how many requests meet it, ``None`` for all.
    """

    path: str
    kind: str
    times: int | None = 1
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    after: int = 0
    seconds: float = 0.0
    met: int = 0


class TinyHub:
    """The server, as a context manager; ``models`` and ``datasets`` map repositories to branches.

    ``.endpoint`` is what ``HF_ENDPOINT`` is set to, ``.requests`` the log, ``.faults`` what goes
    wrong; branches in ``.ignored`` serve what main holds, commit, hashes and bytes. ``gated``
    repositories need ``token``. Content is bytes or a function that makes them.
    """

    def __init__(
        self,
        models: Mapping[str, Branches] | None = None,
        datasets: Mapping[str, Branches] | None = None,
        *,
        gated: tuple[str, ...] = (),
        token: str = "hf_test",
    ) -> None:
        self.repositories = {("model", name): dict(b) for name, b in (models or {}).items()}
        self.repositories |= {("dataset", name): dict(b) for name, b in (datasets or {}).items()}
        self.gated, self.token = gated, token
        self.faults: list[Fault] = []
        self.ignored: set[tuple[str, str]] = set()
        self.requests: list[Request] = []
        self.stored: dict[str, Blob] = {}

    def __enter__(self) -> "TinyHub":
        self._stack, ports = ExitStack(), []
        for _ in ("hub", "storage"):  # two origins
            server = self._stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Handler))
            server.hub, server.daemon_threads = self, True
            Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            self._stack.callback(server.shutdown)
            ports.append(server.server_port)
        self.endpoint, self.storage = (f"http://127.0.0.1:{port}" for port in ports)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def fault(self, path: str, kind: str, **details: object) -> Fault:
        """Switch a fault on."""
        self.faults.append(Fault(path, kind, **details))
        return self.faults[-1]

    def clear(self) -> None:
        """Faultless again, with an empty log."""
        self.faults.clear()
        self.ignored.clear()
        self.requests.clear()

    def commit(self, repo: str, branch: str, kind: str = "model") -> str:
        """The 40 digits that ``branch`` points to."""
        return hashlib.sha1(f"{kind}/{repo}/{branch}".encode()).hexdigest()

    def asked(self, pattern: str = "") -> list[Request]:
        """Requests of the log whose path the regular expression finds."""
        return [request for request in list(self.requests) if re.search(pattern, request.path)]

    def environment(self, home: str | Path, **more: str) -> dict[str, str]:
        """Environment of a subprocess whose libraries are to use this hub and ``home``."""
        dropped = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE")
        kept = {k: v for k, v in os.environ.items() if k not in dropped and k[:6] != "PYTEST"}
        proxy = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return {**kept, **proxy, "HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), **more}

    # Answers: status, headers, and a body or the file that is one

    def answer(self, path: str, blobs: bool, token: str | None) -> tuple[int, dict, bytes | Blob]:
        """What a request is answered without a fault."""
        try:
            if path.startswith("/lfs/"):
                return 200, {}, self.stored[path.rsplit("/", 1)[1]]
            if match := RESOLVE.fullmatch(path):
                return self._file(match[1] or "model", *match.groups()[1:], token)
            if not (match := API.fullmatch(path)):
                raise LookupError("EntryNotFound")
            kind, name, what, revision, folder = match.groups()
            if what == "refs":
                found = self._refs(kind, name, token)
            else:
                branch, files = self._branch(kind, name, revision or "main", token)
                found = self._info(kind, name, branch, files, blobs)
                found = _tree(files, folder) if what == "tree" else found
            return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()
        except LookupError as error:
            code = str(error.args[0])
            return CODES[code], {"X-Error-Code": code, "X-Error-Message": code}, b"{}"

    def _repository(self, kind: str, name: str, token: str | None) -> dict:
        if name in self.gated and token != f"Bearer {self.token}":
            raise LookupError("GatedRepo")
        if (kind, name) not in self.repositories:
            raise LookupError("RepoNotFound")
        return self.repositories[kind, name]

    def _branch(self, kind: str, name: str, revision: str, token: str | None) -> tuple[str, dict]:
        branches = self._repository(kind, name, token)
        revision = "main" if (name, revision) in self.ignored else revision
        for branch, files in branches.items():
            if revision in (branch, self.commit(name, branch, kind)):
                return branch, files
        raise LookupError("RevisionNotFound")

    def _refs(self, kind: str, name: str, token: str | None) -> dict:
        branches = [
            {"name": b, "ref": f"refs/heads/{b}", "targetCommit": self.commit(name, b, kind)}
            for b in sorted(self._repository(kind, name, token))
        ]
        return {"branches": branches, "converts": [], "tags": []}

    def _info(self, kind: str, name: str, branch: str, files: Mapping, blobs: bool) -> dict:
        siblings = [{"rfilename": file} for file in sorted(files)]
        for sibling in siblings if blobs else ():
            blob = blob_of(files[sibling["rfilename"]])
            sibling |= {"size": blob.size, "blobId": blob.oid}
            if sibling["rfilename"].endswith(LARGE):
                sibling["lfs"] = {"size": blob.size, "sha256": blob.sha256, "pointerSize": 130}
        return {"id": name, "sha": self.commit(name, branch, kind), "siblings": siblings}

    def _file(self, kind: str, name: str, revision: str, file: str, token: str | None) -> tuple:
        branch, files = self._branch(kind, name, revision, token)
        if file not in files:
            raise LookupError("EntryNotFound")
        blob, commit = blob_of(files[file]), {"X-Repo-Commit": self.commit(name, branch, kind)}
        if not file.endswith(LARGE):
            return 200, commit | {"ETag": f'"{blob.oid}"'}, blob
        self.stored[blob.sha256] = blob
        return 302, commit | {
            "Location": f"{self.storage}/lfs/{quote(f'{name}/{branch}/{file}')}/{blob.sha256}",
            "X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size),
        }, b""  # fmt: skip


def _tree(files: Mapping[str, Content], folder: str) -> list[dict]:
    """Files right in ``folder``."""
    return [
        {"type": "file", "path": file, "size": blob.size, "oid": blob.oid}
        for file in files
        if file.rpartition("/")[0] == folder
        for blob in (blob_of(files[file]),)
    ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, address, token = self.server.hub, urlsplit(self.path), self.headers["Authorization"]
        hub.requests.append(Request(self.command, self.path, token))
        fault = next((f for f in hub.faults if f.met != f.times and self._meets(f)), None)
        kind = fault.kind if fault else None
        if fault:
            fault.met += 1
        if kind == "status":
            status, headers, body = fault.status, fault.headers, b"this is a fault"
        else:
            status, headers, body = hub.answer(
                unquote(address.path), "blobs" in address.query, token
            )
        if isinstance(body, Blob):
            status, more, body = self._part(body, kind)
            headers = headers | more
        body = body[: fault.after] if kind == "short" else body
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        try:
            if kind in ("reset", "truncate", "stall"):
                self._break_off(fault, body)
            elif self.command != "HEAD":
                self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET

    def _meets(self, fault: Fault) -> bool:
        """A fault of the body spares a request that asks for none."""
        of_the_body = fault.kind != "status"
        return not (of_the_body and self.command == "HEAD") and bool(
            re.search(fault.path, self.path)
        )

    def _part(self, blob: Blob, fault: str | None) -> tuple[int, dict, bytes]:
        """The bytes that are asked for, all or a range."""
        body = blob.read()
        body = bytes(byte ^ 0xFF for byte in body) if fault == "wrong" else body
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if not match:
            return 200, {"Accept-Ranges": "bytes"}, body
        first, last = int(match[1]), min(int(match[2] or blob.size), blob.size - 1)
        if first > last:
            return 416, {"Content-Range": f"bytes */{blob.size}"}, b""
        told = {"Content-Range": f"bytes {first}-{last}/{blob.size}"}
        return 206, told, body[first : last + 1]

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


def point_at(monkeypatch: pytest.MonkeyPatch, hub: TinyHub, home: str | Path) -> None:
    """Use ``hub`` with a cache under ``home`` and no token, in this process.

    The hub's libraries read the environment once, when they are imported.
    """
    import datasets
    from huggingface_hub import constants, hf_api

    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": hub.endpoint, "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": f"{home}/hub", "HF_TOKEN_PATH": f"{home}/token", "HF_HUB_OFFLINE": False,
    }.items():  # fmt: skip
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(hf_api.api, "endpoint", hub.endpoint)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.endpoint)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
