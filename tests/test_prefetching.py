"""Fetching ahead: order, the limit, errors, stopping early."""

import threading
import time
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatminima.revisions.prefetching import fetched_ahead


class Disk:
    """What exists, and the most that ever existed."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.most = 0
        self.fetched: list[int] = []
        self._lock = threading.Lock()

    def fetch(self, item: int) -> str:
        with self._lock:
            self.there.add(item)
            self.fetched.append(item)
            self.most = max(self.most, len(self.there))
        return f"item {item}"

    def discard(self, item: int) -> None:
        with self._lock:
            self.there.remove(item)


@settings(max_examples=20)
@given(count=st.integers(0, 12), most=st.integers(1, 4))
def test_never_more_than_the_limit_exist(count, most):
    disk = Disk()
    seen = []
    for item, value in fetched_ahead(range(count), disk.fetch, disk.discard, most):
        assert item in disk.there and value == f"item {item}"
        seen.append(item)
    assert seen == disk.fetched == list(range(count))
    assert disk.most <= most and disk.there == set()


def test_the_next_is_fetched_while_one_is_at_work():
    disk = Disk()
    ahead = fetched_ahead(range(5), disk.fetch, disk.discard, 3)
    with closing(ahead):
        assert next(ahead)[0] == 0
        deadline = time.monotonic() + 20
        while len(disk.there) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert disk.there == {0, 1, 2}, "two ahead of the one at work, and no more"


def test_an_error_is_raised_in_its_turn_and_nothing_is_fetched_after_it():
    disk = Disk()

    def fetch(item: int) -> str:
        if item == 2:
            raise OSError("item 2 cannot be had")
        return disk.fetch(item)

    seen = []
    with pytest.raises(OSError, match="item 2"):
        for item, _ in fetched_ahead(range(6), fetch, disk.discard, 4):
            seen.append(item)
    assert seen == [0, 1] == disk.fetched


def test_closing_stops_the_thread_and_leaves_what_is_there():
    disk = Disk()
    with closing(fetched_ahead(range(50), disk.fetch, disk.discard, 2)) as ahead:
        next(ahead)
    deadline = time.monotonic() + 20
    while any(t.name == "fetch ahead" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert 0 in disk.there and len(disk.fetched) <= 3
