"""Errors that a user can correct, each reported in one line.

A message has the file or the key, the value, and what is valid. ``jobs.logged`` ends a job with
this line instead of a traceback.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Member = TypeVar("Member")
SHOWN = 12  # names of a long list


class UserError(ValueError):
    """Base class of errors caused by the user's inputs, not by a bug."""


class DamagedFile(UserError):
    """A file was changed after it was written, or has the wrong format."""


class NotMeasured(UserError):
    """A checkpoint cannot be scored, for example because its model is not causal."""


class Diverged(NotMeasured, FloatingPointError):
    """Training or a checkpoint has numbers that are not finite. Other checkpoints may be valid."""


class ConfigError(UserError):
    """A mistake in the configuration."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as clusters and ``kill`` send it. Like Ctrl-C it is no ``Exception``."""


def suggest(name: str, names: Iterable[str]) -> str:
    """``did you mean …? valid: …``: a similar valid name, and all valid names or the first ones."""
    valid_names = [str(valid_name) for valid_name in names]
    similar_names = difflib.get_close_matches(name, valid_names, n=1)
    hint = f"did you mean {similar_names[0]}? " if similar_names else ""
    more = ""
    if len(valid_names) > 2 * SHOWN:
        more = f" and {len(valid_names) - SHOWN} more"
        valid_names = valid_names[:SHOWN]
    return f"{hint}valid: {', '.join(valid_names)}{more}"


def find(name: str, members: Mapping[str, Member], kind: str) -> Member:
    """The member called ``name``. ``ConfigError`` with valid names; ``kind`` begins its message."""
    if name not in members:
        raise ConfigError(f"{kind} {name!r} is not known; {suggest(name, members)}")
    return members[name]


def one_line(error: BaseException, most: int = 300) -> str:
    """The message of an error in one line of at most ``most`` characters."""
    text = " ".join(str(error).split())[:most]
    # The message of these errors is often only a key or an attribute.
    if isinstance(error, LookupError | AttributeError | AssertionError) or not text:
        return f"{type(error).__name__}: {text}"
    return text
