"""Sends the messages of the package to the handlers of the program that uses it.

Modules log with the standard library (``logging.getLogger(__name__)``). Only two programs add
handlers: a job of the workflow (``jobs.logged``) and the command ``flatminima``.
"""

import logging
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

# The loggers of the package and of the script that runs as a job.
OUR_LOGGERS = ("flatminima", "__main__")


@contextmanager
def message_handlers(*handlers: logging.Handler) -> Iterator[None]:
    """Send the messages of the package and of the running script to ``handlers``.

    The package itself installs no handler: a program that imports it decides where messages go.
    """
    root = logging.getLogger()
    levels_before = {name: logging.getLogger(name).level for name in OUR_LOGGERS}
    lowest_level = min(handler.level for handler in handlers)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(lowest_level)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        for name, level in levels_before.items():
            logging.getLogger(name).setLevel(level)


def silence_closed_pipes() -> None:
    """Send the output of a stream whose reader is gone to nowhere.

    Otherwise the next line is another error, and the interpreter prints one more when it ends.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if _is_closed_pipe(stream):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(nowhere, stream.fileno())  # also what the stream still holds goes there
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8"))


def _is_closed_pipe(stream: TextIO) -> bool:
    try:
        stream.flush()
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except BrokenPipeError:
        return True
    except (OSError, ValueError, AttributeError):  # not a file of the system, or no poll here
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))
