"""Faults that the tiny hub can be told to have, by the path of a request."""

import re
from dataclasses import dataclass, field
from threading import Lock

KINDS = ("status", "reset", "truncate", "short", "wrong", "stall", "wrong_range")


@dataclass
class Fault:
    """What happens to requests whose path matches ``path``; see ``Faults.add``."""

    path: str
    kind: str
    times: int | None = 1
    method: str | None = None
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    after: int = 0
    seconds: float = 0.0
    met: int = 0


class Faults:
    """The faults that are switched on; empty, the hub is faultless."""

    def __init__(self) -> None:
        self.active: list[Fault] = []
        self.serves_main: set[tuple[str, str]] = set()
        self._lock = Lock()

    def add(self, path: str, kind: str, **details: object) -> Fault:
        """Switch a fault on for requests whose path the regular expression ``path`` finds.

        Paths have the branch where a client asks for its commit: ``/a/b/resolve/step1/f`` is
        the hub's own answer for a file, ``/lfs/a/b/step1/f/`` the bytes of a large one.
        Kinds: ``status`` (answer with ``status`` and ``headers``), ``reset`` (connection
        reset once ``after`` bytes of the body are out), ``truncate`` (closed cleanly there),
        ``short`` (only ``after`` bytes, and the length says so), ``wrong`` (right size, wrong
        bytes), ``stall`` (nothing for ``seconds`` once ``after`` bytes are out),
        ``wrong_range`` (a range is answered from another offset). ``times`` is how many
        requests meet it, ``None`` for all; ``method`` keeps it
        to GET or HEAD.
        """
        assert kind in KINDS, kind
        fault = Fault(path, kind, **details)
        self.active.append(fault)
        return fault

    def missing_branch(self, repo: str, revision: str) -> None:
        """The hub answers that ``revision`` does not exist."""
        self.add(
            rf"/{repo}/(revision|resolve|tree|paths-info)/{revision}(/|\?|$)", "status", times=None,
            status=404, headers={"X-Error-Code": "RevisionNotFound"},
        )  # fmt: skip

    def ignore_branch(self, repo: str, revision: str) -> None:
        """``revision`` serves what main holds, consistently: commit, hashes and bytes."""
        self.serves_main.add((repo, revision))

    def clear(self) -> None:
        """Faultless again."""
        self.active.clear()
        self.serves_main.clear()

    def meet(self, method: str, path: str) -> Fault | None:
        """The first active fault that this request meets; counted."""
        with self._lock:
            for fault in self.active:
                if fault.times is not None and fault.met >= fault.times:
                    continue
                if fault.method in (None, method) and re.search(fault.path, path):
                    fault.met += 1
                    return fault
        return None
