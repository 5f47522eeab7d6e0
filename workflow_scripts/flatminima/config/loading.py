"""Reads the configuration, completes its suites and validates it before any job starts.

One rule (``merge``) merges files over ``config.yaml``, ``--config``, and a suite over the suite
that it ``extends``. Mappings are merged key by key. Everything else is replaced, and so are the
sections ``grid``, ``text``, ``tokenizer`` and ``schedules`` and an entry whose ``kind`` changes.
``label`` is not inherited, and ``is_paper_model`` only with the same model, validation text and
quantizers. A suite of listed steps inherits neither ``fork`` nor ``mechanism``, which belong to a
complete grid. A key without a value (``fork:``) is removed,
together with the value it would inherit. The first mistake is reported in one line with the key,
the value and what is valid.
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
# Replaced as a whole, since half of one and half of another would mean nothing.
REPLACED_SECTIONS = ("grid", "text", "tokenizer", "schedules")
NOT_INHERITED = ("label", "is_paper_model", "extends")
# Not inherited from a suite whose checkpoints come from another source.
KEYS_OF_SOURCE = ("repo", "revision", "pattern", "grid", "integrity")
# A suite of listed steps does not inherit these: their steps are those of the complete grid.
KEYS_OF_COMPLETE_GRID = ("fork", "mechanism")
# A suite in which these keys are the parent's is the same model, measured in the same way.
KEYS_OF_MEASUREMENT = (
    *("source", "repo", "revision", "pattern", "architecture", "tokenizer", "text.validation"),
    *("batches.validation", "probe.low_bit", "probe.high_bit"),
)
# Defaults of a suite, by its source.
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
    **dict.fromkeys(("hub", "pretrain", "planted"), {"is_paper_model": False}),
}

# Files and the command line.


class _Loader(yaml.CSafeLoader):
    """Refuses a duplicate key in a mapping. YAML itself would silently use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ValueError(
                    f"line {line}: a key must be a single word, not a list or a mapping; text that "
                    "begins with { or [ needs quotes"
                )
            if key_node.value in keys:
                raise ValueError(f"line {line}: duplicate key {key_node.value}")
            keys.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict:
    """The mapping in a YAML file. Raises ``ConfigError`` with one line that names the file.

    The file is UTF-8, with or without a byte order mark.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), Loader=_Loader)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except UnicodeDecodeError as error:
        line = 1 + error.object[: error.start].count(b"\n")
        raise ConfigError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from error
    except (yaml.YAMLError, ValueError, OSError) as error:
        # YAML gives the text a name of its own.
        reason = " ".join(str(error).replace('in "<unicode string>", ', "").split())
        raise ConfigError(f"{path}: {reason}") from error
    if not isinstance(content, dict):
        kind = "empty" if content is None else "not a mapping"
        raise ConfigError(f"{path}: {kind}; write keys and values, in lines such as 'suite: mine'")
    return content


def own_path(path: str) -> str:
    """Path of a file or folder of the workflow, which may be run from another folder.

    ``path`` is unchanged if it exists from the working folder, or nowhere. A run in the clone then
    has short paths in its records, and a user can have a file of that name.
    """
    in_the_clone = ROOT / path
    if Path(path).exists() or not in_the_clone.exists():
        return path
    return in_the_clone.as_posix()


def as_in_a_file(setting: object) -> object:
    """Convert a setting of ``--config`` to what the same text in a file would mean.

    Snakemake passes the inner values of a mapping as text. Text that YAML reads as a number,
    true, false or nothing is converted. Other text is unchanged.
    """
    if isinstance(setting, Mapping):
        return {key: as_in_a_file(inner) for key, inner in setting.items()}
    if isinstance(setting, list):
        return [as_in_a_file(inner) for inner in setting]
    try:
        parsed = yaml.safe_load(setting)
    except (yaml.YAMLError, ValueError, AttributeError):  # such as a date that does not exist
        return setting
    return parsed if isinstance(parsed, bool | int | float | None) else setting


def read_library(resources: Path = ROOT / "resources") -> dict[str, dict]:
    """Suites that come with the workflow: ``suites/*.yaml`` and ``published/*/suite.yaml``."""
    library = {}
    for pattern in ("suites/*.yaml", "published/*/suite.yaml"):
        for path in sorted(resources.glob(pattern)):
            library |= read_yaml(path)
    return library


# Inheritance.


def merge(base: Mapping, change: Mapping, replaced: Sequence[str] = REPLACED_SECTIONS) -> dict:
    """A new mapping: ``base`` with ``change`` merged over it.

    Mappings are merged key by key. Everything else is replaced, and so are the keys in
    ``replaced`` and an entry whose ``kind`` changes, since another kind has other keys.
    """
    merged = deepcopy(dict(base))
    for key, changed in change.items():
        before = merged.get(key)
        both_mappings = isinstance(changed, Mapping) and isinstance(before, Mapping)
        if both_mappings and key not in replaced and not _changes_kind(before, changed):
            merged[key] = merge(before, changed, replaced)
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
    """Complete the suites of the configuration and of ``library``: inherited keys and defaults.

    A suite comes after the suite that it extends, so that a mistake is reported for the suite
    that contains it. The configuration may change a suite of the library under its name.
    Anything that is not a mapping is returned unchanged, for the later check to report. Raises
    ``ConfigError`` for an ``extends`` that names no suite or leads in a circle.
    """
    if not isinstance(suites, Mapping):
        return suites
    sections = {**suites}
    for name, section in library.items():
        if isinstance(sections.setdefault(name, {}), Mapping):
            sections[name] = merge(section, sections[name])

    complete: dict[str, Any] = {}

    def complete_suite(name: str, heirs: tuple[str, ...] = ()) -> None:
        """Add a suite to ``complete``. ``heirs`` extend it, directly or through one another."""
        if name in complete:
            return
        section = sections[name]
        parent = section.get("extends") if isinstance(section, Mapping) else None
        if parent is not None:
            key = f"config key suites.{name}.extends"
            if not isinstance(parent, str):
                raise ConfigError(f"{key}: {parent!r} is not valid; write the name of a suite")
            if parent not in sections:
                raise ConfigError(f"{key}: {parent!r} is not known; {suggest(parent, sections)}")
            if not isinstance(sections[parent], Mapping):
                raise ConfigError(
                    f"config key suites.{parent}: {sections[parent]!r} is not valid; a suite is a "
                    "mapping of keys"
                )
            if parent == name:
                raise ConfigError(f"{key}: a suite cannot extend itself")
            if parent in heirs:
                chain = " -> ".join((*heirs, name, parent))
                raise ConfigError(
                    f"{key}: suites extend one another in a circle ({chain}); remove one of "
                    "these keys"
                )
            # Depth first: the parent is completed, and stands in `complete`, before its heir.
            complete_suite(parent, (*heirs, name))
            section = _inherit(complete[parent], section)
        complete[name] = section

    for name in sections:
        complete_suite(name)
    return {name: _without_nothing(_with_defaults(section)) for name, section in complete.items()}


def _inherit(parent: Mapping, section: Mapping) -> dict:
    """A suite's section, merged over the complete section of the suite that it extends."""
    left_out = set(NOT_INHERITED)
    if section.get("source", parent.get("source")) != parent.get("source"):
        left_out.update(KEYS_OF_SOURCE)
    grid = section.get("grid")
    if isinstance(grid, Mapping) and "steps" in grid:
        left_out.update(KEYS_OF_COMPLETE_GRID)
    inherited = {key: setting for key, setting in parent.items() if key not in left_out}
    own_keys = {key: setting for key, setting in section.items() if key != "extends"}
    merged = merge(inherited, own_keys)
    if "is_paper_model" in parent and "is_paper_model" not in own_keys:
        is_same = all(_key(parent, path) == _key(merged, path) for path in KEYS_OF_MEASUREMENT)
        merged["is_paper_model"] = parent["is_paper_model"] and is_same
    return merged


