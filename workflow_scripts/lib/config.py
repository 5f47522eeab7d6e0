"""Checks of the configuration before any job starts: one line per mistake.

``check_config`` applies the closed JSON schema and then the rules that relate keys
to each other. Every error names the key, the value and what would be valid.
"""

import difflib
import importlib.util
from collections.abc import Iterator, Mapping

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from workflow_scripts.lib.suite import nearest, revision_steps


class ConfigError(ValueError):
    """A mistake in the configuration, said in one line."""


def _suggest(name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}valid: {', '.join(valid)}"


def _key(error: ValidationError) -> str:
    return ".".join(str(part) for part in error.absolute_path) or "(top level)"


def _unknown_keys(error: ValidationError) -> list[str]:
    known = set(error.schema.get("properties", {}))
    return sorted(str(name) for name in error.instance if name not in known)


def _schema_line(error: ValidationError) -> str:
    """One line for one schema error."""
    key, value, rule = _key(error), error.instance, error.validator
    if rule == "additionalProperties":
        unknown = _unknown_keys(error)[0]
        prefix = "" if key == "(top level)" else f"{key}."
        valid = _suggest(unknown, sorted(error.schema.get("properties", {})))
        return f"config key {prefix}{unknown} is not known; {valid}"
    if rule == "required":
        missing = [name for name in error.validator_value if name not in value]
        return f"config key {key} lacks {', '.join(missing)}"
    if rule in ("enum", "const"):
        valid = error.validator_value if rule == "enum" else [error.validator_value]
        hint = _suggest(str(value), [str(choice) for choice in valid])
        return f"config key {key}: {value!r} is not valid; {hint}"
    if rule == "not":
        return f"config key {key}: group_size goes with granularity group only"
    if rule == "pattern":
        return f"config key {key}: {value!r} does not match {error.validator_value}"
    return f"config key {key}: {error.message}"


def _deepest(error: ValidationError) -> ValidationError:
    """The most specific error below ``error``: what a branch of the schema complained about."""
    while error.context:
        error = max(error.context, key=lambda nested: len(nested.absolute_path))
    return error


def _schema_errors(config: Mapping, schema: Mapping) -> Iterator[str]:
    # A mistaken kind (enum) explains what follows from it, so it comes first.
    errors = sorted(
        Draft202012Validator(schema).iter_errors(config),
        key=lambda error: (error.validator != "enum", list(map(str, error.absolute_path))),
    )
    for error in errors:
        yield _schema_line(_deepest(error))


def _check_name(key: str, name: str, known: Mapping) -> None:
    if name not in known:
        raise ConfigError(f"config key {key}: {name!r} is not known; {_suggest(name, list(known))}")


def suite_steps(suite: Mapping) -> list[int]:
    """Revisions of a suite of the configuration, in order."""
    return revision_steps(**suite["grid"])


def _check_on_grid(key: str, step: int, steps: list[int]) -> None:
    if step not in steps:
        around = " and ".join(str(s) for s in nearest(step, steps))
        raise ConfigError(f"config key {key}: step {step} is not on the grid; nearest: {around}")


def _check_training(name: str, suite: Mapping, steps: list[int]) -> None:
    training, last = suite["training"], suite["grid"]["last"]
    key = f"suites.{name}.training"
    if training["lr_min"] > training["lr_max"]:
        raise ConfigError(
            f"config key {key}.lr_min: {training['lr_min']} is above lr_max {training['lr_max']}"
        )
    if training["warmup_steps"] >= last:
        raise ConfigError(
            f"config key {key}.warmup_steps: {training['warmup_steps']} is not below the "
            f"suite's last step {last}"
        )
    ends = training.get("jobs_end_at")
    if suite["source"] != "pretrain":
        if ends is not None:
            raise ConfigError(f"config key {key}.jobs_end_at goes with source pretrain only")
        return
    if ends is None:
        raise ConfigError(f"config key {key} lacks jobs_end_at, needed with source pretrain")
    for end in ends:
        _check_on_grid(f"{key}.jobs_end_at", end, steps)
    if ends != sorted(ends) or ends[-1] != last:
        raise ConfigError(
            f"config key {key}.jobs_end_at: {ends} must rise and end at the last step {last}"
        )


