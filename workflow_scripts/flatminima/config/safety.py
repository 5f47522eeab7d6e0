"""Checks that keep a configuration harmless: its size, and the characters of its names.

YAML can say in a few lines what takes the memory of the machine once it is written out, or
refer to itself; names end in paths, addresses, pages and tables.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping

MOST_VALUES = 200_000
_REPO = re.compile(r"(?!.*(\.\.|--))\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_REFERENCE = re.compile(r"(?!.*(\.\.|//))\w[\w./-]*", re.ASCII)  # a branch, tag or commit
_LABEL = re.compile(r"[^<>`$\\]+")


def size_mistakes(config: Mapping) -> Iterator[str]:
    """One line where a value refers to itself or, written out, is of an absurd size."""
    sizes: dict[int, int] = {}
    open_values: set[int] = set()

    def size(value: object, path: tuple) -> int:
        if not isinstance(value, Mapping | list):
            return 1
        if id(value) in open_values:
            raise RecursionError(path)
        if id(value) not in sizes:
            open_values.add(id(value))
            below = value.items() if isinstance(value, Mapping) else enumerate(value)
            total = 1 + sum(size(part, (*path, key)) for key, part in below)
            open_values.remove(id(value))
            if total > MOST_VALUES:
                raise OverflowError(path)
            sizes[id(value)] = total
        return sizes[id(value)]

    try:
        size(config, ())
    except RecursionError as error:
        path = error.args[0] if isinstance(error.args[0], tuple) else ()
        yield f"config key {_shown(path)}: refers to itself, or is nested too deep"
    except OverflowError as error:
        yield f"config key {_shown(error.args[0])}: more than {MOST_VALUES:,} values"


def _shown(path: tuple) -> str:
    shown = ".".join(map(str, path[:6])) or "(top level)"
    return " ".join(shown.split())[:200]


def string_mistakes(suites: Mapping) -> Iterator[str]:
    """One line for each text of a suite that is no name of its kind."""
    for name, suite in suites.items():
        yield from _strings(suite, ("suites", name))


def _strings(value: object, path: tuple) -> Iterator[str]:
    if isinstance(value, Mapping | list):
        below = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in below:
            yield from _strings(part, (*path, key))
    elif isinstance(value, str):
        reason = _reason(value, path)
        if reason:
            yield f"config key {'.'.join(map(str, path))}: {value[:80]!r} {reason}"


def _reason(value: str, path: tuple) -> str | None:
    """What is wrong with a text in its place."""
    key, of_suite = path[-1], len(path) == 3
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in value):
        return "holds a line break or another character that cannot be printed"
    if key == "repo" and not _REPO.fullmatch(value):
        return "is no repository of the hub; valid: owner/name of letters, digits, . _ -"
    if key == "revision" and not of_suite and not _REFERENCE.fullmatch(value):
        return "is no branch, tag or commit; valid: letters, digits, . _ / -"
    if key == "file" and (value.startswith("/") or ".." in value.split("/")):
        return "leads out of the repository; valid: a path in it without .."
    if key == "label" and of_suite and not _LABEL.fullmatch(value):
        return "would be read as markup in pages and tables; not valid: < > ` $ \\"
    return None
