"""Draw the front page of a suite: audit, forks, kurtosis and claims to look around in.

One file with plotly's script inside, so that it opens without a network. Every drawing has
its numbers in a table below it, and its switches are ordinary buttons of a form.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from flatminima.files import atomic_path
from flatminima.jobs import run
from flatminima.style import DASHED, DOTTED, GREY, LOOKS, SCHEDULES, Look, fork_looks, role_labels

DASHES = {"-": "solid", DASHED: "dash", DOTTED: "dot"}
# What the ledger answers to a claim, by its column.
ANSWERS = {"self": "within the paper", "sources": "against sources", "measured": "measured",
           "design": "design", "analogue": "here"}  # fmt: skip
MOST_ROWS = 40  # of a table below a drawing
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; padding: 0 1rem 3rem;
  max-width: 60rem; }
fieldset { border: 0; padding: 0; margin: 0; }
label { margin-right: .6rem; white-space: nowrap; }
h1 { font-size: 1.5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0; }
blockquote { margin: .2rem 0 .2rem 1rem; color: #555; font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left; }
a { color: #0b5394; }
:focus-visible { outline: 3px solid #0b5394; outline-offset: 2px; }
@media print { fieldset, details:not([open]) { display: none; } }
"""
SCRIPT = """
document.querySelectorAll("input[data-update]").forEach(input =>
  input.addEventListener("change", () => Plotly.update(
    input.closest("section").querySelector(".plotly-graph-div"), ...JSON.parse(input.dataset.update)
  )));
"""


def main(audit: pd.DataFrame, phases: dict, kurtosis: pd.DataFrame, page: str, suite: dict,
         links: list[str], forks: pd.DataFrame | None = None,
         claims: pd.DataFrame | None = None) -> None:  # fmt: skip
    """Write ``page``; ``suite`` has label and quantizers, ``links`` are files beside the page."""
    sections = [audit_section(audit, phases, suite)]
    if forks is not None:
        sections.append(forks_section(forks, suite))
    sections.append(kurtosis_section(kurtosis))
    if claims is not None:
        sections.append(claims_section(claims))
    title = escape(suite["label"])
    with atomic_path(page) as temporary:
        temporary.write_text(
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style><script>{get_plotlyjs()}</script></head>"
            f"<body><main><h1>{title}</h1>{''.join(sections)}{files_section(links)}</main>"
            f"<script>{SCRIPT}</script></body></html>\n",
            encoding="utf-8",
        )


def audit_section(audit: pd.DataFrame, phases: dict, suite: dict) -> str:
    """The gaps of both quantizers in percent and in nats, and the perplexities."""
    names, wide = role_labels(audit, suite), audit.pivot(index="step", columns="role")
    looks = {name: LOOKS[role] for role, name in names.items()}
    pair, low = [names["low_bit"], names["high_bit"]], names["low_bit"]
    gaps = wide["gap_pct"].rename(columns=names)[pair]
    for end in ("low", "high"):
        gaps[f"{low}, 95 % {end}"] = wide[f"gap_{end}_pct"]["low_bit"]
        looks[f"{low}, 95 % {end}"] = Look(LOOKS["low_bit"].color, DOTTED, "")
    ppl = wide["ppl"].rename(columns=names)
    quantities = {
        "gap (% of FP32 perplexity)": gaps,
        "gap (nats per token)": wide["delta_nll_nats_per_token"].rename(columns=names)[pair],
        # The fall of the first steps would hide the rise of the last ones.
        "perplexity": ppl.where(ppl < 2 * phases["convergence"]["ppl"]),
    }
    said = (
        f"At {len(wide)} checkpoints: how much larger perplexity is after rounding. The model that "
        "is used has the perplexity after rounding."
    )
    return section("audit", "Audit", said, quantities, looks, phases)


def forks_section(forks: pd.DataFrame, suite: dict) -> str:
    """Gap and both perplexities of each schedule over its probes, as means over seeds."""
    name, looks = role_labels(forks, suite)["low_bit"], fork_looks(forks["schedule"].unique())
    means = forks.groupby(["role", "step", "schedule"])[["gap_pct", "ppl"]].mean().unstack()
    quantities = {
        f"{name} gap (%)": means["gap_pct"].loc["low_bit"],
        f"{name} perplexity": means["ppl"].loc["low_bit"],
        "FP32 perplexity": means["ppl"].loc["fp32"],
    }
    said = (
        f"Means over {forks['seed'].nunique()} seeds from step {forks['fork_step'].iloc[0]:,} on. "
        "The gap is relative to each fork's own FP32 model; look at all three."
    )
    quantities = {label: table.rename(columns=SCHEDULES) for label, table in quantities.items()}
    looks = {SCHEDULES.get(schedule, schedule): look for schedule, look in looks.items()}
    return section("forks", "Forks", said, quantities, looks)


