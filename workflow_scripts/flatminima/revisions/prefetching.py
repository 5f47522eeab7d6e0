"""Fetching ahead in a thread, with a limit on how much of what was fetched exists at once."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


def fetched_ahead(
    items: Iterable[Item],
    fetch: Callable[[Item], Value],
    discard: Callable[[Item], None],
    most: int,
) -> Iterator[tuple[Item, Value]]:
    """Each item with what ``fetch`` made of it, in order, while a thread fetches the next.

    ``discard`` is called when the caller asks for the next item; until then the item counts,
    and never more than ``most`` are fetched or being fetched. What ``fetch`` raises is
    raised here, in the item's turn. Close the iterator (``contextlib.closing``) to stop
    early: no further item is fetched, and what there is stays.
    """
    wanted = list(items)
    slots, stopped = threading.Semaphore(most), threading.Event()
    fetched: queue.SimpleQueue[tuple[Value | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        for item in wanted:
            slots.acquire()
            if stopped.is_set():
                return
            try:
                fetched.put((fetch(item), None))
            except BaseException as error:
                fetched.put((None, error))
                return

    # A daemon: a job that fails does not wait for a download that nobody will look at.
    threading.Thread(target=work, name="fetch ahead", daemon=True).start()
    try:
        for item in wanted:
            value, error = fetched.get()
            if error is not None:
                raise error
            yield item, value
            discard(item)
            slots.release()
    finally:
        stopped.set()
        slots.release()
