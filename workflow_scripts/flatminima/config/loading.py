"""The configuration: read, whole with what suites take over, and checked before any job starts.

Files that stand over ``config.yaml``, ``--config`` and a suite that ``extends`` another are
merged by one rule (``merge``): mappings key by key, anything else replaced, and so are the
sections ``grid``, ``text``, ``tokenizer`` and ``schedules`` and an entry whose ``kind`` changes.
``label`` and ``is_paper_model`` are a suite's own. A key set to nothing (``fork:``) is left out,
with whatever it would inherit. The first mistake is one line that names the key, the value and
what is valid.
"""

import re
import reprlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flatminima.config.keys import Config
from flatminima.config_section import DECIDING
from flatminima.errors import ConfigError, suggest

ROOT = Path(__file__).resolve().parents[3]
# Replaced whole, since half of one and half of another would mean nothing.
WHOLE = ("grid", "text", "tokenizer", "schedules")
OWN = ("label", "is_paper_model", "extends")
# Not taken over from a suite whose checkpoints come from elsewhere.
OF_SOURCE = ("repo", "revision", "pattern", "grid", "integrity")
# What a suite need not say, by its source.
DEFAULTS = {
    "local": {
        "is_paper_model": False,
        "device": "auto",
        "threads": 1,
        "grid": "discover",
        "tokenizer": {},
        "probe": {
            "low_bit": "int4_g128",
            "high_bit": "int8_channel",
            "batch_size": 4,
            "steps_per_job": 22,
            "resamples": 1000,
        },
        "kurtosis": {"layers": "blocks"},
        "phases": {"resamples": 200},
    },
    **dict.fromkeys(("hub", "pretrain"), {"is_paper_model": False}),
}

# Files and the command line.


