"""How time and memory of a probe grow with the model and with the number of revisions."""

import argparse
import csv
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flatminima.files import atomic_path
from workflow_scripts.bench.models import (
    fresh_model,
    published_checkpoint,
    random_tokens,
    stored_checkpoint,
)
from workflow_scripts.bench.probe import probe, warm_up
from workflow_scripts.bench.results import Result, judged
from workflow_scripts.bench.stream import streamed
from workflow_scripts.bench.timing import MIB, Settings, child, peak, reset_peak

ROW = "growth"
WHOLE, STREAMED = "whole model", "streamed"
WAYS = {WHOLE: lambda *given: probe(*given, "cpu"), STREAMED: streamed}
SIZES = ("14m", "31m", "70m", "160m", "410m", "1.4b")
REVISIONS = (1, 10, 50, 154)
TOKENS = {"size": (1, 128), "revisions": (16, 64)}
SMALL, SMALL_VOCABULARY = "14m", 512
TABLE = "growth.csv"
COLUMNS = ("against", "shape", "parameters", "revisions", "way", "seconds", "mib")


def run(settings: Settings) -> list[Result]:
    """Measure, each point in a process of its own; write the table and both figures."""
    sizes = SIZES[:2] if settings.quick else SIZES
    counts = REVISIONS[:2] if settings.quick else REVISIONS
    lines = [line for shape in sizes for line in _by_size(shape, settings)]
    lines += _by_revisions(counts, settings)
    if settings.folder is not None:
        _write(settings.folder, lines)
    return [*_of_sizes(lines), _of_revisions(lines, "seconds"), _of_revisions(lines, "mib")]


def _by_size(shape: str, settings: Settings) -> list[dict]:
    from workflow_scripts.bench.probe import checkpoint_bytes

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = stored_checkpoint(shape, Path(folder, "checkpoint"))
        found = {way: _child(way, checkpoint, 1, "size", settings) for way in WAYS}
    size = {"against": "size", "shape": shape, "parameters": checkpoint_bytes(shape) // 4}
    return [size | {"revisions": 1, "way": way} | values for way, values in found.items()]


def _by_revisions(counts: Sequence[int], settings: Settings) -> list[dict]:
    parameters = sum(p.numel() for p in fresh_model(SMALL, SMALL_VOCABULARY).parameters())
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = published_checkpoint(SMALL, Path(folder, "checkpoint"), SMALL_VOCABULARY)
        return [
            {"against": "revisions", "shape": SMALL, "parameters": parameters,
             "revisions": count, "way": WHOLE}
            | _child(WHOLE, checkpoint, count, "revisions", settings)
            for count in counts
        ]  # fmt: skip


def _child(way: str, folder: Path, revisions: int, against: str, settings: Settings) -> dict:
    return child(
        "workflow_scripts.bench.growth", way, folder, revisions, against, settings.threads,
        settings.clock, threads=settings.threads,
    )  # fmt: skip


def main() -> None:
    """Probe a checkpoint so many times in this process and print what it took."""
    parser = argparse.ArgumentParser()
    for name, kind in (("way", str), ("folder", Path), ("revisions", int), ("against", str),
                       ("threads", int), ("clock", str)):  # fmt: skip
        parser.add_argument(name, type=kind)
    given = parser.parse_args()
    settings = Settings(threads=given.threads, clock=given.clock)
    settings.prepare()
    warm_up()
    vocabulary = {} if given.against == "size" else {"vocabulary": SMALL_VOCABULARY}
    tokens = random_tokens(*TOKENS[given.against], **vocabulary)
    before, started = reset_peak(), settings.now()
    for _ in range(given.revisions):
        WAYS[given.way](given.folder, tokens)
    taken = settings.now() - started
    print(json.dumps({"seconds": taken, "mib": (peak() - before) / MIB}))


def _write(folder: Path, lines: Sequence[dict]) -> None:
    from flatminima.figures.plotting import save
    from workflow_scripts.bench.growth_figures import draw_revisions, draw_sizes

    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / TABLE) as temporary, temporary.open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in line.items()}
            for line in lines
        )
    for name, draw in (("size", draw_sizes), ("revisions", draw_revisions)):
        figure = draw([line for line in lines if line["against"] == name])
        save(figure, [folder / f"growth_{name}.svg", folder / f"growth_{name}.png"])


def _of_sizes(lines: Sequence[dict]) -> list[Result]:
    results = []
    for way in WAYS:
        of_way = [line for line in lines if line["against"] == "size" and line["way"] == way]
        small, large = of_way[-2], of_way[-1]
        factor = large["parameters"] / small["parameters"]
        results += [
            judged(
                None, row=ROW, what=f"{large['shape']} shape, {way}, {what}",
                against=f"{small['shape']} shape", ours=large[key], theirs=small[key], unit=unit,
                ratio=large[key] / small[key], means="times as much:",
                note=f"it has {factor:.2f} times the weights",
            )
            for what, key, unit in (("time", "seconds", "s"), ("peak memory", "mib", "MiB"))
        ]  # fmt: skip
    return results


def _of_revisions(lines: Sequence[dict], key: str) -> Result:
    few, many = [line for line in lines if line["against"] == "revisions"][-2:]
    each = {"seconds": [line["seconds"] / line["revisions"] for line in (many, few)],
            "mib": [line["mib"] for line in (many, few)]}[key]  # fmt: skip
    what = {"seconds": "time of each", "mib": "peak memory"}[key]
    return judged(
        None, row=ROW, what=f"{many['revisions']} revisions in one job, {what}",
        against=f"{few['revisions']} revisions", ours=each[0], theirs=each[1],
        unit={"seconds": "s", "mib": "MiB"}[key], ratio=float(np.divide(*each)),
        means="times as much:",
    )  # fmt: skip


if __name__ == "__main__":
    main()
