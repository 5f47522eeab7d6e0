"""A hub with a few tiny repositories: a real HTTP server on the loopback interface.

It implements the part of the Hugging Face hub's protocol that ``huggingface_hub`` and ``datasets``
use to read: branches, information, trees, files with ``X-Repo-Commit`` and ``ETag``, redirects of
large files to another origin, ranges, and error codes. Tests can switch faults on.
"""

import hashlib
import json
import os
import re
import struct
import time
from collections.abc import Mapping
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

Branches = Mapping[str, Mapping[str, bytes]]
Answer = tuple[int, dict, bytes]  # status, headers and body
LARGE = (".safetensors", ".bin", ".zst", ".parquet")  # files stored with LFS
CODES = {"RepoNotFound": 401, "GatedRepo": 401, "RevisionNotFound": 404, "EntryNotFound": 404}
ADDRESS = re.compile(
    r"/(?:api/)?(?:(model|dataset)s/)?([^/]+/[^/]+)/(refs|revision|tree|resolve)/?([^/]*)/?(.*)"
)


class Request(NamedTuple):
    """One line of the hub's log. Paths of the bytes of large files begin with /lfs/."""

    path: str  # with the query
    authorization: str | None


@dataclass
class Fault:
    """A fault of requests whose path contains the regular expression ``path``.

    ``/a/b/resolve/<commit>/f`` is the hub's own answer for a file, and ``/lfs/a/b/step1/f/`` the
    bytes of a large file. ``times`` requests meet the fault, or all if it is ``None``. Kinds:

    - ``status``: an answer with ``status`` and ``headers``,
    - ``reset``: the connection is reset after ``after`` bytes of the body,
    - ``truncate``: the connection is closed cleanly there,
    - ``short``: only ``after`` bytes, with a matching length,
    - ``wrong``: the right number of wrong bytes,
    - ``stall``: a pause of ``seconds`` after ``after`` bytes.
    """

    path: str
    kind: str
    times: int | None = 1
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    after: int = 0
    seconds: float = 0.0
    met: int = 0

    def meets(self, command: str, path: str) -> bool:
        """Whether a request meets the fault. HEAD requests have no body that could be wrong."""
        is_over = self.met == self.times
        has_no_body = command == "HEAD" and self.kind != "status"
        return not is_over and not has_no_body and bool(re.search(self.path, path))


class TinyHub:
    """The server, as a context manager.

    ``models`` and ``datasets`` map repositories to branches. ``gated`` repositories need
    ``token``. ``.endpoint`` is for ``HF_ENDPOINT``, ``.requests`` is the log, and ``.faults`` has
    the faults. For branches in ``.ignored`` the server answers with the branch main.
    """

    def __init__(
        self,
        models: Mapping[str, Branches] | None = None,
        datasets: Mapping[str, Branches] | None = None,
        *,
        gated: tuple[str, ...] = (),
        token: str = "hf_test",
    ) -> None:
        self.repositories = {"model": models or {}, "dataset": datasets or {}}
        self.gated = gated
        self.token = token
        self.faults: list[Fault] = []
        self.ignored: set[tuple[str, str]] = set()
        self.requests: list[Request] = []
        self.sent: list[tuple[str, int]] = []  # path and bytes of the body of each answer
        self.stored: dict[str, bytes] = {}  # by sha256

    def __enter__(self) -> "TinyHub":
        self._stack = ExitStack()
        ports = []
        for _ in ("hub", "storage"):  # two origins
            server = self._stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Handler))
            server.hub = self
            server.daemon_threads = True
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
        """Remove all faults and empty the log."""
        self.faults.clear()
        self.ignored.clear()
        self.requests.clear()
        self.sent.clear()

    def commit(self, repo: str, branch: str, kind: str = "model") -> str:
        """The commit of ``branch``, 40 hexadecimal digits."""
        return hashlib.sha1(f"{kind}/{repo}/{branch}".encode()).hexdigest()

    def asked(self, pattern: str) -> list[Request]:
        """Requests in the log whose path contains the regular expression."""
        return [request for request in list(self.requests) if re.search(pattern, request.path)]

    def bytes_sent(self, pattern: str) -> int:
        """Bytes of all bodies whose path contains the regular expression."""
        return sum(size for path, size in list(self.sent) if re.search(pattern, path))

    def environment(self, home: str | Path, **more: str) -> dict[str, str]:
        """Environment of a subprocess whose libraries use this hub and the cache ``home``."""
        removed = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE")
        environment = {
            name: setting
            for name, setting in os.environ.items()
            if name not in removed and not name.startswith("PYTEST")
        }
        environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        environment |= {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home)}
        return environment | more

    def answer(self, path: str, authorization: str | None) -> Answer:
        """The answer to a request without a fault."""
        if path.startswith("/lfs/"):
            return 200, {}, self.stored[path.rsplit("/", 1)[1]]
        match = ADDRESS.fullmatch(path)
        if match is None:
            return _error("EntryNotFound")
        kind, name, resource, revision, file = match.groups(default="model")
        if name not in self.repositories[kind]:
            return _error("RepoNotFound")
        if name in self.gated and authorization != f"Bearer {self.token}":
            return _error("GatedRepo")
        branches = self.repositories[kind][name]
        commits = {branch: self.commit(name, branch, kind) for branch in sorted(branches)}
        if resource == "refs":
            refs = [
                {"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": commit}
                for branch, commit in commits.items()
            ]
            return _json({"branches": refs, "converts": [], "tags": []})
        revision = "main" if (name, revision) in self.ignored else revision
        matching = [name for name, commit in commits.items() if revision in (name, commit)]
        if not matching:
            return _error("RevisionNotFound")
        branch = matching[0]
        files = branches[branch]
        commit = commits[branch]
        if resource == "revision":
            siblings = [_described(name, content) for name, content in sorted(files.items())]
            return _json({"id": name, "sha": commit, "siblings": siblings})
        if resource == "tree":  # of one folder, without those below it
            return _json(
                [
                    {
                        "type": "file",
                        "path": path,
                        "size": len(content),
                        "oid": _digests(content)[0],
                    }
                    for path, content in files.items()
                    if path.rpartition("/")[0] == file
                ]
            )
        return self._file(f"{name}/{branch}/{file}", commit, files.get(file))

    def _file(self, path: str, commit: str, content: bytes | None) -> Answer:
        if content is None:
            return _error("EntryNotFound")
        oid, sha256 = _digests(content)
        if not path.endswith(LARGE):
            return 200, {"X-Repo-Commit": commit, "ETag": f'"{oid}"'}, content
        self.stored[sha256] = content
        headers = {
            "Location": f"{self.storage}/lfs/{quote(path)}/{sha256}",
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{sha256}"',
            "X-Linked-Size": str(len(content)),
        }
        return 302, headers, b""