class _Loader(yaml.CSafeLoader):
    """Refuses a key that stands twice in one mapping, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value]
        if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
            raise ValueError(f"line {node.start_mark.line + 1}: {twice[0]} stands there twice")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict:
    """The mapping of a YAML file. Raises ``ConfigError``, one line that names the file."""
    try:
        read = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader) or {}
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"{path}: not a mapping of keys to values")
    return read


def as_in_a_file(value: object) -> object:
    """What a file would hold where ``--config`` gives a mapping, whose values arrive as text.

    Text stays as it is where YAML does not take it for a number, true, false or nothing.
    """
    if isinstance(value, Mapping):
        return {key: as_in_a_file(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_in_a_file(inner) for inner in value]
    try:
        read = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, AttributeError):  # such as a date that does not exist
        return value
    return read if isinstance(read, bool | int | float | None) else value


def read_library(resources: Path = ROOT / "resources") -> dict[str, dict]:
    """Suites that come with the workflow: ``suites/*.yaml`` and ``published/*/suite.yaml``."""
    library = {}
    for pattern in ("suites/*.yaml", "published/*/suite.yaml"):
        for path in sorted(resources.glob(pattern)):
            library |= read_yaml(path)
    return library


# Inheritance.


def merge(base: Mapping, change: Mapping, whole: Sequence[str] = WHOLE) -> dict:
    """``base`` with ``change`` over it; neither is altered.

    Mappings are merged key by key. Anything else is replaced, and so are the keys in ``whole``
    and an entry whose ``kind`` changes, since it has other keys.
    """
    merged = deepcopy(dict(base))
    for key, changed in change.items():
        before = merged.get(key)
        both_mappings = isinstance(changed, Mapping) and isinstance(before, Mapping)
        if both_mappings and key not in whole and not _changes_kind(before, changed):
            merged[key] = merge(before, changed, whole)
        else:
            merged[key] = deepcopy(changed)
    return merged


def _changes_kind(before: Mapping, changed: Mapping) -> bool:
    kind = before.get("kind", "affine")  # only a quantizer may leave it out
    return changed.get("kind", kind) != kind


def _without_nothing(section: object) -> object:
    if not isinstance(section, Mapping):
        return section
    return {key: _without_nothing(value) for key, value in section.items() if value is not None}


def resolve_suites(suites: object, library: Mapping[str, Mapping]) -> object:
    """Suites of the configuration, those of ``library`` after them, whole.

    A suite stands after the one that it extends, so that the first mistake is that of the
    suite it was made in. A suite of the library may be changed in the configuration under
    its own name. What is no mapping is handed on as it is, for the check to complain about.
    Raises ``ConfigError`` for ``extends`` that leads nowhere or in a circle.
    """
    if not isinstance(suites, Mapping):
        return suites
    known = {**suites}
    for name, section in library.items():
        if isinstance(known.setdefault(name, {}), Mapping):
            known[name] = merge(section, known[name])
    inherited: dict[str, Any] = {}

    def inherit(name: str, below: tuple[str, ...] = ()) -> None:
        if name in inherited:
            return
        own = known[name]
        if isinstance(own, Mapping) and (parent := own.get("extends")) is not None:
            key = f"config key suites.{name}.extends"
            if not isinstance(parent, str) or not isinstance(known.get(parent), Mapping):
                raise ConfigError(f"{key}: {parent!r} is not known; {suggest(str(parent), known)}")
            if parent in (*below, name):
                chain = " -> ".join((*below, name, parent))
                raise ConfigError(f"{key}: {parent!r} extends it in turn ({chain})")
            inherit(parent, (*below, name))
            taken = inherited[parent]
            elsewhere = own.get("source", taken.get("source")) != taken.get("source")
            dropped = (*OWN, *OF_SOURCE) if elsewhere else OWN
            taken = {key: value for key, value in taken.items() if key not in dropped}
            own = merge(taken, {k: v for k, v in own.items() if k != "extends"})
        inherited[name] = own

    for name in known:
        inherit(name)
    return {name: _without_nothing(_with_defaults(own)) for name, own in inherited.items()}


def _with_defaults(section: object) -> object:
    if not isinstance(section, Mapping):
        return section
    return merge(DEFAULTS.get(str(section.get("source")), {}), section)


# Mistakes, in one line.


def _place(config: Any, error: ErrorDetails) -> list[str]:
    """Keys down to the mistake, without the names of the members of unions."""
    found, value, tagged = [], config, False
    for part in error["loc"]:
        if isinstance(value, Mapping) and not tagged and part in map(value.get, DECIDING):
            tagged = True
        elif isinstance(part, int) or (isinstance(value, Mapping) and part in value):
            found.append(str(part))
            value, tagged = value[part], False
    return found


def _line(config: Any, error: ErrorDetails) -> str:
    """One line for one of pydantic's errors."""
    place, rule, given = _place(config, error), error["type"], error["input"]
    context = error.get("ctx", {})
    choices = re.findall(r"'([^']*)'", context.get("expected_tags", context.get("expected", "")))
    if rule == "mistake":
        place, text = [*place, *context["key"].split(".")], context["text"]
    elif rule == "missing":
        text = f"lacks {error['loc'][-1]}"
    elif rule == "union_tag_not_found" and isinstance(given, Mapping):
        text = f"lacks {context['discriminator'].strip(chr(39))}"
    elif choices:
        if isinstance(given, Mapping) and rule == "union_tag_invalid":
            decides = context["discriminator"].strip("'")
            place, given = [*place, decides], given[decides]
        text = f"{reprlib.repr(given)} is not valid; {suggest(str(given), choices)}"
    elif rule == "value_error":
        text = str(context["error"])
    else:
        text = f"{reprlib.repr(given)} is not valid: {error['msg'][0].lower()}{error['msg'][1:]}"
    shown = ".".join(filter(None, place)) or "(top level)"
    # A sentence about the key, or what is said of its value.
    verbs = ("lacks ", "goes ", "takes ", "needs ", "has ", "is ", "would ")
    colon = "" if text.startswith(verbs) else ":"
    return " ".join(f"config key {shown}{colon} {text}".split())


def check_config(config: Mapping) -> Config:
    """The validated model of a configuration whose suites are complete already.

    Raises ``ConfigError`` with one line for the first mistake. The first suite with a mistake
    is the one it was made in: those that extend it follow.
    """
    try:
        return Config.model_validate(config)
    except ValidationError as error:
        raise ConfigError(_line(config, error.errors(include_url=False)[0])) from None


def complete_config(config: Mapping) -> Config:
    """The validated configuration, with the suites that come with the workflow among its own.

    Every suite has what it takes over from others. Raises ``ConfigError``.
    """
    suites = resolve_suites(config.get("suites"), read_library())
    return check_config({**config, "suites": suites})


def read_config(files: Sequence[str | Path] = ()) -> Config:
    """``config.yaml`` and ``files`` over it, complete and validated, as Snakemake reads them."""
    config: dict = {}
    for path in (ROOT / "config.yaml", *map(Path, files)):
        config = merge(config, read_yaml(path))
    return complete_config(config)
