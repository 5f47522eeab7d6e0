"""The configuration, read and checked before any job starts, one line for the first mistake.

``check_config`` names the key, the value and what is valid. ``python -m flatminima.config``
writes the JSON schema of the keys, which editors read, and docs/configuration.md, which lists them.
"""

import json
import re
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flatminima.config_keys import TAG, Config
from flatminima.errors import ConfigError, suggest
from flatminima.suites import merge, read_library, read_yaml, resolve_suites

ROOT = Path(__file__).resolve().parents[2]
SCHEMA_FILE = ROOT / "rules/schemas/config.schema.json"
KEYS_FILE = ROOT / "docs/configuration.md"

# Mistakes, in one line.

_KINDS = {
    "bool": "true or false",
    "dict": "a mapping of keys to values",
    "finite": "a finite number",
    "float": "a finite number",
    "int": "a whole number",
    "list": "a list",
    "model": "a mapping of keys to values",
    "string": "text",
}
_DEFAULT_KIND = "affine"  # of a quantizer
_DECIDING = ("source", "kind")  # keys that say which member of a union a section is
_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def _place(config: Any, error: ErrorDetails) -> tuple[str, ...]:
    """Keys down to the mistake, without the names of the members of unions."""
    found, value = [], config
    for part in error["loc"]:
        listed = isinstance(value, list) and isinstance(part, int)
        if listed or (isinstance(value, Mapping) and part in value):
            value = value[part]
            found.append(str(part))
    return tuple(found)


def _shown(place: Sequence[str]) -> str:
    return ".".join(part[:80] for part in place if part) or "(top level)"


def _line(config: Any, error: ErrorDetails) -> str:
    """One line for one of pydantic's errors."""
    place, rule = _place(config, error), error["type"]
    context, value = error.get("ctx", {}), reprlib.repr(error["input"])
    start = f"config key {_shown(place)}"
    if rule == "extra_forbidden":
        return _unknown(config, place)
    if rule == "invalid_key":
        return f"config key {_shown(place[:-1])}: {error['loc'][-1]!r} is not text"
    if rule == "missing":
        return f"{start} lacks {error['loc'][-1]}"
    if rule.startswith("union_tag") and not isinstance(error["input"], Mapping):
        return f"{start}: {value} is not {_KINDS['dict']}"
    if rule.startswith("union_tag"):
        deciding = context["discriminator"].strip("'")
        name = deciding if deciding in _DECIDING else "source"
        if rule == "union_tag_not_found":
            return f"{start} lacks {name}"
        tag, choices = error["input"][name], re.findall(r"'([^']*)'", context["expected_tags"])
        hint = suggest(str(tag), [choice.removeprefix(TAG) for choice in choices])
        return f"config key {_shown((*place, name))}: {reprlib.repr(tag)} is not valid; {hint}"
    if rule == "literal_error":
        choices = re.findall(r"'([^']*)'|(True|False)", context["expected"])
        hint = suggest(str(error["input"]), ["".join(choice).lower() for choice in choices])
        return f"{start}: {value} is not valid; {hint}"
    if rule == "mistake":
        place = (*place, *context["key"].split("."))
        verb = context["text"].split()[0] in ("lacks", "goes", "takes", "needs", "has")
        return f"config key {_shown(place)}{'' if verb else ':'} {context['text']}"
    if rule == "value_error":
        return f"{start}: {context['error']}"
    if rule == "string_pattern_mismatch":
        return f"{start}: {value} does not match {context['pattern']}"
    if rule in ("too_short", "string_too_short"):
        return f"{start}: {value} is empty; valid: at least {context['min_length']}"
    if rule in _LIMITS:
        name, words = _LIMITS[rule]
        limit = context[name]
        if rule == "greater_than" and isinstance(limit, int):
            words, limit = "at least", limit + 1
        return f"{start}: {value} is not valid; valid: {words} {limit}"
    kind = rule.split("_")[0]
    return f"{start}: {value} is not {_KINDS.get(kind, error['msg'].lower())}"


