"""Does what is asked of a local suite fit its model? Its own configuration says how large it is."""

import json
from collections.abc import Mapping
from pathlib import Path

from flatminima.errors import ConfigError

# The names that transformers has for the same thing in different families.
CONTEXT = ("max_position_embeddings", "n_positions")
INPUTS = ("hidden_size", "n_embd")


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


def check_groups(key: str, probe: Mapping, quantizers: Mapping, config_file: Path) -> None:
    """``ConfigError`` where a group is larger than the inputs of the model's narrowest layer."""
    most = _smallest(_read(config_file), INPUTS)
    for role in ("low_bit", "high_bit"):
        size = quantizers[probe[role]].get("group_size", 1)
        if most is not None and size > most:
            fit = [n for n, q in quantizers.items() if 1 < q.get("group_size", 1) <= most]
            raise ConfigError(
                f"config key {key}.probe.{role}: {probe[role]!r} has group_size {size}, larger "
                f"than the model's narrowest layer ({most} inputs, {config_file}); valid: a "
                f"quantizer with at most {most}, such as {', '.join(fit) or 'one of your own'}"
            )


def _read(config_file: Path) -> Mapping:
    try:
        return json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a damaged one is named where the checkpoint is loaded
        return {}
