"""Checks of the section ``mechanism`` of a suite: one line per mistake."""

from collections.abc import Iterator, Mapping

from flatminima.errors import suggest
from flatminima.suite import nearest

SCORED = ("factorial", "layers", "sensitivity", "curvature", "activations", "drift")


def _steps(key: str, entry: Mapping, steps: list[int] | None) -> Iterator[str]:
    if ("every" in entry) == ("steps" in entry):
        yield f"config key {key} takes every or steps; one of them"
    for step in entry.get("steps", []) if steps else []:
        if step not in steps:
            around = " and ".join(str(s) for s in nearest(step, steps))
            yield f"config key {key}.steps: step {step} is not on the grid; nearest: {around}"
    if entry.get("steps", []) != sorted(entry.get("steps", [])):
        yield f"config key {key}.steps: {entry['steps']} must rise"


def _replication(key: str, entry: Mapping, suite: Mapping, quantizers: Mapping) -> Iterator[str]:
    if entry["low_bit"] not in quantizers:
        hint = suggest(entry["low_bit"], list(quantizers))
        yield f"config key {key}.low_bit: {entry['low_bit']!r} is not known; {hint}"
        return
    heads = suite["architecture"]["num_heads"]
    size = quantizers[entry["low_bit"]].get("group_size", 1)
    for width in entry["widths"]:
        if width % heads:
            yield f"config key {key}.widths: num_heads {heads} does not divide {width}"
        if size > width:
            yield f"config key {key}.widths: {width} is below the group size {size} of low_bit"
    if entry["last"] % entry["spacing"]:
        yield f"config key {key}.last: {entry['last']} is no multiple of spacing"
    held = suite["batches"]["train"]["sequences"]
    if entry["train_sequences"] > held:
        yield f"config key {key}.train_sequences: {entry['train_sequences']}; the suite has {held}"


def mechanism_errors(
    name: str, suite: Mapping, steps: list[int] | None, quantizers: Mapping
) -> Iterator[str]:
    """One line per mistake in ``suites.{name}.mechanism``; none where it is absent.

    ``steps`` is ``None`` where the revisions are known only once they are looked for.
    """
    section = suite.get("mechanism", {})
    top = f"suites.{name}.mechanism"
    held = suite["batches"]["validation"]["sequences"]
    for measure, entry in section.items():
        if measure == "batch_size":
            continue
        key = f"{top}.{measure}"
        if measure in SCORED:
            yield from _steps(key, entry, steps)
        if entry.get("sequences", 0) > held:
            yield f"config key {key}.sequences: {entry['sequences']}; the suite has {held}"
        if measure in ("sensitivity", "curvature") and entry["sequences"] % section["batch_size"]:
            yield (
                f"config key {key}.sequences: {entry['sequences']} is no multiple of "
                f"{top}.batch_size {section['batch_size']}"
            )
    # Elsewhere it is inherited from a suite that is trained here, and not made.
    if "replication" in section and suite["source"] == "pretrain":
        yield from _replication(f"{top}.replication", section["replication"], suite, quantizers)
