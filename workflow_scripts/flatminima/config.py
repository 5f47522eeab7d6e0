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

from flatminima.config_keys import Config
from flatminima.errors import ConfigError, suggest
from flatminima.sections import DECIDING
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
_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
# With these a mistake is a sentence about its key, with anything else about its value.
_VERBS = ("lacks", "goes", "takes", "needs", "has", "is")


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
    context, value, text = error.get("ctx", {}), reprlib.repr(given), ""
    if rule == "mistake":
        place, text = [*place, *context["key"].split(".")], context["text"]
    elif rule == "missing":
        text = f"lacks {error['loc'][-1]}"
    elif rule.startswith("union_tag") and isinstance(given, Mapping):
        name = context["discriminator"].strip("'")
        text = f"lacks {name}"
        if name in given:
            choices = re.findall(r"'([^']*)'", context["expected_tags"])
            text = f"{reprlib.repr(given[name])} is not valid; {suggest(str(given[name]), choices)}"
            place = [*place, name]
    elif rule == "literal_error":
        choices = re.findall(r"'([^']*)'|(True|False)", context["expected"])
        hint = suggest(str(given), ["".join(choice).lower() for choice in choices])
        text = f"{value} is not valid; {hint}"
    elif rule == "value_error":
        text = str(context["error"])
    elif rule == "string_pattern_mismatch":
        text = f"{value} does not match {context['pattern']}"
    elif rule in ("too_short", "string_too_short"):
        text = f"{value} is empty; valid: at least {context['min_length']}"
    elif rule in _LIMITS:
        name, words = _LIMITS[rule]
        limit = context[name]
        if rule == "greater_than" and isinstance(limit, int):
            words, limit = "at least", limit + 1
        text = f"{value} is not valid; valid: {words} {limit}"
    else:
        kind = "dict" if rule.startswith("union_tag") else rule.split("_")[0]
        text = f"{value} is not {_KINDS.get(kind, error['msg'].lower())}"
    shown = ".".join(part[:80] for part in place if part) or "(top level)"
    colon = "" if text.split()[0] in _VERBS else ":"
    return " ".join(f"config key {shown}{colon} {text}".split())


def check_config(config: Mapping) -> None:
    """Raise ``ConfigError`` with one line for the first mistake; suites are whole already.

    The first suite with a mistake is the one it was made in: those that extend it follow.
    """
    try:
        Config.model_validate(config)
    except ValidationError as error:
        raise ConfigError(_line(config, error.errors(include_url=False)[0])) from None


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
            return " ".join(node.split()) if isinstance(node, str) else node
        left_out = ("title",) if isinstance(node.get("title"), str) else ()
        left_out += ("default",) if node.get("default", 0) is None else ()
        return {name: plain(part) for name, part in node.items() if name not in left_out}

    schema = plain(Config.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _members(node: Mapping) -> list[Mapping]:
    """What a node of the schema may be: itself, or the members of the union that it is."""
    if reference := node.get("$ref"):
        node = json_schema()["$defs"][reference.rpartition("/")[2]]
    union = node.get("oneOf", node.get("anyOf"))
    return [each for member in union for each in _members(member)] if union else [node]


def describe_keys() -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default and description of every key, for the documentation."""
    seen = set()

    def walk(node: Mapping, place: tuple[str, ...]) -> Iterator[tuple[str, str, str, str]]:
        members = _members(node)
        for name in DECIDING:
            having = [m["properties"][name] for m in members if name in m.get("properties", {})]
            path = ".".join((*place, name))
            if len(having) > 1 and path not in seen:
                seen.add(path)
                kinds = ", ".join(each["const"] for each in having)
                kept = [json.dumps(each["default"]) for each in having if "default" in each]
                default = kept[0] if len(kept) == 1 else "needed"
                yield path, kinds, default, "Decides which other keys there are."
        for member in members:
            for name, below in member.get("properties", {}).items():
                path = ".".join((*place, name))
                if path not in seen:
                    seen.add(path)
                    needed = name in member.get("required", ())
                    default = "needed" if needed else json.dumps(below.get("default"))
                    meaning = below.get("description") or _members(below)[0].get("description", "")
                    yield path, _type_name(below), default, meaning
                yield from walk(below, (*place, name))
            for below in member.get("patternProperties", {}).values():
                yield from walk(below, (*place, "NAME"))
            if "items" in member:
                yield from walk(member["items"], place)

    yield from walk(json_schema(), ())


def _type_name(node: Mapping) -> str:
    names = {"object": "mapping", "array": "list", "integer": "whole number", "string": "text"}
    found = []
    for member in _members(node):
        kind = names.get(member.get("type"), member.get("type", "mapping"))
        values = member.get("enum", [member["const"]] if "const" in member else [])
        found.append(", ".join(map(str, values)) or kind)
    return " or ".join(dict.fromkeys(found))


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
