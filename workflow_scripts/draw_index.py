"""Draw the front page of a suite: audit, forks, kurtosis and claims to look around in.

One file with plotly's script inside, so that it opens without a network. Every drawing has
its numbers in a table below it, and its switches are ordinary buttons of a form.
"""

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from flatminima.files import atomic_path, read_json
from flatminima.jobs import run
from flatminima.style import GREY, LOOKS, SCHEDULES, fork_looks, role_labels

DASHES = {"low_bit": "solid", "high_bit": "dash", "fp32": "dot", "sgdr": "dash", "oli": "dot"}
# What the ledger answers to a claim, by its column.
ANSWERS = {"self": "within the paper", "sources": "against sources", "measured": "measured",
           "design": "design", "analogue": "here"}  # fmt: skip
MOST_ROWS = 40  # of a table below a drawing
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; padding: 0 1rem 3rem;
  max-width: 60rem; }
fieldset { display: inline-block; border: 0; padding: 0; margin: 0 1.5rem 0 0; }
label { margin-right: .6rem; white-space: nowrap; }
h1 { font-size: 1.5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0; }
blockquote { margin: .2rem 0 .2rem 1rem; color: #555; font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top;
  text-align: left; }
a { color: #0b5394; }
:focus-visible { outline: 3px solid #0b5394; outline-offset: 2px; }
@media print { fieldset, details:not([open]) { display: none; } h2, h3 { break-after: avoid; }
  [role=img], blockquote, tr { break-inside: avoid; } }
"""
SCRIPT = """
document.querySelectorAll("input[data-update]").forEach(input =>
  input.addEventListener("change", () => {
    const [traces, layout] = JSON.parse(input.dataset.update);
    Plotly.update(input.closest("section").querySelector(".plotly-graph-div"), traces, layout);
  }));
"""
Choice = dict[str, tuple[dict, dict]]  # label of a switch: update of the traces, of the layout


def main(audit: str, phases: str, kurtosis: str, page: str, suite: dict, links: list[str],
         forks: str | None = None, claims: str | None = None) -> None:  # fmt: skip
    """Write ``page``; ``suite`` has label and quantizers, ``links`` are files beside the page."""
    sections = audit_sections(pd.read_csv(audit), read_json(phases), suite)
    if forks:
        sections.append(forks_section(pd.read_csv(forks), suite))
    sections.append(kurtosis_section(pd.read_csv(kurtosis)))
    if claims:
        sections.append(claims_section(pd.read_csv(claims)))
    sections.append(files_section(links))
    with atomic_path(page) as temporary:
        temporary.write_text(assemble(suite["label"], sections), encoding="utf-8")


def audit_sections(audit: pd.DataFrame, phases: dict, suite: dict) -> list[str]:
    """The gaps of both quantizers in percent and in nats, and the perplexities."""
    names = role_labels(audit, suite)
    parts = {role: audit[audit["role"] == role].set_index("step") for role in names}
    gaps = [
        _line(parts[role][column], names[role], LOOKS[role].color, DASHES[role],
              visible=column == "gap_pct", said=_reading(parts[role], parts["fp32"], names[role]))
        for column in ("gap_pct", "delta_nll_nats_per_token") for role in ("low_bit", "high_bit")
    ]  # fmt: skip
    units = {
        "percent": ({"visible": [True, True, False, False]}, _title("gap (% of FP32 perplexity)")),
        "nats": ({"visible": [False, False, True, True]}, _title("gap (nats per token)")),
    }
    scales = {
        "linear": ({"mode": "lines"}, {"yaxis.type": "linear", "yaxis.autorange": True}),
        # Lines would fall off the end of a logarithmic axis where a gap is not positive.
        "logarithmic": ({"mode": "markers"}, {"yaxis.type": "log", "yaxis.autorange": True}),
    }
    said = (
        f"At {audit['step'].nunique()} checkpoints: how much larger perplexity is after rounding."
    )
    fp32, low, high = (parts[role] for role in ("fp32", "low_bit", "high_bit"))
    numbers = pd.DataFrame({
        "FP32 perplexity": fp32["ppl"], f"{names['low_bit']} perplexity": low["ppl"],
        f"{names['low_bit']} gap (%)": low["gap_pct"], "95 % low": low["gap_low_pct"],
        "95 % high": low["gap_high_pct"], f"{names['high_bit']} gap (%)": high["gap_pct"],
    })  # fmt: skip
    figure = _figure(gaps, "gap (% of FP32 perplexity)", phases)
    section = _section("audit", "Audit", said, figure, numbers, {"unit": units, "scale": scales})
    curves = [
        _line(part["ppl"], names[role], LOOKS[role].color, DASHES[role])
        for role, part in parts.items()
    ]
    best = phases["convergence"]["ppl"]
    figure = _figure(curves, "perplexity", phases).update_yaxes(range=[0.9 * best, 2 * best])
    said = (
        "The model that is used has the perplexity after rounding. A double click shows all of it."
    )
    return [section, _section("perplexity", "Perplexity", said, figure)]


def _reading(rows: pd.DataFrame, full: pd.DataFrame, name: str) -> list[str]:
    """What stands under the pointer at each step."""
    return [
        f"<b>{name}, step {row.Index:,}</b><br>learning rate {row.lr:.3g}"
        f"<br>FP32 perplexity {ppl:.2f}<br>{name} perplexity {row.ppl:.2f}"
        f"<br>gap {row.gap_pct:.2f} % [{row.gap_low_pct:.2f}, {row.gap_high_pct:.2f}]"
        f"<br>gap {row.delta_nll_nats_per_token:.4f} nats per token"
        for row, ppl in zip(rows.itertuples(), full.loc[rows.index, "ppl"], strict=True)
    ]


def forks_section(forks: pd.DataFrame, suite: dict) -> str:
    """Gap and both perplexities of each schedule over its probes, as means over seeds."""
    name, looks = role_labels(forks, suite)["low_bit"], fork_looks(forks["schedule"].unique())
    shown = {f"{name} gap (%)": ("low_bit", "gap_pct"), f"{name} perplexity": ("low_bit", "ppl"),
             "FP32 perplexity": ("fp32", "ppl")}  # fmt: skip
    lines, choices, ends = [], {}, {}
    for label, (role, column) in shown.items():
        part = forks[forks["role"] == role]
        means = part.groupby(["step", "schedule"])[column].mean().unstack("schedule")
        visible = [other == label for other in shown for _ in looks]
        choices[label] = ({"visible": visible}, _title(label))
        ends[label] = means.iloc[-1]
        lines += [
            _line(means[schedule], SCHEDULES.get(schedule, schedule), look.color,
                  DASHES.get(schedule, "solid"), visible=label == next(iter(shown)))
            for schedule, look in looks.items()
        ]  # fmt: skip
    said = (
        f"Means over {forks['seed'].nunique()} seeds from step {forks['fork_step'].iloc[0]:,} on. "
        "The gap is relative to each fork's own FP32 model; look at all three."
    )
    figure = _figure(lines, next(iter(shown)))
    numbers = pd.DataFrame(ends).rename_axis("schedule, at its last probe")
    return _section("forks", "Forks", said, figure, numbers, {"quantity": choices})


def kurtosis_section(kurtosis: pd.DataFrame) -> str:
    """Excess kurtosis of the weights over training in both definitions."""
    wide = kurtosis[kurtosis["statistic"] != "per_tensor"].pivot(
        index="step", columns="statistic", values="excess_kurtosis"
    )
    wide.columns = list(wide.columns.str.replace("_", " "))
    dashes = dict(zip(wide, ("solid", "dash"), strict=True))
    lines = [_line(wide[name], name, "black", dash) for name, dash in dashes.items()]
    said = "Excess kurtosis of the weights (0: normal): do outliers grow while the gap grows?"
    return _section("kurtosis", "Kurtosis", said, _figure(lines, "excess kurtosis"), wide)


def claims_section(claims: pd.DataFrame) -> str:
    """The primary claims of the ledger with their quotations and what it answers to them."""
    primary = claims[claims["primary"].astype(str).str.lower() == "true"].fillna("")
    rows = ""
    for row in primary.astype(str).map(html.escape).to_dict("records"):
        said = "; ".join(
            f"{a}: <strong>{row[key]}</strong>" for key, a in ANSWERS.items() if row[key]
        )
        rows += (
            f"<h3>{row['id']} {row['title']}</h3><blockquote>{row['quotation']}</blockquote>"
            f"<p>{said}</p>"
        )
    return (
        '<section id="claims"><h2>Claims</h2><p>The primary claims: does the text agree with '
        "itself and with public sources, was it measured on its own model, what can its design "
        'carry. All rows, with their evidence, are in <a href="claims.html">claims.html</a>.</p>'
        f"{rows}</section>"
    )


def files_section(links: Sequence[str]) -> str:
    """Links to everything else of the suite, by folder."""
    groups: dict[str, list[str]] = {}
    for link in links:
        groups.setdefault(str(Path(link).parent).replace(".", "results"), []).append(link)
    rows = "".join(
        f"<li>{group}: "
        + ", ".join(f'<a href="{html.escape(k)}">{html.escape(Path(k).name)}</a>' for k in files)
        for group, files in groups.items()
    )
    return f'<section id="files"><h2>Files</h2><ul>{rows}</ul></section>'


def _line(values: pd.Series, name: str, color: str, dash: str, *, visible: bool = True,
          said: Iterable[str] | None = None) -> go.Scatter:  # fmt: skip
    """A curve over its index of steps; ``said`` is what stands under the pointer."""
    return go.Scatter(
        x=values.index, y=values, name=name, mode="lines", visible=visible, marker={"size": 4},
        line={"color": color, "dash": dash, "width": 1.8}, hovertext=said and list(said),
        hoverinfo="text" if said else "all",
    )  # fmt: skip


def _title(text: str) -> dict:
    return {"yaxis.title.text": text}


def _figure(lines: list[go.Scatter], label: str, phases: dict | None = None) -> go.Figure:
    """Curves over training steps; with ``phases`` FP32 convergence and the onset are marked."""
    figure = go.Figure(lines)
    figure.update_layout(
        template="simple_white", height=380, margin={"t": 30, "l": 60, "r": 10, "b": 10},
        legend={"orientation": "h", "y": -0.22},
        font={"size": 13, "family": "system-ui, sans-serif"},
    )  # fmt: skip
    figure.update_xaxes(title_text="training step", tickformat=",", nticks=6)
    figure.update_yaxes(title_text=label, exponentformat="none")
    for text, event in (("best FP32", "convergence"), ("onset", "onset")):
        if phases and (step := phases[event]["step"]) is not None:
            figure.add_vline(
                x=step, line={"color": GREY, "dash": "dot", "width": 1},
                annotation={"text": f"{text}: {step:,}", "font": {"color": "#555"}},
                annotation_position="top left",
            )  # fmt: skip
    return figure


def _section(
    name: str, heading: str, said: str, figure: go.Figure, numbers: pd.DataFrame | None = None,
    switches: dict[str, Choice] | None = None,
) -> str:  # fmt: skip
    """A drawing with its switches above it and its numbers below."""
    forms = ""
    for group, choices in (switches or {}).items():
        buttons = "".join(
            f'<label><input type="radio" name="{name}-{group}" {"" if number else "checked"} '
            f"data-update='{html.escape(json.dumps(update))}'> {html.escape(label)}</label>"
            for number, (label, update) in enumerate(choices.items())
        )
        forms += f"<fieldset><legend>{group}</legend>{buttons}</fieldset>"
    drawing = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"{name}-plot",
        config={"displayModeBar": False, "responsive": True},
    )  # fmt: skip
    table = ""
    if numbers is not None:
        thinned = numbers.iloc[:: -(-len(numbers) // MOST_ROWS)]
        table = f"<details><summary>The numbers</summary>{_table(thinned, heading)}</details>"
    return (
        f'<section id="{name}"><h2>{heading}</h2><p>{html.escape(said)}</p>{forms}'
        f'<div role="img" aria-label="{html.escape(f"{heading}: {said}")}">{drawing}</div>'
        f"{table}</section>"
    )


def _table(table: pd.DataFrame, heading: str) -> str:
    """A table that scrolls by itself where the window is narrow, also by keyboard."""
    flat = table.round(3).reset_index().to_html(index=False, border=0)
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{heading}: numbers">{flat}</div>'
    )


def assemble(label: str, sections: list[str]) -> str:
    """The whole page."""
    title, script = html.escape(label), get_plotlyjs()
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style><script>{script}</script></head><body><main>"
        f"<h1>{title}</h1>{''.join(sections)}</main><script>{SCRIPT}</script></body></html>\n"
    )


if __name__ == "__main__":
    run(main, snakemake)
