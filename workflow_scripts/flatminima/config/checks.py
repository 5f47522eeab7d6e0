"""Checks of the configuration before any job starts: one line per mistake.

``check_config`` applies the closed JSON schema and then the rules that relate keys
to each other. Every error names the key, the value and what would be valid.
"""

from collections.abc import Mapping
from itertools import chain

from flatminima.config.forks import fork_mistakes
from flatminima.config.mechanism import mechanism_errors
from flatminima.config.revisions import revision_mistakes
from flatminima.config.safety import size_mistakes, string_mistakes
from flatminima.config.schema import schema_errors
from flatminima.config.sources import grid_mistakes, source_mistakes
from flatminima.config.text import text_mistakes
from flatminima.errors import ConfigError, suggest
from flatminima.quantizer_specs import FP32
from flatminima.suite import nearest, revision_steps
from flatminima.text.corpus import package_root, package_versions

PRINTED_SUITE = "paper"  # results/paper holds the verdicts on the paper's own tables


def _check_name(key: str, name: str, known: Mapping) -> None:
    if name not in known:
        raise ConfigError(f"config key {key}: {name!r} is not known; {suggest(name, list(known))}")


def suite_steps(suite: Mapping) -> list[int]:
    """Revisions of a suite whose grid is a formula or a list, in order."""
    grid = suite["grid"]
    return sorted(grid["steps"]) if "steps" in grid else revision_steps(**grid)


def _check_on_grid(key: str, step: int, steps: list[int]) -> None:
    if step not in steps:
        around = " and ".join(str(s) for s in nearest(step, steps))
        raise ConfigError(f"config key {key}: step {step} is not on the grid; nearest: {around}")


def _check_training(name: str, suite: Mapping, steps: list[int] | None) -> None:
    training, key = suite["training"], f"suites.{name}.training"
    if training["lr_min"] > training["lr_max"]:
        raise ConfigError(
            f"config key {key}.lr_min: {training['lr_min']} is above lr_max {training['lr_max']}"
        )
    last = steps and suite["grid"].get("last", steps[-1])
    if last and training["warmup_steps"] >= last:
        raise ConfigError(
            f"config key {key}.warmup_steps: {training['warmup_steps']} is not below the "
            f"suite's last step {last}"
        )
    ends = training.get("jobs_end_at")
    if suite["source"] == "published":
        return
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
    width = suite.get("architecture", {}).get("hidden_size")
    for role in ("low_bit", "high_bit"):
        key = f"suites.{name}.probe.{role}"
        _check_name(key, suite["probe"][role], quantizers)
        size = quantizers[suite["probe"][role]].get("group_size", 1)
        if width and size > width:
            raise ConfigError(
                f"config key {key}: {suite['probe'][role]!r} has group_size {size}, larger than "
                f"the suite's smallest layer ({width} inputs); valid: 1 to {width}"
            )
    low, high = suite["probe"]["low_bit"], suite["probe"]["high_bit"]
    if low == high:
        raise ConfigError(
            f"config key suites.{name}.probe: low_bit and high_bit are both {low!r}; "
            "they must be two quantizers"
        )
    if quantizers[low]["bits"] > quantizers[high]["bits"]:
        raise ConfigError(
            f"config key suites.{name}.probe: low_bit {low!r} has {quantizers[low]['bits']} bits, "
            f"high_bit {high!r} {quantizers[high]['bits']}; low_bit must not have more"
        )


def _check_fork(name: str, suite: Mapping, steps: list[int] | None) -> None:
    fork, key = suite["fork"], f"suites.{name}.fork"
    if steps:
        _check_on_grid(f"{key}.start", fork["start"], steps)
    if fork["steps"] % fork["probe_every"]:
        raise ConfigError(
            f"config key {key}.probe_every: {fork['probe_every']} does not divide "
            f"fork.steps {fork['steps']}"
        )
    _check_phase_resolved(key, fork)
    control = fork["schedules"].get("cosine")
    if control is None:
        raise ConfigError(
            f"config key {key}.schedules lacks cosine, the control that others are held against"
        )
    if control["kind"] != "cosine":
        raise ConfigError(
            f"config key {key}.schedules.cosine.kind: {control['kind']!r} is not valid for the "
            "control that others are held against; valid: cosine"
        )


