"""Checks of the keys that say how the revisions of a hub suite are had."""

from collections.abc import Iterator, Mapping


def revision_mistakes(name: str, suite: Mapping) -> Iterator[str]:
    """One line per key that does not go with the suite's source."""
    for key in ("keep_checkpoints", "max_on_disk"):
        if key in suite and suite["source"] != "hub":
            yield (
                f"config key suites.{name}.{key} goes with source hub, and only with it; "
                f"source is {suite['source']}"
            )
