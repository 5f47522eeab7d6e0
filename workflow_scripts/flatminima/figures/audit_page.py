"""The audit as one page to look around in: zoom, linear or log, percent or nats.

The page holds everything it needs and opens without a network.
"""

import html
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from flatminima.figures.plotting import GREY, LOOKS
from flatminima.files import atomic_path
from flatminima.labels import role_labels

QUANTIZED = ("low_bit", "high_bit")
PERCENT, NATS = "gap (% of FP32 perplexity)", "gap (nats per token)"
# The title is text of the page, so that it breaks where the window is narrow.
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body style="margin: 0"><h1 style="font: 17px 'Open Sans', verdana, arial, sans-serif;
margin: 1em 1em 0">{title}</h1>{drawing}</body></html>
"""
_DASHES = {"low_bit": "solid", "high_bit": "dash"}


def draw(audit: pd.DataFrame, phases: dict, *, suite: dict) -> go.Figure:
    """Gaps above, perplexities below, over training steps.

    ``audit`` and ``phases`` are audit.csv and phases.json of ``suite`` (key ``label``).
    Under the pointer: step, tokens, learning rate, both perplexities and the gap.
    """
    names = role_labels(audit)
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.6, 0.4]
    )
    full = audit[audit["role"] == "fp32"].set_index("step")
    for role in QUANTIZED:
        rows = audit[audit["role"] == role].set_index("step")
        for trace in _gap_traces(rows, full, role, names[role]):
            figure.add_trace(trace, row=1, col=1)
    for role in ("fp32", *QUANTIZED):
        rows = audit[audit["role"] == role].set_index("step")
        figure.add_trace(_perplexity_trace(rows, role, names.get(role, "FP32")), row=2, col=1)
    _mark_events(figure, phases)
    figure.update_xaxes(tickformat=",", range=[0, 1.01 * full.index.max()])
    figure.update_xaxes(title_text="training step", row=2, col=1)
    figure.update_yaxes(title_text=PERCENT, exponentformat="none", row=1, col=1)
    ticks = _round_numbers(audit["ppl"].min(), audit["ppl"].max())
    figure.update_yaxes(title_text="perplexity", type="log", tickvals=ticks, row=2, col=1)
    figure.update_layout(
        meta=f"{suite['label']}: what rounding costs at {full.index.size} checkpoints",
        template="simple_white",
        hovermode="closest",
        height=720,
        margin={"t": 110, "l": 70, "r": 20},
        legend={"orientation": "h", "y": -0.12, "yanchor": "top"},
        updatemenus=_menus(len(figure.data)),
    )
    return figure


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade from ``low`` to ``high``: a log axis prints other digits alone."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    return [n * 10.0**decade for decade in decades for n in (1, 2, 5)]


def _line(role: str) -> dict:
    return {"color": LOOKS[role].color, "dash": _DASHES.get(role, "solid"), "width": 1.5}


def _hover(rows: pd.DataFrame, full: pd.DataFrame) -> np.ndarray:
    """What stands under the pointer, ``[steps, 8]``."""
    return np.column_stack(
        [
            rows["tokens_seen"],
            rows["lr"],
            full.loc[rows.index, "ppl"],
            rows["ppl"],
            rows["gap_pct"],
            rows["gap_low_pct"],
            rows["gap_high_pct"],
            rows["delta_nll_nats_per_token"],
        ]
    )


def _gap_traces(rows: pd.DataFrame, full: pd.DataFrame, role: str, name: str) -> list[go.Scatter]:
    """The gap in percent, and in nats, of which one is shown at a time."""
    template = (
        f"<b>{name}, step %{{x:,}}</b><br>tokens seen %{{customdata[0]:,}}"
        "<br>learning rate %{customdata[1]:.3g}<br>FP32 perplexity %{customdata[2]:.2f}"
        f"<br>{name} perplexity %{{customdata[3]:.2f}}"
        "<br>gap %{customdata[4]:.2f} % [%{customdata[5]:.2f}, %{customdata[6]:.2f}]"
        "<br>gap %{customdata[7]:.4f} nats per token<extra></extra>"
    )
    common = {
        "x": rows.index,
        "name": f"{name} gap",
        "mode": "lines+markers",
        "marker": {"size": 4, "color": LOOKS[role].color},
        "line": _line(role),
        "customdata": _hover(rows, full),
        "hovertemplate": template,
    }
    return [
        go.Scatter(y=rows["gap_pct"], **common),
        go.Scatter(y=rows["delta_nll_nats_per_token"], visible=False, **common),
    ]


def _perplexity_trace(rows: pd.DataFrame, role: str, name: str) -> go.Scatter:
    return go.Scatter(
        x=rows.index,
        y=rows["ppl"],
        name=f"{name} perplexity",
        mode="lines",
        line=_line(role),
        customdata=np.column_stack([rows["lr"]]),
        hovertemplate=f"{name}, step %{{x:,}}: perplexity %{{y:.2f}}"
        "<br>learning rate %{customdata[0]:.3g}<extra></extra>",
    )


def _mark_events(figure: go.Figure, phases: dict) -> None:
    """Where full precision is best and, if it was found, where the collapse sets in."""
    events = {"lowest FP32 perplexity": phases["convergence"]["step"]}
    if phases["onset"]["step"] is not None:
        events["onset"] = phases["onset"]["step"]
    for text, step in events.items():
        figure.add_vline(x=step, line={"color": GREY, "dash": "dot", "width": 1}, row="all", col=1)
        figure.add_annotation(
            x=step, y=1.0, yref="y domain", text=f"{text}: step {step:,}",
            showarrow=False, xanchor="right", yanchor="bottom", font={"color": GREY, "size": 11},
        )  # fmt: skip


def _menus(traces: int) -> list[dict]:
    """Two rows of buttons: the unit of the gap, and its scale.

    A logarithmic axis has no room for gaps at or below zero: points alone stand there,
    since lines would fall off its end.
    """
    gaps = 2 * len(QUANTIZED)
    scaled = list(range(gaps))

    def unit(shown: int) -> list[bool]:
        return [i % 2 == shown for i in range(gaps)] + [True] * (traces - gaps)

    percent = [{"visible": unit(0)}, {"yaxis.title.text": PERCENT}]
    nats = [{"visible": unit(1)}, {"yaxis.title.text": NATS}]
    linear = [{"mode": "lines+markers"}, {"yaxis.type": "linear", "yaxis.autorange": True}, scaled]
    logarithmic = [{"mode": "markers"}, {"yaxis.type": "log", "yaxis.autorange": True}, scaled]
    place = {
        "type": "buttons",
        "direction": "right",
        "x": 0.0,
        "xanchor": "left",
        "y": 1.0,
        "yanchor": "bottom",
    }
    return [
        place
        | {
            "pad": {"b": 22},
            "buttons": [
                {"label": "percent", "method": "update", "args": percent},
                {"label": "nats", "method": "update", "args": nats},
            ],
        },
        place
        | {
            "pad": {"b": 22, "l": 130},  # pixels, so that no window pushes them together
            "buttons": [
                {"label": "linear", "method": "update", "args": linear},
                {"label": "log", "method": "update", "args": logarithmic},
            ],
        },
    ]


def save(figure: go.Figure, path: str | Path) -> None:
    """Write the page, whole or not, with plotly's own script inside.

    The element's name is fixed: plotly would draw a new one each time.
    """
    title = html.escape(str(figure.layout.meta))
    drawing = figure.to_html(
        include_plotlyjs=True, full_html=False, div_id="audit",
        config={"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]},
    )  # fmt: skip
    with atomic_path(Path(path)) as temporary:
        temporary.write_text(_PAGE.format(title=title, drawing=drawing), encoding="utf-8")
