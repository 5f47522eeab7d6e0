"""Figures and numbers in notebooks: figures with a text for those who cannot see them."""

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping
from io import BytesIO

import pandas as pd
from IPython.display import HTML
from matplotlib.figure import Figure

from flatminima.figures import plotting

PIXELS_PER_INCH = 130


def show(figure: Figure, alt: str) -> HTML:
    """``figure`` as an image of the page itself, described by ``alt``.

    nbconvert's template drops the description of an ordinary image output.
    """
    png = BytesIO()
    with plotting.style():
        figure.savefig(png, format="png", dpi=2 * PIXELS_PER_INCH)
    width = round(figure.get_figwidth() * PIXELS_PER_INCH)
    data = base64.b64encode(png.getvalue()).decode("ascii")
    return HTML(
        f'<img alt="{html.escape(alt)}" width="{width}" style="max-width: 100%" '
        f'src="data:image/png;base64,{data}">'
    )


def tabs(panels: Mapping[str, str]) -> HTML:
    """Panels (name to HTML) of which one is seen at a time, without any script.

    Everything is in the page: a viewer that ignores styles shows the panels one below the
    other, each under its name, and so does a printed page.
    """
    group = "tabs-" + hashlib.sha256(repr(panels).encode()).hexdigest()[:8]
    heads, bodies, rules = [], [], []
    for number, (name, body) in enumerate(panels.items()):
        one, checked = f"{group}-{number}", "" if number else " checked"
        heads.append(
            f'<input type="radio" name="{group}" id="{one}"{checked}>'
            f'<label for="{one}">{html.escape(name)}</label>'
        )
        bodies.append(f'<div class="{one}"><p><b>{html.escape(name)}</b></p>{body}</div>')
        rules.append(f"#{one}:not(:checked) ~ .{one} {{ display: none; }}")
    style = (
        f".{group} > label {{ padding: 0.2em 0.7em; cursor: pointer; }} "
        f".{group} > :checked + label {{ border-bottom: 2px solid; }} "
        f"@media screen {{ {' '.join(rules)} }}"
    )
    return HTML(f'<style>{style}</style><div class="{group}">{"".join(heads + bodies)}</div>')


def fold(summary: str, text: str) -> HTML:
    """``text`` behind one line that opens it; open in a viewer that cannot fold."""
    return HTML(
        f"<details><summary>{html.escape(summary)}</summary><p>{html.escape(text)}</p></details>"
    )


def printed(values: Iterable[float], pattern: str) -> list[str]:
    """Numbers in the format ``pattern``, empty where there is none."""
    return ["" if pd.isna(value) else format(value, pattern) for value in values]


def brackets(low: Iterable[float], high: Iterable[float]) -> list[str]:
    """Intervals to two decimals that no table breaks, empty where there is none."""
    ends = zip(printed(low, ".2f"), printed(high, ".2f"), strict=True)
    return [f"[{a},\u00a0{b}]" if a and b else "" for a, b in ends]