def kurtosis_section(kurtosis: pd.DataFrame) -> str:
    """Excess kurtosis of the weights over training in both definitions."""
    looks = {"mean over tensors": Look("black", "-", ""), "pooled": Look("black", DASHED, "")}
    whole = kurtosis[kurtosis["statistic"] != "per_tensor"].replace("_", " ", regex=True)
    wide = whole.pivot(index="step", columns="statistic", values="excess_kurtosis")
    said = "Excess kurtosis of the weights (0: normal): do outliers grow while the gap grows?"
    return section("kurtosis", "Kurtosis", said, {"excess kurtosis": wide}, looks)


def claims_section(claims: pd.DataFrame) -> str:
    """The primary claims of the ledger with their quotations and what it answers to them."""
    primary = claims[claims["primary"].astype(str).str.lower() == "true"].fillna("")
    rows = ""
    for row in primary.astype(str).map(escape).to_dict("records"):
        answers = [f"{said}: <strong>{row[k]}</strong>" for k, said in ANSWERS.items() if row[k]]
        rows += f"<h3>{row['id']} {row['title']}</h3><blockquote>{row['quotation']}</blockquote>"
        rows += f"<p>{'; '.join(answers)}</p>"
    return (
        '<section id="claims"><h2>Claims</h2><p>The primary claims: does the text agree with '
        "itself and with public sources, was it measured on its own model, what can its design "
        'carry. All rows, with their evidence, are in <a href="claims.html">claims.html</a>.</p>'
        f"{rows}</section>"
    )


def files_section(links: Sequence[str]) -> str:
    """Links to everything else of the suite, which come folder by folder."""
    rows = ""
    for folder, files in groupby(links, lambda link: str(Path(link).parent)):
        named = [f'<a href="{escape(link)}">{escape(Path(link).name)}</a>' for link in files]
        rows += f"<li>{folder.replace('.', 'results')}: {', '.join(named)}"
    return f'<section id="files"><h2>Files</h2><ul>{rows}</ul></section>'


def section(
    name: str, heading: str, said: str, quantities: Mapping[str, pd.DataFrame],
    looks: Mapping[str, Look], phases: Mapping | None = None,
) -> str:  # fmt: skip
    """A drawing with a switch between its quantities above it and all its numbers below.

    A quantity is a table by step with a column per curve; with ``phases`` FP32 convergence and
    the onset are marked.
    """
    figure, labels = go.Figure(), list(quantities)
    for label, table in quantities.items():
        for curve, values in table.items():
            line = {
                "color": looks[curve].color,
                "dash": DASHES.get(looks[curve].linestyle, "dashdot"),
            }
            figure.add_scatter(x=table.index, y=values, name=curve, line=line, mode="lines",
                               visible=label == labels[0])  # fmt: skip
    figure.update_layout(
        template="simple_white", height=380, margin={"t": 30, "l": 60, "r": 10, "b": 10},
        legend={"orientation": "h", "y": -0.22}, hovermode="x unified",
        font={"size": 13, "family": "system-ui, sans-serif"},
    )  # fmt: skip
    figure.update_xaxes(title_text="training step", tickformat=",", nticks=6)
    figure.update_yaxes(title_text=labels[0], exponentformat="none")
    for text, event in (("best FP32", "convergence"), ("onset", "onset")) if phases else ():
        if (step := phases[event]["step"]) is not None:
            figure.add_vline(
                x=step, line={"color": GREY, "dash": "dot", "width": 1},
                annotation={"text": f"{text}: {step:,}", "font": {"color": "#555"}},
                annotation_position="top left",
            )  # fmt: skip
    buttons = ""
    for label in labels if len(labels) > 1 else ():
        visible = [other == label for other, table in quantities.items() for _ in table]
        update = escape(json.dumps([{"visible": visible}, {"yaxis.title.text": label}]))
        checked = "checked" if label == labels[0] else ""
        buttons += (
            f'<label><input type="radio" name="{name}-quantity" {checked} '
            f"data-update='{update}'> {escape(label)}</label>"
        )
    drawing = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"{name}-plot",
        config={"displayModeBar": False, "responsive": True},
    )  # fmt: skip
    numbers = pd.concat(quantities, axis=1)
    numbers.columns = [f"{curve}, {label}" for label, curve in numbers.columns]
    thinned = numbers.iloc[:: -(-len(numbers) // MOST_ROWS)].round(3).reset_index()
    return (
        f'<section id="{name}"><h2>{heading}</h2><p>{escape(said)}</p>'
        f"<fieldset>{buttons}</fieldset>"
        f'<div role="img" aria-label="{escape(f"{heading}: {said}")}">{drawing}</div>'
        "<details><summary>The numbers</summary>"
        # A table scrolls by itself where the window is narrow, also by keyboard.
        f'<div class="wide" tabindex="0" role="group" aria-label="{heading}: numbers">'
        f"{thinned.to_html(index=False, border=0)}</div></details></section>"
    )


if __name__ == "__main__":
    run(main, snakemake)
