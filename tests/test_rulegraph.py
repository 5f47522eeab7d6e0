"""The drawing of the rules in the README is the one that Snakemake gives today."""

import shutil

import networkx
import pytest

from flatminima.rulegraph import BEGIN, END, mermaid, put_in, read_mermaid
from tests.workflow import ROOT
from workflow_scripts import draw_rulegraph

PRINTED = """---
title: DAG
---
flowchart TB
\tid0[judge]
\tid1[train_mini_step1]
\tid2[train_mini_step2]
\tid3[probe]
\tstyle id0 fill:#B0D957,stroke-width:2px,color:#333333
\tid1 --> id2
\tid1 --> id3
\tid2 --> id3
\tid3 --> id0
\tid1 --> id0
"""


def test_the_readme_is_current(tmp_path):
    page = tmp_path / "README.md"
    shutil.copy(ROOT / "README.md", page)
    draw_rulegraph.main(target=draw_rulegraph.TARGET, output=str(page))
    assert page.read_text() == (ROOT / "README.md").read_text(), "make rulegraph draws it anew"


def test_the_drawing_of_the_readme_can_be_read():
    drawing = (ROOT / "README.md").read_text().split(BEGIN)[1].split(END)[0]
    rules = {name for line in drawing.splitlines() if "-->" in line for name in line.split(" --> ")}
    assert 10 < len({rule.strip() for rule in rules}) < 25
    assert "    train_fork --> summarise_fork" in drawing
    assert "style" not in drawing and "_mini" not in drawing


def test_generated_rules_are_one_and_arrows_are_not_said_twice():
    graph = read_mermaid(PRINTED, bases=("train",))
    assert set(graph.edges) == {("train", "probe"), ("probe", "judge"), ("train", "judge")}
    lines = mermaid(graph).splitlines()
    assert lines == ["flowchart TD", "    train --> probe", "    probe --> judge"]


def test_what_leads_where_stays():
    graph = read_mermaid(PRINTED)
    edges = [line.strip().split(" --> ") for line in mermaid(graph).splitlines()[1:]]
    reduced = networkx.DiGraph(edges)
    for rule in graph:
        assert networkx.descendants(reduced, rule) == networkx.descendants(graph, rule)


def test_a_page_without_marks_and_a_text_without_rules_are_refused():
    assert put_in(f"a\n{BEGIN}old{END}\nb", "new") == f"a\n{BEGIN}\n```mermaid\nnew\n```\n{END}\nb"
    with pytest.raises(ValueError, match="the page lacks"):
        put_in("nothing", "new")
    with pytest.raises(ValueError, match="no rulegraph: Error: suite"):
        read_mermaid("Error: suite x")
