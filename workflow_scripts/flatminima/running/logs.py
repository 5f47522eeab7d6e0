"""A job's log file: everything the script says, and its traceback if it fails.

What a user can act on, from a damaged file to a full disk, ends the job with one line.
"""

import errno
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, TypeVar

from tqdm import tqdm

from flatminima.errors import UserError
from flatminima.running.folder_lock import at_work

Item = TypeVar("Item")
# What the machine refuses, whatever the code: no room, no right, a disk that fails.
_REFUSALS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
}  # fmt: skip


class _Tee:
    """Writes to the terminal and to a log; bars become plain lines in both.

    Whatever else a library asks of standard error, the terminal answers.
    """

    def __init__(self, *streams: TextIO) -> None:
        self.streams = streams

    def write(self, text: str) -> int:
        line = text.replace("\r", "\n") if text.strip() else text.strip("\r")
        for stream in self.streams:
            stream.write(line)
        return len(text)

    def flush(self) -> None:
        for stream in self.streams:
            stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self.streams[0], name)


@contextmanager
def logged(path: str | Path) -> Iterator[None]:
    """Copy standard error to ``path`` while the block runs; a traceback goes there as well.

    A ``UserError`` and a refusal of the machine are one line instead, and exit status 1.
    """
    terminal = sys.stderr
    with open(path, "w", encoding="utf-8") as log, at_work(Path(".snakemake")):
        sys.stderr = _Tee(terminal, log)
        try:
            yield
        except SystemExit:  # what there is to say has been said
            raise
        except BaseException as error:
            if not _is_users(error):
                traceback.print_exc(file=log)
                raise
            say(f"Error: {' '.join(str(error).split())}")
            sys.exit(1)
        finally:
            sys.stderr = terminal


def _is_users(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _REFUSALS
    return isinstance(error, UserError)


def say(message: str) -> None:
    """One line of a job's log."""
    print(message, file=sys.stderr, flush=True)


def progress(items: Iterable[Item], name: str, total: int | None = None) -> tqdm:
    """Iterate with a line every few seconds that says how far, how long and how much is left."""
    return tqdm(
        items,
        desc=name,
        total=total,
        file=sys.stderr,
        mininterval=5.0,
        maxinterval=5.0,
        delay=3.0,
        bar_format="{desc}: {n_fmt}/{total_fmt} done, {elapsed} gone, {remaining} left{postfix}",
    )