def _key(section: object, path: str) -> object:
    """A key of nested mappings, such as ``text.validation``; ``None`` if it is not there."""
    for name in path.split("."):
        section = section.get(name) if isinstance(section, Mapping) else None
    return section


def _with_defaults(section: object) -> object:
    if not isinstance(section, Mapping):
        return section
    return merge(DEFAULTS.get(str(section.get("source")), {}), section)


# Mistakes, in one line.

# What is valid, by the type of pydantic's error, with the numbers of its context.
_PLAIN_WORDS = {
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "greater_than": "more than {gt}",
    "less_than": "less than {lt}",
    "int_type": "a whole number, such as 2",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list, such as [1, 2]",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
}


def _place(config: Any, error: ErrorDetails) -> list[str]:
    """Keys from the top to the mistake.

    In a union, pydantic's location also has the name of the class that was chosen, which is not
    a key. That part follows a section with a key such as ``kind``, and is skipped.
    """
    keys = []
    section = config
    skipped_class = False
    for part in error["loc"]:
        is_mapping = isinstance(section, Mapping)
        if is_mapping and not skipped_class and part in map(section.get, DECIDING):
            skipped_class = True
        elif isinstance(part, int) and keys:
            keys[-1] += f"[{part}]"  # an entry of a list
            section = section[part]
            skipped_class = False
        elif is_mapping and part in section:
            keys.append(str(part))
            section = section[part]
            skipped_class = False
    return keys


