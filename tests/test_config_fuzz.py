"""Hundreds of configurations that the schema allows: each plans, or is refused in one line.

What is generated follows the schema: any part of a committed suite is replaced by whatever
else the schema has for that place, so a key that is new is tried as well.
"""

import copy
import random
from collections.abc import Iterator
from functools import cache

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from flatminima.config.checks import check_config
from flatminima.errors import ConfigError
from tests.test_config import CONFIG, SCHEMA, TINY, plan_everything
from tests.workflow import copy_checkout, snakemake

CONFIGS = 600
DRY_RUNS = 12
LONGEST_LINE = 1000


def base() -> dict:
    """The committed suites and the one of the tests."""
    config = copy.deepcopy(CONFIG)
    for key in ("suites", "quantizers"):
        config[key] |= copy.deepcopy(TINY[key])
    return config


def resolved(schema: dict) -> dict:
    """A schema with a reference replaced by what it refers to."""
    while "$ref" in schema:
        reference = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        schema = reference | {key: part for key, part in schema.items() if key != "$ref"}
    return schema


def branches(schema: dict, value: object) -> Iterator[dict]:
    """The schemas that a value has to meet: the schema, and what follows from its conditions."""
    schema = resolved(schema)
    yield schema
    for part in schema.get("allOf", []):
        yield from branches(part, value)
    if "if" in schema:
        condition = Draft202012Validator({**schema["if"], "$defs": SCHEMA["$defs"]})
        branch = schema.get("then" if condition.is_valid(value) else "else")
        if branch:
            yield from branches(branch, value)


def places(value: object, schema: dict, path: tuple = ()) -> Iterator[tuple[tuple, dict]]:
    """Every place of a configuration, even one that is empty, with the schema that rules there."""
    for part in branches(schema, value):
        if path:
            yield path, part
        if not isinstance(value, dict):
            continue
        known = part.get("properties", {})
        for key, below in known.items():
            if key in value:
                yield from places(value[key], below, (*path, key))
            elif "const" not in below:  # also each key of a section that is left out
                yield (*path, key), resolved(below)
                if "properties" in resolved(below):
                    yield from places({}, below, (*path, key))
        others = part.get("additionalProperties")
        for key in set(value) - set(known) if isinstance(others, dict) else ():
            yield from places(value[key], others, (*path, key))


PLACES = sorted(
    {path for path, part in places(base(), SCHEMA) if part and len(path) > 1}, key=str
)  # fmt: skip


# Values that a schema allows. (hypothesis-jsonschema knows more, and not this Hypothesis.)

NAMES = st.sampled_from(
    ["mini", "tiny", "pythia-160m", "int4_g64", "int8_channel", "a/b", "{step}"]
)