def _unknown(config: Any, place: Sequence[str]) -> str:
    *section, unknown = place
    known, elsewhere = _known_names(config, section)
    start = f"config key {_shown(place)}"
    own = _value_at(config, section)
    for name, kinds in elsewhere.items():
        if unknown in kinds:
            which = " or ".join(kinds[unknown])
            return f"{start} goes with {name} {which}; {name} is {own.get(name)}"
    return f"{start} is not known; {suggest(unknown, sorted(known))}"


def _value_at(config: Any, place: Sequence[str]) -> Any:
    for part in place:
        config = config[int(part)] if isinstance(config, list) else config[part]
    return config


def _known_names(
    config: Any, section: Sequence[str]
) -> tuple[list[str], dict[str, dict[str, list[str]]]]:
    """Keys of a section, and by deciding key those that other members of its union have."""
    schema, value = json_schema(), config
    node, elsewhere = schema, {}
    for part in (*section, None):
        node, elsewhere = _chosen(schema, node, value)
        if part is None:
            break
        value = _value_at(value, [part])
        node = node.get("properties", {}).get(part) or next(_within(node), {})
    return list(node.get("properties", {})), elsewhere


def _within(node: Mapping) -> Iterator[Mapping]:
    """What the values of names, or the members of a list, have to be."""
    named = node.get("patternProperties", {})
    yield from (
        *named.values(),
        *filter(None, (node.get("additionalProperties"), node.get("items"))),
    )


def _chosen(schema: Mapping, node: Mapping, value: Any) -> tuple[Mapping, dict]:
    """The member of a union that ``value`` is, and the keys that only others have."""
    node = _resolved(schema, node)
    members = [_resolved(schema, member) for member in node.get("oneOf", node.get("anyOf", ()))]
    if not members or not isinstance(value, Mapping):
        return node, {}
    name = next((n for n in _DECIDING if n in members[0].get("properties", {})), None)
    if name is None:  # the two forms of a grid
        return max(members, key=lambda m: len(set(m.get("properties", {})) & set(value))), {}
    own, others = members[0], {}
    for member in members:
        kind = member["properties"][name].get("const")
        if kind == value.get(name, _DEFAULT_KIND):
            own = member
        for known in member["properties"]:
            others.setdefault(known, []).append(kind)
    return own, {name: {k: v for k, v in others.items() if k not in own["properties"]}}


def _resolved(schema: Mapping, node: Mapping) -> Mapping:
    reference = node.get("$ref")
    return schema["$defs"][reference.rpartition("/")[2]] if reference else node


def _rank(error: ErrorDetails) -> int:
    """Keys that are not known first, since they explain what is missing."""
    order = ("extra_forbidden", "union_tag_invalid", "literal_error")
    if error["type"] in order:
        return order.index(error["type"])
    return len(order) + (error["type"] == "missing")


def check_config(config: Mapping) -> None:
    """Raise ``ConfigError`` with one line for the first mistake; suites are whole already."""
    try:
        Config.model_validate(config)
    except ValidationError as error:
        found = error.errors(include_url=False)
        top = next(
            (e for e in found if e["type"] == "extra_forbidden" and len(e["loc"]) == 1), None
        )
        # The first suite with a mistake is the one it was made in: those that extend it follow.
        first = [each for each in found if each["loc"][:2] == found[0]["loc"][:2]]
        chosen = top or min(first, key=_rank)
        raise ConfigError(" ".join(_line(config, chosen).split())) from None


def find_suite(config: Mapping, name: str) -> dict:
    """The suite ``name`` of a checked configuration; one line if there is none."""
    if name not in config["suites"]:
        hint = suggest(name, list(config["suites"]))
        raise ConfigError(f"config key suite: {name!r} is not known; {hint}")
    return config["suites"][name]


def whole_config(config: dict, resources: Path = ROOT / "resources") -> dict:
    """The configuration with whole suites, those that come with the workflow among them, checked.

    ``config`` is changed. Raises ``ConfigError``.
    """
    config["suites"] = resolve_suites(config.get("suites"), read_library(resources))
    check_config(config)
    return config


