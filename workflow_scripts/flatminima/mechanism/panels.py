"""Moved to flatminima.style; here until the last importer has followed."""

from flatminima.style import *  # noqa: F403
from flatminima.style import place_label


def name_curve(axes: object, x: float, y: float, text: str, color: str) -> None:
    """A direct label near a point of a curve."""
    place_label(axes, x, y, text, color=color)
