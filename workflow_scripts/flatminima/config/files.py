"""The configuration for commands that run outside Snakemake, read and checked as it does."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from flatminima.config.checks import check_config, find_suite
from flatminima.config.suites import read_resources, resolve_suites
from flatminima.errors import ConfigError
from flatminima.planning import SuitePlan

ROOT = Path(__file__).resolve().parents[3]


def _overlay(base: object, change: object) -> object:
    """``base`` with what ``change`` says, mappings merged, as Snakemake merges its files."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    return {**base, **{key: _overlay(base.get(key), value) for key, value in change.items()}}


def read_config_files(files: Sequence[str | Path]) -> dict:
    """``config.yaml`` and ``files`` over it, with whole suites. Raises ``ConfigError``."""
    config: dict = {}
    for path in (ROOT / "config.yaml", *map(Path, files)):
        try:
            config = _overlay(config, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        except FileNotFoundError as error:
            raise ConfigError(f"{path}: no such file") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    config["suites"] = resolve_suites(config.get("suites"), read_resources(ROOT / "resources"))
    schema = (ROOT / "rules/schemas/config.schema.yaml").read_text(encoding="utf-8")
    check_config(config, yaml.safe_load(schema))
    return config


def read_plan(suite: str | None, files: Sequence[str | Path]) -> SuitePlan:
    """The plan of a suite, or of the one that the configuration names."""
    config = read_config_files(files)
    name = suite or config["suite"]
    section = find_suite(config, name)
    return SuitePlan(name, section, config["quantizers"], str(ROOT / "resources/revisions"))
