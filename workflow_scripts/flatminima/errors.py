"""Mistakes and damage that a user can act on, each said in one line.

Whatever raises one of these names the file or the key, the value, and what would be
valid; ``jobs.logged`` ends a job with that line instead of a traceback.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Found = TypeVar("Found")
SHOWN = 12  # of a long list of names


class UserError(ValueError):
    """What keeps a job from going on is in its inputs, not in the code."""


class DamagedFile(UserError):
    """A file is not what its writer wrote, or not what a reader can use."""


class NotMeasured(UserError):
    """A checkpoint that cannot be scored, such as one of a model that is not causal."""


class Diverged(NotMeasured, FloatingPointError):
    """Training or a checkpoint whose numbers are not finite; others of the run may be whole."""


class ConfigError(UserError):
    """A mistake in the configuration."""


def suggest(name: str, names: Iterable[str]) -> str:
    """The nearest of the valid names where one is near, and all of them, or the first of many."""
    valid = [*map(str, names)]
    close = difflib.get_close_matches(name, valid, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    more = f" and {len(valid) - SHOWN} more" if len(valid) > 2 * SHOWN else ""
    return f"{hint}valid: {', '.join(valid[:SHOWN] if more else valid)}{more}"


def find(name: str, known: Mapping[str, Found], what: str) -> Found:
    """What ``known`` has under ``name``; a ``ConfigError`` that says what ``what`` may be."""
    if name not in known:
        raise ConfigError(f"{what} {name!r} is not known; {suggest(name, known)}")
    return known[name]


def one_line(error: BaseException, most: int = 300) -> str:
    """What went wrong, in one line; with the kind of error where its text is a mere name."""
    text = " ".join(str(error).split())[:most]
    bare = isinstance(error, LookupError | AttributeError | AssertionError) or not text
    return f"{type(error).__name__}: {text}" if bare else text
