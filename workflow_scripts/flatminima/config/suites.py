"""Suites as they are written, to suites as they are planned: inheritance and defaults.

A suite that ``extends`` another takes over every key that it does not set itself;
mappings are merged, anything else replaced. ``label`` and ``is_paper_model`` are a
suite's own. A key set to nothing (``fork:``) is left out, with whatever it would inherit.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import yaml

from flatminima.errors import ConfigError, suggest
from flatminima.frozen import SUITE_FILE

# Replaced whole, since half of one and half of another would mean nothing.
WHOLE = ("grid", "text", "tokenizer", "schedules")
OWN = ("label", "is_paper_model", "extends")
# Not taken over from a suite whose checkpoints come from elsewhere.
OF_SOURCE = ("repo", "revision", "pattern", "grid", "keep_checkpoints", "max_on_disk", "integrity")
# What a suite of one's own checkpoints need not say.
LOCAL = {
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
}
HUB = {"is_paper_model": False}


def merge(base: Mapping, change: Mapping) -> dict:
    """``base`` with what ``change`` says; neither is altered."""
    merged = deepcopy(dict(base))
    for key, value in change.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both and key not in WHOLE else deepcopy(value)
    return merged


def _without_nothing(section: Mapping) -> dict:
    return {
        key: _without_nothing(value) if isinstance(value, Mapping) else value
        for key, value in section.items()
        if value is not None
    }


def _inherited(name: str, suites: Mapping[str, Mapping], below: tuple[str, ...] = ()) -> dict:
    """The suite ``name`` with what it takes over from the suites it extends."""
    section = suites[name]
    parent = section.get("extends")
    own = {key: value for key, value in section.items() if key != "extends"}
    if parent is None:
        return own
    key = f"config key suites.{name}.extends"
    if not isinstance(parent, str) or not isinstance(suites.get(parent), Mapping):
        raise ConfigError(f"{key}: {parent!r} is not known; {suggest(str(parent), list(suites))}")
    if parent in (*below, name):
        chain = " -> ".join((*below, name, parent))
        raise ConfigError(f"{key}: {parent!r} extends it in turn ({chain})")
    taken = _inherited(parent, suites, (*below, name))
    elsewhere = own.get("source", taken.get("source")) != taken.get("source")
    dropped = (*OWN, *OF_SOURCE) if elsewhere else OWN
    return merge({key: value for key, value in taken.items() if key not in dropped}, own)


def read_library(folder: Path) -> dict[str, dict]:
    """The suites that every ``.yaml`` file of the folder defines, by name, files in name order."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where it is there
    library = {}
    for path in sorted(folder.glob("*.yaml")):
        library |= yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return library


def read_resources(folder: Path) -> dict[str, dict]:
    """Suites that come with the workflow: ``suites/*.yaml`` and ``published/*/suite.yaml``."""
    library = read_library(folder / "suites")
    for path in sorted(folder.glob(f"published/*/{SUITE_FILE}")):
        library |= read_library(path.parent)
    return library


def resolve_suites(suites: object, library: Mapping[str, Mapping]) -> object:
    """Suites of the configuration, those of ``library`` after them, whole.

    A suite of the library may be changed in the configuration under its own name. What
    is no mapping is handed on as it is, for the schema to complain about. Raises
    ``ConfigError`` for ``extends`` that leads nowhere or in a circle.
    """
    if not isinstance(suites, Mapping):
        return suites
    known = {
        name: merge(library.get(name, {}), section) if isinstance(section, Mapping) else section
        for name, section in suites.items()
    }
    known |= {name: section for name, section in library.items() if name not in known}
    whole = {}
    for name, section in known.items():
        if not isinstance(section, Mapping):
            whole[name] = section
            continue
        section = _inherited(name, known)
        defaults = {"local": LOCAL, "hub": HUB}.get(section.get("source"), {})
        whole[name] = _without_nothing(merge(defaults, section))
    return whole
