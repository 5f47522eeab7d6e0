"""HTML and Markdown pages from the Jinja templates under resources/templates."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

_IN_A_CLONE = Path(__file__).resolve().parents[2] / "resources" / "templates"


def packaged_template(name: str) -> str:
    """A template by its file name, from the clone or from the installed package."""
    if (_IN_A_CLONE / name).is_file():
        return (_IN_A_CLONE / name).read_text(encoding="utf-8")
    return files("flatminima.templates").joinpath(name).read_text(encoding="utf-8")


def render(template: str, context: Mapping[str, object], *, html: bool = True) -> str:
    """The page that a template makes of ``context``; ``html`` escapes every value.

    A name that the context lacks is an error, so that no page has a silent hole.
    """
    environment = Environment(undefined=StrictUndefined, autoescape=html)
    return environment.from_string(template).render(context) + "\n"
