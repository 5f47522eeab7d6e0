"""Writes the JSON schema of the keys, for editors, and docs/configuration.md, for readers.

``python -m flatminima.config.documentation`` writes both.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache

from flatminima.config.keys import Config
from flatminima.config.loading import ROOT
from flatminima.config_section import DECIDING

SCHEMA_FILE = ROOT / "rules/schemas/config.schema.json"
KEYS_FILE = ROOT / "docs/configuration.md"
_STATED_DEFAULT = re.compile(r"Default: (.+?)\.(?= |$)")


@cache
def json_schema() -> dict:
    """JSON schema of the configuration, for editors."""
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _members(node: Mapping) -> list[Mapping]:
    """The alternatives of a node of the schema: the members of its union, or the node alone."""
    reference = node.get("$ref")
    if reference:
        node = json_schema()["$defs"][reference.rpartition("/")[2]]
    union = node.get("oneOf", node.get("anyOf"))
    if not union:
        return [node]
    return [alternative for member in union for alternative in _members(member)]


def describe_keys() -> dict[str, tuple[str, str, str]]:
    """Type, default and description of every key by its path, for the documentation."""
    rows: dict[str, tuple[str, str, str]] = {}

    def add_rows(node: Mapping, place: tuple[str, ...] = ()) -> None:
        members = _members(node)
        for member in members:
            for name, key_node in member.get("properties", {}).items():
                path = (*place, name)
                # The first of several classes with this key describes it.
                rows.setdefault(".".join(path), _describe_key(name, key_node, member, members))
                add_rows(key_node, path)
            for named_node in member.get("patternProperties", {}).values():
                add_rows(named_node, (*place, "NAME"))
            if "items" in member:
                add_rows(member["items"], place)

    add_rows(json_schema())
    return rows


def _describe_key(
    name: str, key_node: Mapping, member: Mapping, members: Sequence[Mapping]
) -> tuple[str, str, str]:
    """Type, default and description of the key ``name`` of ``member``, one of ``members``."""
    is_required = name in member.get("required", ())
    default = "needed" if is_required else json.dumps(key_node.get("default"))
    if name in DECIDING and len(members) > 1:
        nodes = [other["properties"][name] for other in members if name in other["properties"]]
        return _type_name(nodes), default, "Decides which other keys there are."
    # A section without a description of its own has that of its class.
    section_description = _members(key_node)[0].get("description", "")
    description = key_node.get("description") or section_description
    description = " ".join(description.split())
    # A default that depends on other keys is a sentence of the description.
    stated_default = _STATED_DEFAULT.search(description)
    if default == "null" and stated_default:
        default = stated_default[1]
        description = description.replace(stated_default[0], "").strip()
    return _type_name([key_node]), default, " ".join(description.split())


def _type_name(nodes: Sequence[Mapping]) -> str:
    names = {"object": "mapping", "array": "list", "integer": "whole number", "string": "text"}
    types = []
    for node in nodes:
        for member in _members(node):
            kind = names.get(member.get("type"), member.get("type", "mapping"))
            choices = [member["const"]] if "const" in member else []
            choices = member.get("enum", choices)
            types.append(", ".join(map(str, choices)) or kind)
    return " or ".join(dict.fromkeys(types))


KEYS_INTRODUCTION = """\
# Every key of the configuration

This page is written by `PYTHONPATH=workflow_scripts python -m flatminima.config.documentation`
from the descriptions in [keys.py](../workflow_scripts/flatminima/config/keys.py). A test checks
that it is current.

Your own configuration is merged over `config.yaml` with `--configfile mine.yaml`. An unknown key
stops the run before any job starts. The error is one line that lists the valid keys. In this page
`NAME` is a name that you choose. The default *needed* means that you must set the key. The default
*none* means that you may leave it out.

One rule of merging applies to a file over `config.yaml`, to `--config` on the command line, and to
a suite over the suite that it `extends`. Mappings are merged key by key. A key that the upper
mapping leaves out keeps its lower value. Everything else is replaced, lists too. These mappings are
also replaced as a whole, because half of one and half of another would mean nothing:

- the sections `grid`, `text`, `tokenizer` and `schedules`: repeat the keys that you keep;
- an entry whose `kind` changes, such as a quantizer or one of the `rivals`.

A key without a value (`fork:`) removes the lower value. A suite that `extends` another does not
inherit `label`. It inherits `is_paper_model` if model, validation text and quantizers are the same.
With a `grid` of listed steps it inherits neither `fork` nor `mechanism`. If its `source` differs,
it does not inherit `repo`, `revision`, `pattern`, `grid` and `integrity` either.
"""


def keys_page() -> str:
    """docs/configuration.md: one table per section, in the order of the schema."""
    rows_by_section: dict[str, list[str]] = {}
    for path, (kind, default, description) in describe_keys().items():
        section, _, name = path.rpartition(".")
        default = default.replace("null", "none")
        description = description.replace("|", "\\|")
        row = f"| `{name}` | {kind} | {default} | {description} |\n"
        rows_by_section.setdefault(section, []).append(row)

    page = KEYS_INTRODUCTION
    for section, rows in rows_by_section.items():
        title = f"`{section}`" if section else "Top level"
        page += f"\n## {title}\n"
        page += "\n| key | type | default | meaning |\n|---|---|---|---|\n"
        page += "".join(rows)
    return page


def main() -> None:
    """Write the JSON schema and the list of keys."""
    SCHEMA_FILE.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    KEYS_FILE.write_text(keys_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