def numbers(schema: dict, *, whole: bool) -> st.SearchStrategy:
    """Near the limits, of usual size, and absurd."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if whole:
        ranges = [(low, low + 12), (low, 6000), (low, 10**18)]
        return st.one_of(
            st.integers(a, b if high is None else min(high, b)) for a, b in ranges if a <= b
        )
    top = high if high is not None else 1e6
    return st.floats(
        low, top, exclude_min="exclusiveMinimum" in schema, exclude_max="exclusiveMaximum" in schema
    ) | st.integers(0, 2).filter(lambda number: low < number < top)


def strings(schema: dict) -> st.SearchStrategy:
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=False)
    return st.text(min_size=schema.get("minLength", 0), max_size=12) | NAMES


def lists(schema: dict) -> st.SearchStrategy:
    return st.lists(
        values(schema["items"]), min_size=schema.get("minItems", 0), max_size=4,
        unique=schema.get("uniqueItems", False),
    )  # fmt: skip


def mappings(schema: dict) -> st.SearchStrategy:
    known = {key: values(part) for key, part in schema.get("properties", {}).items()}
    required = {key: known.get(key, st.nothing()) for key in schema.get("required", [])}
    optional = {key: part for key, part in known.items() if key not in required}
    found = st.fixed_dictionaries(required, optional=optional)
    others = schema.get("additionalProperties")
    if not isinstance(others, dict):
        return found
    names = strings(schema.get("propertyNames", {})) | st.just("cosine")
    more = st.dictionaries(
        names, values(others), min_size=schema.get("minProperties", 0), max_size=2
    )
    return st.builds(lambda one, two: one | two, found, more)


def merged(first: dict, second: dict) -> dict:
    """What two schemas ask for together."""
    together = first | second
    for key in ("properties",):
        if key in first and key in second:
            together[key] = first[key] | second[key]
    return together


@cache
def _values(text: str) -> st.SearchStrategy:
    schema = yaml.safe_load(text)
    for key in [k for k in ("if", "then", "else", "allOf", "$ref") if k in schema]:
        del schema[key]
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type", "object")
    if kind == "boolean":
        return st.booleans()
    if kind in ("integer", "number"):
        return numbers(schema, whole=kind == "integer")
    return {"string": strings, "array": lists, "object": mappings}[kind](schema)


def values(schema: dict) -> st.SearchStrategy:
    """Values of a schema; where it has conditions, of each of their branches."""
    schema = resolved(schema)
    parts = [schema, *schema.get("allOf", [])]
    follows = [resolved(part[key]) for part in parts for key in ("then", "else") if key in part]
    plain = [branch for branch in follows if "if" not in branch and "not" not in branch]
    nested = [branch for branch in follows if "if" in branch]
    whole = [merged(schema, branch) for branch in plain] or [schema]
    strategies = [st.deferred(lambda part=part: _values(yaml.safe_dump(part))) for part in whole]
    check = Draft202012Validator({**schema, "$defs": SCHEMA["$defs"]})
    return st.one_of(*strategies, *map(values, nested)).filter(check.is_valid)


@cache
def values_at(path: tuple) -> st.SearchStrategy:
    """Values for a place that exists in the committed suites."""
    parts = [part for at, part in places(base(), SCHEMA) if at == path and part]
    return st.one_of(*(values(part) for part in parts))


def put(config: dict, path: tuple, value: object) -> None:
    *parents, last = path
    for part in parents:
        config = config.setdefault(part, {}) if isinstance(config, dict) else None
    if isinstance(config, dict):
        config[last] = value


CHANGES = st.lists(
    st.sampled_from(PLACES).flatmap(lambda path: st.tuples(st.just(path), values_at(path))),
    min_size=1,
    max_size=3,
)
SEEN = {"planned": 0, "refused": 0}


def judge(config: dict) -> str:
    """``planned``, or the line that a configuration is refused with."""
    try:
        check_config(config, SCHEMA)
    except ConfigError as error:
        line = str(error)
        assert line.startswith("config key ") and "\n" not in line
        assert len(line) < LONGEST_LINE, line
        return line
    plan_everything(config)
    return "planned"


@settings(
    max_examples=CONFIGS, deadline=20_000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
@given(CHANGES)
def test_whatever_the_schema_allows_is_planned_or_refused_in_one_line(changes):
    config = base()
    for path, value in changes:
        put(config, path, value)
    SEEN["planned" if judge(config) == "planned" else "refused"] += 1


def test_the_fuzz_sees_both():
    """After the test above: a generator that is always refused would test nothing."""
    assert SEEN["planned"] > CONFIGS / 20 and SEEN["refused"] > CONFIGS / 20, SEEN
    print(SEEN)


def test_every_key_of_the_schema_is_tried():
    named = {path[-1] for path in PLACES}
    keys = {
        key
        for part in SCHEMA["$defs"].values()
        for key, value in part.get("properties", {}).items()
        if "const" not in value
    }
    assert keys - named <= NOT_REACHED


# Of a source of text other than those of the committed suites, which is generated as a whole.
NOT_REACHED = {"path", "repo", "file", "field", "revision", "documents", "config", "split"}


@pytest.mark.slow
@pytest.mark.workflow
def test_snakemake_itself_plans_or_says_one_line(tmp_path):
    """A handful through a real dry run: one line, no traceback, no job."""
    folder = copy_checkout(tmp_path / "checkout")
    configs: list[dict] = []

    @settings(max_examples=DRY_RUNS, database=None, suppress_health_check=list(HealthCheck))
    @given(CHANGES)
    def collect(changes):
        config = base()
        for path, value in changes:
            put(config, path, value)
        configs.append(config)

    collect()
    random.Random(0).shuffle(configs)
    for config in configs[:DRY_RUNS]:
        text = yaml.safe_dump(config, allow_unicode=True, sort_keys=False)
        (folder / "config.yaml").write_text(text)
        expected = judge(config)
        run = snakemake("--dry-run", "--quiet", "host", folder=folder)
        assert "Traceback" not in run.stdout, run.stdout[-3000:]
        if expected == "planned":
            assert run.returncode == 0, run.stdout[-3000:]
        else:
            assert run.returncode != 0
            assert [line for line in run.stdout.splitlines() if line.startswith("Error: ")] == [
                f"Error: {expected}"
            ]
        assert not (folder / "results").exists()
