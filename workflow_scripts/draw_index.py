"""Draw the front page of a suite: interactive drawings, the main claims, and links to all files.

The page is one file with plotly's script inside, so that it opens without a network. Every
drawing has its numbers in a table below it, and its switches are ordinary buttons of a form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from flatminima.files import atomic_path
from flatminima.jobs import run
from flatminima.pages import render
from flatminima.style import DASHED, DOTTED, GREY, LOOKS, SCHEDULES, Look, fork_looks, role_labels

# Plotly's name of each line style of matplotlib.
DASHES = {"-": "solid", DASHED: "dash", DOTTED: "dot"}
# The ledger's columns of answers, and how the page names each question.
QUESTIONS = {
    "self": "within the paper",
    "sources": "against sources",
    "measured": "measured",
    "design": "design",
    "analogue": "this suite, which is not Pythia",
}
MOST_ROWS = 40  # of the table below a drawing


def main(
    audit: pd.DataFrame,
    phases: dict,
    kurtosis: pd.DataFrame,
    template: str,
    page: str,
    suite: dict,
    links: list[str],
    forks: pd.DataFrame | None = None,
    claims: pd.DataFrame | None = None,
) -> None:
    """Write ``page``; ``suite`` has label and quantizers, ``links`` are files beside the page."""
    panels = [audit_panel(audit, phases, suite)]
    if forks is not None:
        panels.append(forks_panel(forks, suite))
    panels.append(kurtosis_panel(kurtosis))
    context = {
        "title": suite["label"],
        "plotly": get_plotlyjs(),
        "panels": panels,
        "claims": [] if claims is None else main_claims(claims),
        "folders": links_by_folder(links),
    }
    html = render(Path(template).read_text(encoding="utf-8"), context)
    with atomic_path(page) as temporary:
        temporary.write_text(html, encoding="utf-8")


@dataclass(frozen=True)
class Panel:
    """One section of the page, as the template shows it.

    ``buttons`` switch between the quantities of the drawing. ``drawing`` and ``table`` are HTML.
    """

    name: str
    heading: str
    text: str
    buttons: list[dict[str, str]]
    drawing: str
    table: str


def audit_panel(audit: pd.DataFrame, phases: dict, suite: dict) -> Panel:
    """The gaps of both quantizers in percent and in nats, and the perplexities."""
    labels = role_labels(audit, suite)
    by_role = audit.pivot(index="step", columns="role")
    looks = {labels[role]: look for role, look in fork_looks(labels).items()}
    low_bit = labels["low_bit"]
    further = [label for role, label in labels.items() if role not in LOOKS]
    quantizers = [low_bit, labels["high_bit"], *further]

    gaps = by_role["gap_pct"].rename(columns=labels)[quantizers]
    for end in ("low", "high"):
        curve = f"{low_bit}, 95 % {end}"
        gaps[curve] = by_role[f"gap_{end}_pct"]["low_bit"]
        looks[curve] = Look(LOOKS["low_bit"].color, DOTTED, "")
    perplexities = by_role["ppl"].rename(columns=labels)
    quantities = {
        "gap (% of FP32 perplexity)": gaps,
        "gap (nats per token)": by_role["delta_nll_nats_per_token"].rename(columns=labels)[
            quantizers
        ],
        # The fall of the first steps would hide the rise of the last ones.
        "perplexity": perplexities.where(perplexities < 2 * phases["convergence"]["ppl"]),
    }
    text = (
        f"Increase in perplexity caused by rounding, at {len(by_role)} checkpoints. The deployed "
        "model has the perplexity after rounding."
    )
    return draw_panel("audit", "Audit", text, quantities, looks, phases)


def forks_panel(forks: pd.DataFrame, suite: dict) -> Panel:
    """Gap and both perplexities of each schedule over its probes, as means over seeds."""
    low_bit = role_labels(forks, suite)["low_bit"]
    means = forks.groupby(["role", "step", "schedule"])[["gap_pct", "ppl"]].mean().unstack()
    quantities = {
        f"{low_bit} gap (%)": means["gap_pct"].loc["low_bit"],
        f"{low_bit} perplexity": means["ppl"].loc["low_bit"],
        "FP32 perplexity": means["ppl"].loc["fp32"],
    }
    quantities = {label: table.rename(columns=SCHEDULES) for label, table in quantities.items()}
    looks = {
        SCHEDULES.get(schedule, schedule): look
        for schedule, look in fork_looks(forks["schedule"].unique()).items()
    }
    seeds = forks["seed"].nunique()
    start = forks["fork_step"].iloc[0]
    text = (
        f"Means over {seeds} seeds from step {start:,} on. The gap is relative to each fork's own "
        "FP32 model, so compare all three quantities."
    )
    return draw_panel("forks", "Forks", text, quantities, looks)


def kurtosis_panel(kurtosis: pd.DataFrame) -> Panel:
    """Excess kurtosis of the weights over training in both definitions."""
    looks = {"mean over tensors": Look("black", "-", ""), "pooled": Look("black", DASHED, "")}
    of_the_model = kurtosis[kurtosis["statistic"] != "per_tensor"].replace("_", " ", regex=True)
    by_statistic = of_the_model.pivot(index="step", columns="statistic", values="excess_kurtosis")
    text = "Excess kurtosis of the weights (0: normal). Do outliers grow while the gap grows?"
    return draw_panel("kurtosis", "Kurtosis", text, {"excess kurtosis": by_statistic}, looks)


def draw_panel(
    name: str,
    heading: str,
    text: str,
    quantities: Mapping[str, pd.DataFrame],
    looks: Mapping[str, Look],
    phases: Mapping | None = None,
) -> Panel:
    """A drawing with a switch between its quantities and a table of its numbers.

    A quantity is a table by step with one column per curve. With ``phases``, FP32 convergence and
    the onset are marked.
    """
    labels = list(quantities)
    figure = go.Figure()
    for label, table in quantities.items():
        for curve, values in table.items():
            dash = DASHES.get(looks[curve].linestyle, "dashdot")
            figure.add_scatter(
                x=table.index,
                y=values,
                name=curve,
                mode="lines",
                line={"color": looks[curve].color, "dash": dash},
                # The buttons below the heading switch to the curves of another quantity.
                visible=label == labels[0],
            )
    figure.update_layout(
        template="simple_white",
        height=380,
        margin={"t": 30, "l": 60, "r": 10, "b": 10},
        legend={"orientation": "h", "y": -0.22},
        hovermode="x unified",
        font={"size": 13, "family": "system-ui, sans-serif"},
    )
    figure.update_xaxes(title_text="training step", tickformat=",", nticks=6)
    figure.update_yaxes(title_text=labels[0], exponentformat="none")
    if phases is not None:
        mark_step(figure, "FP32 minimum", phases["convergence"]["step"])
        mark_step(figure, "onset", phases["onset"]["step"])
    drawing = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"{name}-plot",
        config={"displayModeBar": False, "responsive": True},
    )
    buttons = quantity_buttons(quantities) if len(quantities) > 1 else []
    return Panel(name, heading, text, buttons, drawing, table_of_numbers(quantities))


def mark_step(figure: go.Figure, label: str, step: int | None) -> None:
    """A dotted vertical line with its name; no line for an event that was not found."""
    if step is None:
        return
    figure.add_vline(
        x=step,
        line={"color": GREY, "dash": "dot", "width": 1},
        annotation={"text": f"{label}: {step:,}", "font": {"color": "#555"}},
        annotation_position="top left",
    )


def quantity_buttons(quantities: Mapping[str, pd.DataFrame]) -> list[dict[str, str]]:
    """For each quantity its label and, as JSON, the arguments of ``Plotly.update`` that show it."""
    quantity_of_curve = [label for label, table in quantities.items() for _ in table]
    buttons = []
    for label in quantities:
        visible = [quantity == label for quantity in quantity_of_curve]
        arguments = json.dumps([{"visible": visible}, {"yaxis.title.text": label}])
        buttons.append({"label": label, "arguments": arguments})
    return buttons


def table_of_numbers(quantities: Mapping[str, pd.DataFrame]) -> str:
    """All curves as an HTML table, thinned evenly to ``MOST_ROWS`` steps at most."""
    numbers = pd.concat(quantities, axis=1)
    numbers.columns = [f"{curve}, {label}" for label, curve in numbers.columns]
    every = -(-len(numbers) // MOST_ROWS)  # rounded up
    thinned = numbers.iloc[::every].round(3).reset_index()
    return thinned.to_html(index=False, border=0)


def main_claims(claims: pd.DataFrame) -> list[dict[str, object]]:
    """The main claims of the ledger: id, title, quotation, and answers by question."""
    is_main = claims["primary"].astype(str).str.lower() == "true"
    shown = []
    for row in claims[is_main].fillna("").astype(str).to_dict("records"):
        # The answers of the claim's card, which heed the rows that bear on it.
        texts = {key: row.get(f"{key}_card", row[key]) for key in QUESTIONS}
        answers = [(question, texts[key]) for key, question in QUESTIONS.items() if texts[key]]
        claim = {key: row[key] for key in ("id", "title", "quotation")}
        shown.append({**claim, "answers": answers})
    return shown


def links_by_folder(links: Sequence[str]) -> list[tuple[str, list[dict[str, str]]]]:
    """Name and address of each file by folder; ``links`` come folder by folder."""
    folders = []
    for folder, addresses in groupby(links, lambda link: str(Path(link).parent)):
        name = folder.replace(".", "results")
        files = [{"name": Path(address).name, "address": address} for address in addresses]
        folders.append((name, files))
    return folders


if __name__ == "__main__":
    run(main, snakemake)
