"""Moved to flatminima.style; here until the last importer has followed."""

from flatminima.style import *  # noqa: F403
