"""Names that moved to ``flatminima.suites``; this module goes once nothing imports it."""

from flatminima.suites import (  # noqa: F401
    CHECKPOINT_FILES,
    chunk_names,
    even_steps,
    nearest,
    parse_range,
    range_name,
    revision_steps,
)
