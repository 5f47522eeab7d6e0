"""Mistakes and damage that a user can act on, each said in one line.

Whatever raises one of these names the file or the key in its message; ``logs.logged``
ends a job with that line instead of a traceback.
"""


class UserError(ValueError):
    """What keeps a job from going on is in its inputs, not in the code."""


class DamagedFile(UserError):
    """A file is not what its writer wrote, or not what a reader can use."""