def _check_quantizers(name: str, suite: Mapping, quantizers: Mapping) -> None:
    width = suite["architecture"]["hidden_size"]
    for role in ("low_bit", "high_bit"):
        key = f"suites.{name}.probe.{role}"
        _check_name(key, suite["probe"][role], quantizers)
        size = quantizers[suite["probe"][role]].get("group_size", 1)
        if size > width:
            raise ConfigError(
                f"config key {key}: {suite['probe'][role]!r} has group_size {size}, larger than "
                f"the suite's smallest layer ({width} inputs); valid: 1 to {width}"
            )
    if suite["probe"]["low_bit"] == suite["probe"]["high_bit"]:
        raise ConfigError(f"config key suites.{name}.probe: low_bit and high_bit are the same")


def _check_fork(name: str, suite: Mapping, steps: list[int]) -> None:
    fork, key = suite["fork"], f"suites.{name}.fork"
    _check_on_grid(f"{key}.start", fork["start"], steps)
    if fork["steps"] % fork["probe_every"]:
        raise ConfigError(
            f"config key {key}.probe_every: {fork['probe_every']} does not divide "
            f"fork.steps {fork['steps']}"
        )
    if "cosine" not in fork["schedules"]:
        raise ConfigError(
            f"config key {key}.schedules lacks cosine, the control that others are held against"
        )
    states = suite["training"].get("jobs_end_at", [])
    if fork["optimizer_state"] == "restored" and fork["start"] not in states:
        raise ConfigError(
            f"config key {key}.optimizer_state: restored needs a training state at step "
            f"{fork['start']}; add it to training.jobs_end_at or use fresh"
        )


def _check_batches(name: str, suite: Mapping) -> None:
    longest = suite["architecture"]["max_length"]
    for split, batches in suite["batches"].items():
        if batches["length"] > longest:
            raise ConfigError(
                f"config key suites.{name}.batches.{split}.length: {batches['length']} is longer "
                f"than architecture.max_length {longest}"
            )


def _check_packages(name: str, suite: Mapping) -> None:
    for package in suite["text"].get("packages", []):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"config key suites.{name}.text.packages: {package!r} is not installed in this "
                "environment; install it or take it from the list"
            )


def _check_suite(name: str, suite: Mapping, quantizers: Mapping) -> None:
    try:
        steps = suite_steps(suite)
    except ValueError as error:
        raise ConfigError(f"config key suites.{name}.grid: {error}") from error
    if (suite["source"] == "hub") != ("repo" in suite):
        raise ConfigError(f"config key suites.{name}.repo goes with source hub, and only with it")
    shape = suite["architecture"]
    if shape["hidden_size"] % shape["num_heads"]:
        raise ConfigError(
            f"config key suites.{name}.architecture.num_heads: {shape['num_heads']} does not "
            f"divide hidden_size {shape['hidden_size']}"
        )
    _check_training(name, suite, steps)
    _check_quantizers(name, suite, quantizers)
    _check_fork(name, suite, steps)
    _check_batches(name, suite)
    _check_packages(name, suite)


def check_config(config: Mapping, schema: Mapping) -> None:
    """Raise ``ConfigError`` with one line for the first mistake found."""
    for line in _schema_errors(config, schema):
        raise ConfigError(line)
    _check_name("suite", config["suite"], config["suites"])
    for name, suite in config["suites"].items():
        _check_suite(name, suite, config["quantizers"])


def find_suite(config: Mapping, name: str) -> dict:
    """The suite ``name`` of a checked configuration; one line if there is none."""
    _check_name("suite", name, config["suites"])
    return config["suites"][name]


def find_schedule(suite: Mapping, name: str) -> dict:
    """The fork schedule ``name`` of a suite; one line if there is none."""
    _check_name("fork.schedules", name, suite["fork"]["schedules"])
    return suite["fork"]["schedules"][name]
