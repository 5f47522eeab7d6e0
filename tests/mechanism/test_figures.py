"""Figures of the mechanism, drawn from the frozen measurements."""

import pandas as pd
import pytest

from tests.test_figures import no_text_overlaps_or_leaves_the_page
from tests.workflow import ROOT
from workflow_scripts import (
    plot_activations,
    plot_curvature,
    plot_drift,
    plot_factorial,
    plot_layers,
    plot_replication,
    plot_sensitivity,
    plot_tokens,
)

FROZEN = ROOT / "resources/published/mini"
SUITE = {"label": "mini (embedded suite, not Pythia)", "spacing": 40,
         "quantizers": {"int4_g64": "INT4", "int4_g32": "INT4"}}  # fmt: skip
PHASES = {"convergence": {"step": 4080, "step_low": 3240, "step_high": 4120},
          "rapid_learning_end": {"step": 760}}  # fmt: skip
FIGURES = {
    plot_factorial: (["factorial", "factors"], {}),
    plot_layers: (["layers", "phases"], {}),
    plot_sensitivity: (["sensitivity", "audit", "phases"], {}),
    plot_curvature: (["curvature", "audit", "phases"], {}),
    plot_drift: (["drift", "displacement", "phase_flips", "phases"], {}),
    plot_activations: (["activations", "kurtosis", "phases"], {"bits": 4}),
    plot_replication: (["replication_runs", "replication"], {}),
    plot_tokens: (["replication_runs", "table1"], {}),
}


def read(name: str):
    if name == "phases":
        return PHASES
    if name == "table1":
        return pd.read_csv(ROOT / "resources/paper/table1.csv")
    folders = {"audit": "probes", "kurtosis": "kurtosis"}
    if name in folders:
        return pd.concat(map(pd.read_csv, sorted((FROZEN / folders[name]).glob("*.csv"))))
    return pd.read_csv(FROZEN / f"mechanism/{name}.csv")


@pytest.mark.parametrize("script", FIGURES, ids=lambda script: script.__name__.split(".")[-1])
def test_title_carries_the_label_and_no_texts_overlap(script):
    tables, options = FIGURES[script]
    figure = script.draw(*map(read, tables), suite=SUITE, **options)
    assert figure.get_suptitle().startswith(f"{SUITE['label']}: ")
    no_text_overlaps_or_leaves_the_page(figure)


def test_matrices_of_many_blocks_are_named_by_block():
    layers = read("layers")
    one = layers[layers["tensor"].str.contains(r"\.1\.", regex=True)]
    more = [one.replace(r"layers\.1", f"layers.{block}", regex=True) for block in range(2, 12)]
    figure = plot_layers.draw(pd.concat([layers, *more]), PHASES, suite=SUITE)
    names = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert names == [str(block) for block in range(12)]
    no_text_overlaps_or_leaves_the_page(figure)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("gpt_neox.layers.11.mlp.dense_h_to_4h.weight", "11 mlp.dense_h_to_4h"),
        ("transformer.h.0.attn.c_proj.weight", "0 attn.c_proj"),
        ("gpt_neox.embed_in.weight", "embed_in"),
        ("lm_head.weight", "lm_head"),
    ],
)
def test_names_of_matrices(name, short):
    assert plot_layers.printed(name) == short