def _error_line(config: Any, error: ErrorDetails) -> str:
    """One line for one of pydantic's errors."""
    place = _place(config, error)
    error_type = error["type"]
    setting = error["input"]
    context = error.get("ctx", {})
    # pydantic lists the valid values as text: 'a', 'b' or 'c'.
    choices = re.findall(r"'([^']*)'", context.get("expected_tags", context.get("expected", "")))
    if error_type == "mistake":
        place += context["key"].split(".")
        text = context["text"]
    elif error_type == "missing":
        text = f"lacks {error['loc'][-1]}"
    elif error_type in _PLAIN_WORDS:
        valid = _PLAIN_WORDS[error_type].format(**context)
        text = f"{reprlib.repr(setting)} is not valid; valid: {valid}"
    elif error_type == "union_tag_not_found" and isinstance(setting, Mapping):
        text = f"lacks {_deciding_key(context)}"
        if _deciding_key(context) == "source":
            text += "; valid: pretrain, planted, hub, local, published"
    elif choices:
        if isinstance(setting, Mapping) and error_type == "union_tag_invalid":
            place.append(_deciding_key(context))
            setting = setting[_deciding_key(context)]
        text = f"{reprlib.repr(setting)} is not valid; {suggest(str(setting), choices)}"
    elif error_type == "value_error":
        text = str(context["error"])
    else:
        reason = error["msg"][0].lower() + error["msg"][1:]
        text = f"{reprlib.repr(setting)} is not valid: {reason}"
    shown_place = ".".join(filter(None, place)) or "(top level)"
    # The text continues a sentence that begins with the key, or describes the key's value.
    verbs = ("lacks ", "goes ", "takes ", "needs ", "has ", "is ", "would ")
    colon = "" if text.startswith(verbs) else ":"
    return " ".join(f"config key {shown_place}{colon} {text}".split())


def _deciding_key(context: Mapping) -> str:
    """The key that chooses the class of a union. pydantic quotes its name."""
    return context["discriminator"].strip("'")


def check_config(config: Mapping) -> Config:
    """Validate a configuration whose suites are complete.

    Raises ``ConfigError`` with one line for the first mistake. Suites come after those that they
    extend, so the first suite with a mistake is the one that contains it.
    """
    try:
        return Config.model_validate(config)
    except ValidationError as error:
        raise ConfigError(_error_line(config, error.errors(include_url=False)[0])) from None


def complete_config(config: Mapping) -> Config:
    """The validated configuration, including the suites that come with the workflow.

    Every suite contains the keys that it inherits. Raises ``ConfigError``.
    """
    suites = resolve_suites(config.get("suites"), read_library())
    return check_config({**config, "suites": suites})


def read_config(files: Sequence[str | Path] = ()) -> Config:
    """``config.yaml`` with ``files`` merged over it, validated, as Snakemake reads them."""
    config: dict = {}
    for path in (ROOT / "config.yaml", *map(Path, files)):
        config = merge(config, read_yaml(path))
    return complete_config(config)
