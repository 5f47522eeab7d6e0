"""Trying again, for longer and longer, what the network or a busy server broke off."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import parse_ratelimit_headers

from flatminima.jobs import log

Result = TypeVar("Result")

BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses that pass


class BrokenOff(Exception):
    """A body that ended early or does not continue where it was to."""


@dataclass(frozen=True)
class Patience:
    """How often to try without progress, and the seconds between: doubled up to ``longest``."""

    attempts: int = 12  # about six minutes
    first: float = 1.0
    longest: float = 60.0
    sleep: Callable[[float], None] = time.sleep

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.longest, self.first * 2 ** (failures - 1))


PATIENT = Patience()


def asked_pause(error: Exception, now: datetime | None = None) -> float:
    """Seconds that the server asked to wait: ``Retry-After`` or its rate limit; else 0."""
    if not isinstance(error, HfHubHTTPError):
        return 0.0
    headers = error.response.headers
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    value = headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - (now or datetime.now(UTC))).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def passes(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in BUSY
    # Whatever else the client raises is the connection's: refused, reset, timed out, cut.
    return isinstance(error, HTTPError | BrokenOff)


def describe_error(error: Exception) -> str:
    """An error of the hub's client in a few words."""
    if isinstance(error, HfHubHTTPError):
        response = error.response
        told = response.headers.get("X-Error-Message") or response.reason_phrase
        return f"the hub answers {response.status_code} {told}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def persist(
    action: Callable[[], Result],
    what: str,
    patience: Patience,
    progress: Callable[[], int] = lambda: 0,
) -> Result:
    """The result of ``action``, repeated while its errors are of the kind that passes.

    Only failures without progress in between count against ``patience.attempts``. Raises
    the last error.
    """
    failures, reached = 0, progress()
    while True:
        try:
            return action()
        except (HTTPError, BrokenOff) as error:
            failures = failures + 1 if progress() <= reached else 1
            reached = progress()
            if not passes(error) or failures >= patience.attempts:
                raise
            pause = max(asked_pause(error), patience.pause(failures))
            log(f"{what}: {describe_error(error)}; again in {pause:g} s")
            patience.sleep(pause)