@lru_cache(maxsize=4096)
def _digests(content: bytes) -> tuple[str, str]:
    """Git's hash of a file, and its sha256."""
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return git, hashlib.sha256(content).hexdigest()


def _described(name: str, content: bytes) -> dict:
    oid, sha256 = _digests(content)
    size = len(content)
    description = {"rfilename": name, "size": size, "blobId": oid}
    if name.endswith(LARGE):
        description["lfs"] = {"size": size, "sha256": sha256, "pointerSize": 130}
    return description


def _json(content: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


def _error(code: str) -> Answer:
    return CODES[code], {"X-Error-Code": code, "X-Error-Message": code}, b"{}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.server.hub
        authorization = self.headers["Authorization"]
        hub.requests.append(Request(self.path, authorization))
        no_fault = Fault("", "none")
        faults = [fault for fault in hub.faults if fault.meets(self.command, self.path)]
        fault = faults[0] if faults else no_fault
        fault.met += 1
        if fault.kind == "status":
            status = fault.status
            headers = fault.headers
            body = b"this is a fault"
        else:
            path = unquote(urlsplit(self.path).path)
            status, headers, body = self._part(*hub.answer(path, authorization))
        if fault.kind == "wrong":
            body = bytes(byte ^ 0xFF for byte in body)
        if fault.kind == "short":
            body = body[: fault.after]
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            hub.sent.append((self.path, len(body)))
            self._send(body, fault)

    do_HEAD = do_GET

    def _part(self, status: int, headers: dict, body: bytes) -> Answer:
        """The requested bytes of a file: all, or a range."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if status != 200 or not match:
            return status, headers, body
        size = len(body)
        first = int(match[1])
        last = min(int(match[2] or size), size - 1)
        if first > last:
            return 416, headers | {"Content-Range": f"bytes */{size}"}, b""
        content_range = {"Content-Range": f"bytes {first}-{last}/{size}"}
        return 206, headers | content_range, body[first : last + 1]

    def _send(self, body: bytes, fault: Fault) -> None:
        breaks = fault.kind in ("reset", "truncate")
        cut = fault.after if breaks or fault.kind == "stall" else len(body)
        try:
            self.wfile.write(body[:cut])
            time.sleep(fault.seconds)
            self.wfile.write(b"" if breaks else body[cut:])
        except (BrokenPipeError, ConnectionResetError):
            breaks = True
        self.close_connection |= breaks
        if fault.kind == "reset":
            time.sleep(0.05)  # so that the sent bytes arrive before the reset
            self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())


def point_at(monkeypatch: pytest.MonkeyPatch, hub: TinyHub, home: str | Path) -> None:
    """Use ``hub`` with a cache under ``home`` and no token, in this process.

    The hub's libraries read the environment once, when they are imported.
    """
    import datasets
    from huggingface_hub import constants, hf_api

    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    hub_constants = {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": f"{home}/hub",
        "HF_TOKEN_PATH": f"{home}/token",
        "HF_HUB_OFFLINE": False,
    }
    for name, setting in hub_constants.items():
        monkeypatch.setattr(constants, name, setting)
    monkeypatch.setattr(hf_api.api, "endpoint", hub.endpoint)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.endpoint)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
