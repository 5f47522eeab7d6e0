"""State the paper's headline: few measured checkpoints beside the paper's printed numbers."""

import logging
from pathlib import Path

import pandas as pd

from flatminima.claims import headline
from flatminima.claims.evidence import Measured, Printed
from flatminima.claims.ledger import read_ledger
from flatminima.files import atomic_path, read_json, write_table
from flatminima.jobs import run
from flatminima.pages import render

logger = logging.getLogger(__name__)

TITLES = {
    "headline": "The paper's headline on {label}",
    "table1": "The ten checkpoints of the paper's Table 1 on {label}",
}


def main(inputs: dict, outputs: list[str], suite: dict) -> None:
    """Write the numbers and verdicts of a part of a suite as ``outputs``: .csv, .md and .html.

    ``inputs`` has the paper's files by the names that claims.yaml uses, the part's ``audit`` and
    ``suite_table``, the manifest of the validation text, and the ``provenance`` of each probe.
    ``suite`` is as in ``plan_parts.part_facts``.
    """
    audit = pd.read_csv(inputs["audit"])
    suite_table = pd.read_csv(inputs["suite_table"])
    paper = None
    bounds = {}
    decided = []
    undecided = {}
    if suite["is_paper_model"]:
        ledger = read_ledger(inputs["claims"], inputs["excerpts"])
        # Text, because the digits show how a number was rounded.
        table1, table2 = (
            pd.read_csv(inputs[name], dtype=str, keep_default_na=False)
            for name in ("table1", "table2")
        )
        paper = Printed(ledger.pythia, table1, table2, pd.read_csv(inputs["lambada"]))
        files = {"audit": audit, "suite_table": suite_table}
        measured = Measured(ledger.pythia, paper, suite["ledger"], files)
        bounds = headline.bounds_of_cells(ledger, paper)
        decided, undecided = headline.decided_claims(ledger, paper, measured)

    numbers = headline.numbers(audit, suite["steps"], suite["quantizers"], paper, bounds)
    context = {
        "title": TITLES[suite["part"]].format(label=suite["label"]),
        "sentences": headline.about(suite, decided),
        "suite": suite,
        "steps": [
            (step, [number for number in numbers if number.step == step]) for step in suite["steps"]
        ],
        "decided": decided,
        "undecided": undecided,
        "origin": _origin(inputs, suite_table, suite["steps"]),
    }
    for output in outputs:
        form = Path(output).suffix.removeprefix(".")
        if form == "csv":
            write_table(output, headline.table(numbers, decided))
            continue
        template = Path(inputs[f"headline_{form}"]).read_text(encoding="utf-8")
        with atomic_path(output) as partial:
            page = render(template, context, html=form == "html")
            partial.write_text(page, encoding="utf-8")
    for sentence in context["sentences"]:
        logger.info(sentence)


def _origin(inputs: dict, suite_table: pd.DataFrame, steps: list[int]) -> list[tuple[str, str]]:
    """What the numbers were made from: the text, the revisions, the machine and the code."""
    manifest = read_json(inputs["manifest"])
    text = manifest["text"]
    source = text.get("taken", text["source"])
    if text.get("commit"):
        source += f" at commit {text['commit'][:7]}"
    records = [read_json(path) for path in _as_list(inputs["provenance"])]
    revisions = suite_table[suite_table["step"].isin(steps)].set_index("step")
    commits = "stored or local files"
    if "commit" in revisions and revisions["commit"].notna().any():
        commits = ", ".join(
            f"step {step:,}: {str(commit)[:7]}" for step, commit in revisions["commit"].items()
        )
    devices = sorted({f"{record['device']} ({record['device_name']})" for record in records})
    packages = records[0]["packages"]
    return [
        (
            "Text",
            f"{manifest['sequences']} sequences of {manifest['length']} tokens, {source}, "
            f"sha256 of the tokens {manifest['sha256'][:12]}",
        ),
        ("Revisions", commits),
        ("Measured on", f"{', '.join(devices)}, {records[0]['dtype']}, TF32 off"),
        (
            "With",
            f"Python {records[0]['python']}, torch {packages['torch']}, "
            f"transformers {packages['transformers']}",
        ),
        ("Code", ", ".join(sorted({record["code"] for record in records}))),
    ]


def _as_list(paths: str | list[str]) -> list[str]:
    return [paths] if isinstance(paths, str) else paths


if __name__ == "__main__":
    run(main, snakemake)
