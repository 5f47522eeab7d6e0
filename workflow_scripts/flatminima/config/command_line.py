"""Values of the configuration that are given on the command line, as a file would give them."""

from collections.abc import Mapping

import yaml


def as_in_a_file(value: object) -> object:
    """What a file would hold where ``--config`` gives a mapping, whose values arrive as text.

    Snakemake reads ``--config 'suites={mini: {threads: 2}}'`` without telling numbers from
    text. Text stays as it is where YAML does not take it for a number, true, false or nothing.
    """
    if isinstance(value, Mapping):
        return {key: as_in_a_file(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_in_a_file(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        read = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):  # a date that does not exist is no YAMLError
        return value
    return read if isinstance(read, bool | int | float | None) else value
