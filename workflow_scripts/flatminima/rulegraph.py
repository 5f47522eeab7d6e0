"""The drawing of the rules in README.md: what Snakemake prints, in a form that can be read.

Jobs that one rule's name stands for are one box, colours are left to the page, and an
arrow that a longer way says already is left out.
"""

import re
from collections.abc import Sequence

import networkx

BEGIN, END = "<!-- rulegraph -->", "<!-- /rulegraph -->"


def read_mermaid(text: str, *, bases: Sequence[str] = ()) -> networkx.DiGraph:
    """Graph of what ``snakemake --rulegraph mermaid-js`` prints, from a rule to its readers.

    Generated rules whose names begin with one of ``bases`` are one. Raises ``ValueError``
    where the text has no rule.
    """
    names = dict(re.findall(r"^\s*(id\d+)\[(.+?)\]$", text, flags=re.MULTILINE))
    if not names:
        raise ValueError(f"no rulegraph: {text.strip()[-300:]}")
    short = {
        key: next((base for base in bases if name.startswith(f"{base}_")), name)
        for key, name in names.items()
    }
    graph = networkx.DiGraph()
    graph.add_nodes_from(short.values())
    edges = re.findall(r"^\s*(id\d+) --> (id\d+)$", text, flags=re.MULTILINE)
    graph.add_edges_from((short[a], short[b]) for a, b in edges if short[a] != short[b])
    return graph


def mermaid(graph: networkx.DiGraph) -> str:
    """A Mermaid flowchart without redundant arrows; the same graph gives the same text."""
    reduced = networkx.transitive_reduction(graph)
    order = list(networkx.lexicographical_topological_sort(reduced))
    edges = sorted(reduced.edges, key=lambda edge: (order.index(edge[0]), order.index(edge[1])))
    return "\n".join(["flowchart TD", *(f"    {a} --> {b}" for a, b in edges)])


def put_in(page: str, drawing: str) -> str:
    """``page`` with ``drawing`` between its two marks. Raises ``ValueError`` without them."""
    before, found, rest = page.partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not (found and ends):
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n```mermaid\n{drawing}\n```\n{END}{after}"
