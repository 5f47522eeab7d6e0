"""A mistake in the configuration is one line that names the key, the value and what is valid."""

import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_scripts.lib.config import ConfigError, check_config, find_suite

ROOT = Path(__file__).resolve().parents[1]
CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())
SCHEMA = yaml.safe_load((ROOT / "rules/schemas/config.schema.yaml").read_text())
TINY = yaml.safe_load((ROOT / "tests/config/tiny.yaml").read_text())


def changed(path: str, value) -> dict:
    config = copy.deepcopy(CONFIG)
    *parents, last = path.split(".")
    section = config
    for part in parents:
        section = section[part]
    if value is None:
        del section[last]
    else:
        section[last] = value
    return config


def test_the_committed_configurations_are_valid():
    check_config(CONFIG, SCHEMA)
    merged = copy.deepcopy(CONFIG)
    for key in ("suites", "quantizers"):
        merged[key] |= TINY[key]
    check_config(merged | {"suite": "tiny"}, SCHEMA)


MISTAKES = [
    ("suite", "minni", "suite: 'minni' is not known; did you mean mini? valid: mini, pythia-160m"),
    ("sute", "mini", "sute is not known; did you mean suite?"),
    ("suites.mini.sead", 1, "suites.mini.sead is not known"),
    ("suites.mini.probe.low_bits", 1, "suites.mini.probe.low_bits is not known; did you mean low"),
    ("suites.mini.fork.schedules.oli.ampltude", 2, "did you mean amplitude?"),
    ("suites.mini.fork.schedules.sgdr.kind", "sgd", "'sgd' is not valid; did you mean sgdr?"),
    ("suites.mini.probe.low_bit", "int4_g46", "'int4_g46' is not known; did you mean int4_g64?"),
    ("suites.mini.probe.low_bit", "int4_g128", "group_size 128, larger than"),
    ("suites.mini.fork.start", 2801, "step 2801 is not on the grid; nearest: 2800 and 2840"),
    ("suites.mini.fork.start", -1, "suites.mini.fork.start: -1 is less than the minimum of 0"),
    ("suites.mini.fork.probe_every", 41, "41 does not divide"),
    ("suites.mini.fork.schedules.cosine", None, "lacks cosine"),
    ("suites.mini.fork.phase_resolved.cycles", 81, "at most fork.steps 1200"),
    ("suites.mini.text.packages", ["numpy", "nosuchpackage"], "'nosuchpackage' is not installed"),
    ("suites.mini.training.jobs_end_at", [2800], "must rise and end at the last step 5720"),
    ("suites.mini.training.jobs_end_at", [2801, 5720], "step 2801 is not on the grid"),
    ("suites.mini.training.warmup_steps", 5720, "not below the suite's last step 5720"),
    ("suites.mini.training.lr_min", 0.1, "above lr_max 0.01"),
    ("suites.mini.training.lr_max", "fast", "'fast' is not a finite number"),
    ("suites.mini.grid.last", 5721, "must be a multiple of spacing 40"),
    ("suites.mini.repo", "some/model", "repo goes with source hub"),
    ("suites.mini.architecture.num_heads", 5, "5 does not divide hidden_size 64"),
    ("suites.mini.batches.train.length", 65, "65 is longer than architecture.max_length 64"),
    ("suites.pythia-160m.repo", None, "repo goes with source hub"),
    ("quantizers.int4_g64.bits", 1, "1 is less than the minimum of 2"),
    ("quantizers.int4_g64.granularity", "grup", "did you mean group?"),
    ("quantizers.int8_channel.group_size", 64, "goes with granularity group only"),
]


@pytest.mark.parametrize(("path", "value", "line"), MISTAKES)
def test_a_mistake_is_one_line(path, value, line):
    with pytest.raises(ConfigError) as error:
        check_config(changed(path, value), SCHEMA)
    assert line in str(error.value)
    assert path.split(".")[0] in str(error.value)
    assert "\n" not in str(error.value)


def test_restored_moments_need_a_state_at_the_fork():
    config = changed("suites.mini.fork.optimizer_state", "restored")
    check_config(config, SCHEMA)
    config["suites"]["mini"]["training"]["jobs_end_at"] = [5720]
    with pytest.raises(ConfigError, match="restored needs a training state at step 2800"):
        check_config(config, SCHEMA)


def test_an_unknown_suite_names_the_known():
    with pytest.raises(ConfigError, match="'foo' is not known; valid: mini, pythia-160m"):
        find_suite(CONFIG, "foo")


def paths(section, prefix=()):
    if isinstance(section, dict):
        for key, value in section.items():
            yield (*prefix, key)
            yield from paths(value, (*prefix, key))


PATHS = sorted(paths(CONFIG))
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-2, 6000), max_size=3),
    st.dictionaries(st.text(max_size=4), st.none(), max_size=2),
)


@settings(max_examples=400)
@given(st.sampled_from(PATHS), st.sampled_from(["delete", "replace", "rename"]), ODD)
def test_whatever_is_changed_is_accepted_or_refused_in_one_line(path, action, odd):
    config = copy.deepcopy(CONFIG)
    section = config
    for part in path[:-1]:
        section = section[part]
    value = section.pop(path[-1])
    if action == "replace":
        section[path[-1]] = odd
    elif action == "rename":
        section[f"{path[-1]}x"] = value
    try:
        check_config(config, SCHEMA)
    except ConfigError as error:
        assert "\n" not in str(error) and str(error).startswith("config key")


def closed(schema, where="top"):
    if isinstance(schema, dict):
        if "properties" in schema and "if" not in schema and "allOf" not in schema:
            opened = where.endswith((".if", ".properties", ".then"))
            assert opened or schema.get("additionalProperties") is not None, where
        for key, part in schema.items():
            closed(part, f"{where}.{key}")
    elif isinstance(schema, list):
        for part in schema:
            closed(part, where)


def test_the_schema_is_closed_and_describes_every_key():
    closed(SCHEMA)
    undescribed = [
        f"{name}.{key}"
        for name, part in SCHEMA["$defs"].items()
        for key, value in part.get("properties", {}).items()
        if "description" not in value and "$ref" not in value and "const" not in value
    ]
    assert set(undescribed) <= {
        "suite.batches", "suite.probe", "suite.kurtosis", "suite.phases", "text.source",
        "fork_schedule.kind",
    }  # fmt: skip
