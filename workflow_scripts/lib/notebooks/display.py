"""Figures and numbers in notebooks: figures with a text for those who cannot see them."""

import base64
import html
from collections.abc import Iterable
from io import BytesIO

import pandas as pd
from IPython.display import HTML
from matplotlib.figure import Figure

from workflow_scripts.lib.figures import plotting

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


def printed(values: Iterable[float], pattern: str) -> list[str]:
    """Numbers in the format ``pattern``, empty where there is none."""
    return ["" if pd.isna(value) else format(value, pattern) for value in values]


def brackets(low: Iterable[float], high: Iterable[float]) -> list[str]:
    """Intervals to two decimals that no table breaks, empty where there is none."""
    ends = zip(printed(low, ".2f"), printed(high, ".2f"), strict=True)
    return [f"[{a},\u00a0{b}]" if a and b else "" for a, b in ends]
