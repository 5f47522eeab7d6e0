"""Imports without what a package would load beside itself."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Let a package that is optional to another seem not installed while the block imports.

    Nothing changes where it was imported before.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None
    try:
        yield
    finally:
        del sys.modules[name]