def read_config(files: Sequence[str | Path] = ()) -> dict:
    """``config.yaml`` and ``files`` over it, whole and checked, as Snakemake reads them."""
    config: dict = {}
    for path in (ROOT / "config.yaml", *map(Path, files)):
        config = merge(config, read_yaml(path))
    return whole_config(config)


# The schema, and the keys for the documentation.


@cache
def json_schema() -> dict:
    """JSON schema of the configuration, for editors."""

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(part) for part in node]
        if not isinstance(node, dict):
            return node
        kept = {
            name: plain(part)
            for name, part in node.items()
            if not (name == "title" and isinstance(part, str))
            and not (name == "default" and part is None)
        }
        if "description" in kept and isinstance(kept["description"], str):
            kept["description"] = " ".join(kept["description"].split())
        return kept

    schema = plain(Config.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def describe_keys() -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default and description of every key, for the documentation."""
    schema, seen = json_schema(), set()

    def walk(node: Mapping, place: tuple[str, ...]) -> Iterator[tuple[str, str, str, str]]:
        node = _resolved(schema, node)
        members = [_resolved(schema, m) for m in node.get("oneOf", node.get("anyOf", ()))]
        for name in _DECIDING:
            having = [m for m in members if name in m.get("properties", {})]
            path = ".".join((*place, name))
            if having and path not in seen:
                seen.add(path)
                kinds = [member["properties"][name]["const"] for member in having]
                default = json.dumps(_DEFAULT_KIND) if _DEFAULT_KIND in kinds else "needed"
                yield path, ", ".join(kinds), default, "Decides which other keys there are."
        for member in members:
            yield from walk(member, place)
        needed = node.get("required", ())
        for name, below in node.get("properties", {}).items():
            path = ".".join((*place, name))
            if path not in seen:
                seen.add(path)
                default = "needed" if name in needed else json.dumps(below.get("default"))
                meaning = below.get("description") or _resolved(schema, below).get("description")
                yield path, _type_name(schema, below), default, meaning or ""
            yield from walk(below, (*place, name))
        for below in _within(node):
            yield from walk(below, place if "items" in node else (*place, "NAME"))

    yield from walk(schema, ())


def _type_name(schema: Mapping, node: Mapping) -> str:
    node = _resolved(schema, node)
    if "const" in node or "enum" in node:
        return ", ".join(map(str, node.get("enum", [node.get("const")])))
    if members := node.get("oneOf", node.get("anyOf")):
        return " or ".join(dict.fromkeys(_type_name(schema, member) for member in members))
    names = {"object": "mapping", "array": "list", "integer": "whole number", "string": "text"}
    return names.get(node.get("type"), node.get("type", "mapping"))


KEYS_INTRODUCTION = """\
# Every key of the configuration

Written by `PYTHONPATH=workflow_scripts python -m flatminima.config` from the descriptions in
[config_keys.py](../workflow_scripts/flatminima/config_keys.py); a test keeps it current. A
configuration of your own goes over `config.yaml` with `--configfile mine.yaml`; a key that is not
known stops the run before any job, with one line that says what is valid. `NAME` stands for a name
that you choose. A default of *needed* says that the key has none, *none* that it may be left out.
"""


def keys_page() -> str:
    """docs/configuration.md: a table a section, in the order in which sections are met."""
    sections: dict[str, list[str]] = {}
    for path, kind, default, meaning in describe_keys():
        section, _, name = path.rpartition(".")
        row = (f"`{name}`", kind, default.replace("null", "none"), meaning.replace("|", "\\|"))
        sections.setdefault(section, []).append(f"| {' | '.join(row)} |")
    parts = [KEYS_INTRODUCTION]
    for section, rows in sections.items():
        head = f"## {f'`{section}`' if section else 'Top level'}"
        parts.append("\n".join([head, "", "| key | type | default | meaning |", "|---|---|---|---|",
                                *rows, ""]))  # fmt: skip
    return "\n".join(parts)


def main() -> None:
    """Write the JSON schema and the list of keys."""
    SCHEMA_FILE.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    KEYS_FILE.write_text(keys_page(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
