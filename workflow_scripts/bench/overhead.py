"""What the workflow adds to pure computing: the 154-revision audit on models of mini's shape."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from workflow_scripts.bench.checkout import copy_workflow
from workflow_scripts.bench.models import architecture
from workflow_scripts.bench.results import Result, Target, judged
from workflow_scripts.bench.timing import ROOT, Settings, median

ROW = "overhead"
REVISIONS = 154
WORDS = "the weights of a model are rounded to few values and the loss is measured once more"


def run(settings: Settings) -> list[Result]:
    """Wall of the audit on one core, less the seconds that the probes themselves take."""
    revisions = 6 if settings.quick else REVISIONS
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder)
        _prepare(checkout, revisions)
        _snakemake(checkout, "results/many/data/validation.safetensors")
        pure, single = _pure(checkout, revisions), _one_process(checkout)
        started = time.perf_counter()
        _snakemake(checkout, "results/many/audit.csv")
        wall = time.perf_counter() - started
    each = wall / revisions
    return [
        judged(
            Target("≤", 0.3), row=ROW, what=f"audit of {revisions} revisions, one core",
            against="the probes themselves", ours=each, theirs=pure, unit="s a revision",
            ratio=each - pure, means="seconds more a revision:",
            note=f"{wall:.0f} s in all; starting Snakemake, its jobs, imports, loading and tables",
        ),
        judged(
            None, row=ROW, what="the same", against="one process a revision", ours=each - pure,
            theirs=single - pure, unit="s a revision", ratio=(single - pure) / (each - pure),
            means="times less:",
        ),
    ]  # fmt: skip


def _prepare(checkout: Path, revisions: int) -> None:
    """A checkout with the checkpoints of a run on disk; their weights do not matter here."""
    from flatminima.model import build_model, save_model

    copy_workflow(checkout)
    mini = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))["suites"]["mini"]
    for number in range(revisions):
        model = build_model(architecture("mini", 64), 512, seed=number)
        save_model(model, checkout / f"run/checkpoint-{number}")
    (checkout / "text.txt").write_text("\n\n".join([f"{WORDS} {k}" for k in range(9000)]))
    _tokenizer(checkout / "tokenizer.json")
    suite = {
        "label": "benchmark", "source": "local", "pattern": "run/checkpoint-{step}",
        "device": "cpu", "threads": 1,
        "tokenizer": {"path": "tokenizer.json"},
        "text": {"source": "files", "validation": [{"path": "text.txt"}]},
        "batches": {"validation": dict(mini["batches"]["validation"])},
        "probe": dict(mini["probe"]),
    }  # fmt: skip
    (checkout / "many.yaml").write_text(
        yaml.safe_dump({"suite": "many", "suites": {"many": suite}})
    )


def _tokenizer(path: Path) -> None:
    from flatminima.text.tokens import train_tokenizer

    train_tokenizer([f"{WORDS} {k}" for k in range(500)], 512).save(str(path))


def _snakemake(checkout: Path, target: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", target, "--quiet", "all"]
    run = subprocess.run(
        [*command, "--configfile", "config.yaml", "many.yaml"], cwd=checkout, env=environment,
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError((run.stdout + run.stderr)[-3000:])


def _probe_settings(checkout: Path) -> dict:
    config = yaml.safe_load((checkout / "config.yaml").read_text(encoding="utf-8"))
    probe = config["suites"]["mini"]["probe"]
    roles = {probe["low_bit"]: "low_bit", probe["high_bit"]: "high_bit"}
    return {
        "quantizers": {name: config["quantizers"][name] for name in roles},
        "roles": roles, "batch_size": probe["batch_size"], "device": "cpu",
    }  # fmt: skip


def _pure(checkout: Path, revisions: int) -> float:
    """Seconds of one probe, model in memory, one thread; median over a few."""
    from flatminima.model import load_model
    from flatminima.scoring import Prober

    tokens = checkout / "results/many/data/validation.safetensors"
    prober = Prober(str(tokens), _probe_settings(checkout), threads=1)
    taken = []
    for number in range(min(revisions, 21)):
        model = load_model(checkout / f"run/checkpoint-{number}")
        started = time.perf_counter()
        prober(model, number)
        taken.append(time.perf_counter() - started)
    return median(taken[1:])


_ONE = """
import json, sys
from flatminima.model import load_model
from flatminima.scoring import Prober
Prober(sys.argv[1], json.loads(sys.argv[2]), threads=1)(load_model(sys.argv[3]), 0)
"""


def _one_process(checkout: Path) -> float:
    """Seconds of a probe in a process that imports everything first; median of three."""
    arguments = [
        str(checkout / "results/many/data/validation.safetensors"),
        json.dumps(_probe_settings(checkout)),
        str(checkout / "run/checkpoint-0"),
    ]
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        command = [sys.executable, "-c", _ONE, *arguments]
        subprocess.run(command, cwd=checkout, check=True, capture_output=True)
        taken.append(time.perf_counter() - started)
    return median(taken)
