"""Does what is asked of a local suite fit its model? Its own configuration says how large it is."""

import json
from collections.abc import Mapping
from pathlib import Path

from flatminima.errors import ConfigError

# The names that transformers has for the same thing in different families.
CONTEXT = ("max_position_embeddings", "n_positions")


def _smallest(config: Mapping, names: tuple[str, ...]) -> int | None:
    """The smallest of the numbers that the model's configuration has under ``names``."""
    found = [config[name] for name in names if isinstance(config.get(name), int)]
    return min(found) if found else None


def check_lengths(key: str, batches: Mapping, config_file: Path) -> None:
    """``ConfigError`` where sequences are longer than the model takes; ``key`` is the suite's."""
    most = _smallest(_read(config_file), CONTEXT)
    for split, section in batches.items():
        if most is not None and section["length"] > most:
            raise ConfigError(
                f"config key {key}.batches.{split}.length: {section['length']} is longer than "
                f"the model takes ({most}, {config_file}); valid: 2 to {most}"
            )


def _read(config_file: Path) -> Mapping:
    try:
        return json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a damaged one is named where the checkpoint is loaded
        return {}
