"""Sends the messages of the package to the handlers of the program that uses it.

Modules log with the standard library (``logging.getLogger(__name__)``). Only two programs add
handlers: a job of the workflow (``jobs.logged``) and the command ``flatminima``.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

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