def _check_phase_resolved(key: str, fork: Mapping) -> None:
    resolved = fork["phase_resolved"]
    for name, definition in fork["schedules"].items():
        if definition["kind"] != "oli":
            continue
        span = resolved["cycles"] * (definition["bump_steps"] + definition["cool_steps"])
        if span > fork["steps"] or span % resolved["probe_every"]:
            raise ConfigError(
                f"config key {key}.phase_resolved: {resolved['cycles']} cycles of "
                f"schedules.{name} are {span} steps; that must be at most fork.steps "
                f"{fork['steps']} and a multiple of probe_every {resolved['probe_every']}"
            )


def _check_text(name: str, suite: Mapping) -> None:
    for key, mistake in text_mistakes(suite):
        raise ConfigError(f"config key suites.{name}.{key}: {mistake}")


def _check_packages(name: str, suite: Mapping) -> None:
    read = suite["source"] != "published"  # nothing is made from text there
    for package in suite["text"].get("packages", []) if read else ():
        try:
            package_root(package)
            package_versions([package])
        except ModuleNotFoundError as error:
            raise ConfigError(f"config key suites.{name}.text.packages: {error}") from error


def _check_suite(name: str, suite: Mapping, quantizers: Mapping) -> None:
    if name == PRINTED_SUITE:
        raise ConfigError(f"config key suites.{name}: this name is taken by the printed tables")
    found = (source_mistakes, revision_mistakes, grid_mistakes)
    for line in chain.from_iterable(mistakes(name, suite) for mistakes in found):
        raise ConfigError(line)
    # A grid that is found is known only when the suite is planned.
    steps = None if suite["grid"] == "discover" else suite_steps(suite)
    shape = suite.get("architecture")
    if shape and shape["hidden_size"] % shape["num_heads"]:
        raise ConfigError(
            f"config key suites.{name}.architecture.num_heads: {shape['num_heads']} does not "
            f"divide hidden_size {shape['hidden_size']}"
        )
    if "training" in suite:
        _check_training(name, suite, steps)
    _check_quantizers(name, suite, quantizers)
    if "fork" in suite:
        _check_fork(name, suite, steps)
    _check_text(name, suite)
    _check_packages(name, suite)
    for line in fork_mistakes(name, suite, steps) if "fork" in suite else ():
        raise ConfigError(line)
    for line in mechanism_errors(name, suite, steps, quantizers):
        raise ConfigError(line)


def check_config(config: Mapping, schema: Mapping) -> None:
    """Raise ``ConfigError`` with one line for the first mistake found."""
    for mistakes in (size_mistakes(config), schema_errors(config, schema)):
        for line in mistakes:
            raise ConfigError(line)
    for line in string_mistakes(config["suites"]):
        raise ConfigError(line)
    _check_name("suite", config["suite"], config["suites"])
    if FP32 in config["quantizers"]:
        raise ConfigError(f"config key quantizers.{FP32}: this name is taken by full precision")
    for name, suite in config["suites"].items():
        _check_suite(name, suite, config["quantizers"])
    models = [
        name
        for name, suite in config["suites"].items()
        if suite["is_paper_model"] and suite["source"] != "published"
    ]
    if len(models) != 1:
        raise ConfigError(
            f"config key suites: is_paper_model is true for {', '.join(models) or 'no suite'}; it "
            "must be true for exactly one, whose settings the paper's printed tables belong to"
        )


def find_suite(config: Mapping, name: str) -> dict:
    """The suite ``name`` of a checked configuration; one line if there is none."""
    _check_name("suite", name, config["suites"])
    return config["suites"][name]


def find_schedule(suite: Mapping, name: str) -> dict:
    """The fork schedule ``name`` of a suite; one line if there is none."""
    _check_name("fork.schedules", name, suite["fork"]["schedules"])
    return suite["fork"]["schedules"][name]
