"""What the closed JSON schema of the configuration complains about, one line per mistake."""

import re
import reprlib
import sys
from collections.abc import Iterator, Mapping

from flatminima.config.lean_imports import absent
from flatminima.errors import suggest

# jsonschema builds 38 grammars for kinds of addresses, which no schema here uses, wherever it
# finds this package: more than a second at every start of Snakemake.
with absent("rfc3987_syntax"):
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import ValidationError

TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a finite number",
    "object": "a mapping of keys to values",
    "string": "text",
}


def _is_integer(checker: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(checker: object, value: object) -> bool:
    # Neither nan nor infinite, which YAML can spell, nor beyond what a float holds.
    return isinstance(value, float | int) and not isinstance(value, bool) and (
        abs(value) <= sys.float_info.max
    )  # fmt: skip


def _pattern(
    validator: object, pattern: str, value: object, schema: Mapping
) -> Iterator[ValidationError]:
    # JSON Schema's $ is the end of the text; Python's is also before a line break there.
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


# JSON Schema counts 2.0 among the integers; here it would end in a traceback.
_Validator = validators.extend(
    Draft202012Validator,
    {"pattern": _pattern},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number}
    ),
)


def _key(error: ValidationError) -> str:
    return ".".join(str(part) for part in error.absolute_path) or "(top level)"


def _unknown_key(error: ValidationError) -> str:
    known = error.schema.get("properties", {})
    return min(str(name) for name in error.instance if name not in known)


def _schema_line(error: ValidationError) -> str:
    """One line for one schema error."""
    key, value, rule = _key(error), error.instance, error.validator
    shown = reprlib.repr(value)
    if rule == "additionalProperties":
        unknown = _unknown_key(error)
        prefix = "" if key == "(top level)" else f"{key}."
        valid = suggest(unknown, sorted(error.schema.get("properties", {})))
        return f"config key {prefix}{unknown} is not known; {valid}"
    if rule == "required":
        missing = [name for name in error.validator_value if name not in value]
        return f"config key {key} lacks {', '.join(missing)}"
    if rule in ("enum", "const"):
        valid = error.validator_value if rule == "enum" else [error.validator_value]
        hint = suggest(str(value), [str(choice) for choice in valid])
        return f"config key {key}: {shown} is not valid; {hint}"
    if rule == "not":
        size = value["group_size"]
        return f"config key {key}: group_size {size!r} goes with granularity group only"
    if rule == "pattern":
        return f"config key {key}: {shown} does not match {error.validator_value}"
    if rule == "type":
        return f"config key {key}: {shown} is not {TYPES[error.validator_value]}"
    return f"config key {key}: {error.message}"


def _deepest(error: ValidationError) -> ValidationError:
    """The most specific error below ``error``: what a branch of the schema complained about."""
    while error.context:
        error = max(error.context, key=lambda nested: len(nested.absolute_path))
    return error


def schema_errors(config: Mapping, schema: Mapping) -> Iterator[str]:
    """One line per mistake that the closed JSON schema finds."""
    # A mistaken kind (enum) explains what follows from it, so it comes first.
    errors = sorted(
        _Validator(schema).iter_errors(config),
        key=lambda error: (error.validator != "enum", list(map(str, error.absolute_path))),
    )
    for error in errors:
        yield " ".join(_schema_line(_deepest(error)).split())
