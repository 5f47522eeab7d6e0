"""The JSON schema of the keys, which editors read, and docs/configuration.md, which lists them.

``python -m flatminima.config.documentation`` writes both.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache

from flatminima.config.keys import Config
from flatminima.config.loading import ROOT
from flatminima.config_section import DECIDING

SCHEMA_FILE = ROOT / "rules/schemas/config.schema.json"
KEYS_FILE = ROOT / "docs/configuration.md"


@cache
def json_schema() -> dict:
    """JSON schema of the configuration, for editors."""
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _members(node: Mapping) -> list[Mapping]:
    """What a node of the schema may be: itself, or the members of the union that it is."""
    if reference := node.get("$ref"):
        node = json_schema()["$defs"][reference.rpartition("/")[2]]
    union = node.get("oneOf", node.get("anyOf"))
    return [each for member in union for each in _members(member)] if union else [node]


def describe_keys() -> dict[str, tuple[str, str, str]]:
    """Type, default and description of every key by its path, for the documentation."""
    found: dict[str, tuple[str, str, str]] = {}

    def walk(node: Mapping, place: tuple[str, ...] = ()) -> None:
        members = _members(node)
        for member in members:
            for name, below in member.get("properties", {}).items():
                path = ".".join((*place, name))
                needed = name in member.get("required", ())
                default = "needed" if needed else json.dumps(below.get("default"))
                meaning = below.get("description") or _members(below)[0].get("description", "")
                kind = _type_name([below])
                if name in DECIDING and len(members) > 1:
                    own = [m["properties"][name] for m in members if name in m["properties"]]
                    kind, meaning = _type_name(own), "Decides which other keys there are."
                found.setdefault(path, (kind, default, " ".join(meaning.split())))
                walk(below, (*place, name))
            for below in member.get("patternProperties", {}).values():
                walk(below, (*place, "NAME"))
            if "items" in member:
                walk(member["items"], place)

    walk(json_schema())
    return found


def _type_name(nodes: Sequence[Mapping]) -> str:
    names = {"object": "mapping", "array": "list", "integer": "whole number", "string": "text"}
    found = []
    for member in (member for node in nodes for member in _members(node)):
        kind = names.get(member.get("type"), member.get("type", "mapping"))
        values = member.get("enum", [member["const"]] if "const" in member else [])
        found.append(", ".join(map(str, values)) or kind)
    return " or ".join(dict.fromkeys(found))


KEYS_INTRODUCTION = """\
# Every key of the configuration

Written by `PYTHONPATH=workflow_scripts python -m flatminima.config.documentation` from the
descriptions in [keys.py](../workflow_scripts/flatminima/config/keys.py); a test keeps it current. A
configuration of your own goes over `config.yaml` with `--configfile mine.yaml`; a key that is not
known stops the run before any job, with one line that says what is valid. `NAME` stands for a name
that you choose. A default of *needed* says that the key has none, *none* that it may be left out.

A file over `config.yaml`, `--config` on the command line, and a suite over the one that it
`extends` are merged by one rule. Mappings are merged key by key: what the upper one leaves out
stays as it is below. Everything else is replaced, lists too. These are also replaced as a whole,
because half of one and half of another would mean nothing:

- the sections `grid`, `text`, `tokenizer` and `schedules`: repeat what you keep of them;
- an entry whose `kind` changes, such as a quantizer or one of the `rivals`.

A key without a value (`fork:`) removes what stands below. A suite that `extends` another does not
take over `label` and `is_paper_model`, nor, where its `source` is another, `repo`, `revision`,
`pattern`, `grid` and `integrity`.
"""


def keys_page() -> str:
    """docs/configuration.md: a table a section, in the order in which sections are met."""
    sections: dict[str, list[str]] = {}
    for path, (kind, default, meaning) in describe_keys().items():
        section, _, name = path.rpartition(".")
        row = (f"`{name}`", kind, default.replace("null", "none"), meaning.replace("|", "\\|"))
        sections.setdefault(section, []).append(f"| {' | '.join(row)} |\n")
    head = "\n| key | type | default | meaning |\n|---|---|---|---|\n"
    return KEYS_INTRODUCTION + "".join(
        f"\n## {f'`{section}`' if section else 'Top level'}\n{head}{''.join(rows)}"
        for section, rows in sections.items()
    )


def main() -> None:
    """Write the JSON schema and the list of keys."""
    SCHEMA_FILE.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    KEYS_FILE.write_text(keys_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
