"""A file is rebuilt when what it was made from changes, and only then.

Plans are made in a copy of a checkout in which all of the tiny suite has been built.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.workflow import TINY, planned, snakemake, tiny_checkout

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A copy with the time stamps of the original."""
    folder = tmp_path_factory.mktemp("rerun") / "tiny"
    return Path(shutil.copytree(tiny_checkout(tmp_path_factory), folder))


@pytest.fixture
def edit(built):
    """Edit a file of the checkout for one test: ``edit(name, change of its text)``."""
    saved = {}

    def change(name: str, how: Callable[[str], str]) -> None:
        path = built / name
        text = path.read_text()
        saved.setdefault(path, text)
        assert how(text) != text
        path.write_text(how(text))

    yield change
    for path, text in saved.items():
        path.write_text(text)


def plan(folder: Path) -> dict[str, int]:
    """Jobs by rule; ``render_notebook`` is all of its kind, and so is ``pretrain_suite``."""
    jobs: dict[str, int] = {}
    for rule, count in planned("--configfile", TINY, folder=folder).items():
        kind = re.sub("^(render_notebook|pretrain_suite)_.*", r"\1", rule)
        jobs[kind] = jobs.get(kind, 0) + count
    jobs.pop("all", None)
    return jobs


def setting(old: str, new: str) -> tuple[str, Callable[[str], str]]:
    """A change of one setting of the tiny suite."""

    def change(text: str) -> str:
        assert text.count(old) == 1, old
        return text.replace(old, new)

    return TINY, change


def code(file: str) -> tuple[str, Callable[[str], str]]:
    """A change of the code of a script or module that leaves what it computes as it is."""
    return f"workflow_scripts/{file}.py", lambda text: text + "\nANOTHER_NAME = 1\n"


def test_what_decides_nothing_reruns_nothing(built, edit):
    """Times of files, comments, docstrings, infrastructure, and settings of how to run."""
    code_files = [*built.glob("workflow_scripts/**/*.py"), *built.glob("rules/*.smk")]
    assert len(code_files) > 60
    for path in [*code_files, *(built / name for name in ("Snakefile", "config.yaml", TINY))]:
        edit(path.relative_to(built).as_posix(), lambda text: text + "\n# A comment.\n")
    quantizers = "workflow_scripts/flatminima/quantizers.py"
    edit(quantizers, lambda text: text.replace('"""', '"""Or: ', 1))
    for module in ("jobs", "files"):
        edit(*code(f"flatminima/{module}"))
    for old, new in (
        ("optimizer_state: fresh", "keep_checkpoints: true\n      optimizer_state: fresh"),
        ("save_every: 20", "save_every: 10"),
        ("decay_steps: 10", "decay_steps: 20"),  # of a rival, which is no part of all
        ("threads: 1", "threads: 2"),
    ):
        edit(*setting(old, new))
    files = [p for p in sorted(built.rglob("*")) if p.is_file() and ".snakemake" not in p.parts]
    assert len(files) > 200
    order, now = np.random.default_rng(0).permutation(len(files)), time.time()
    for path, place in zip(files, order, strict=True):
        os.utime(path, (now, now - 10.0 * place))
    assert plan(built) == {}


# What is drawn or told from tables that were rebuilt.
TABLES = {"tabulate_audit": 1, "tabulate_forks": 1}
FIGURES = dict.fromkeys(
    ("plot_audit", "plot_kurtosis", "plot_forks", "plot_bit_widths", "plot_scaling_law"), 1
)
LAST = {"compute_statistics": 1, "judge_claims": 1, "draw_index": 1, "render_notebook": 4}
AFTER_PHASES = {"fit_scaling_law": 1, "warn_early": 1}
AFTER_PROBES = {"summarise_probes": 2, "gather_audit": 1, "detect_phases": 1} | AFTER_PHASES
AUDIT = {"probe_checkpoints": 2} | AFTER_PROBES
# Of a fork and of the common cool-down that leaves from its end.
SUMMARIES = {"summarise_fork": 12, "gather_forks": 2}
PROBED_FORKS = {"probe_fork": 12} | SUMMARIES
FORKS = {"train_fork": 12} | PROBED_FORKS


def some_forks(count: int) -> dict[str, int]:
    """Jobs of so many forks and of their cool-downs."""
    return dict.fromkeys(("train_fork", "probe_fork", "summarise_fork"), 2 * count)


AFTER_FORKS = {"tabulate_forks": 1, "plot_forks": 1, "render_notebook": 3}
KURTOSIS = {"measure_kurtosis": 2, "gather_kurtosis": 1}
TRAINING = {"pretrain_suite": 2, "describe_checkpoints": 2, "gather_suite": 1}
CHANGES = {
    "code of the quantizers": (
        code("flatminima/quantizers"), AUDIT | PROBED_FORKS | TABLES | FIGURES | LAST,
    ),
    "another quantizer": (
        setting("bits: 4\n    granularity", "bits: 3\n    granularity"),
        AUDIT | PROBED_FORKS | TABLES | FIGURES | LAST,
    ),
    "code of the fork": (code("train_fork"), FORKS | LAST | AFTER_FORKS),
    "code of the phases": (
        code("flatminima/phases"),
        LAST | AFTER_PHASES | {"detect_phases": 1, "tabulate_audit": 1, "plot_audit": 1,
                "plot_scaling_law": 1, "plot_kurtosis": 1, "plot_bit_widths": 1,
                "tabulate_forks": 1, "judge_claims_paper": 1},
    ),
    "code of a figure": (code("plot_forks"), {"plot_forks": 1, "render_notebook": 2}),
    "period of one schedule": (
        setting("period: 16", "period: 20"),
        FORKS | LAST | AFTER_FORKS | some_forks(2),
    ),
    "one more seed": (
        setting("seeds: [0, 1]\n      schedules", "seeds: [0, 1, 2]\n      schedules"),
        FORKS | LAST | AFTER_FORKS | some_forks(3),
    ),
    "intervals of the probe": (
        setting("steps_per_job: 8\n      resamples: 50", "steps_per_job: 8\n      resamples: 60"),
        AFTER_PROBES | SUMMARIES | TABLES | FIGURES | LAST,
    ),
    "code of the intervals": (
        code("flatminima/intervals"),
        AFTER_PROBES | SUMMARIES | TABLES | FIGURES | LAST | {"judge_claims_paper": 1},
    ),
    "layers whose kurtosis is measured": (
        setting("kurtosis:\n      layers: blocks", "kurtosis:\n      layers: blocks+head"),
        KURTOSIS | LAST | {"plot_kurtosis": 1, "plot_scaling_law": 1, "tabulate_forks": 1,
                           "render_notebook": 3},
    ),
    "learning rate of the training": (
        setting("lr_max: 0.01", "lr_max: 0.02"),
        TRAINING | AUDIT | FORKS | KURTOSIS | TABLES | FIGURES | LAST,
    ),
    "label": (
        setting("label: tiny", "label: little"),
        TABLES | FIGURES | {"judge_claims": 1, "draw_index": 1, "render_notebook": 4},
    ),
    "a claim": (
        ("resources/paper/claims.yaml", lambda text: text.replace("Not monotonic", "Uneven", 1)),
        {"judge_claims": 1, "judge_claims_paper": 1, "draw_index": 1},
    ),
    "text of a notebook": (
        ("notebooks/forks.ipynb", lambda text: text.replace("fork", "branch", 1)),
        {"render_notebook": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_reruns_what_follows_from_it_and_nothing_else(built, edit, what):
    (name, how), expected = CHANGES[what]
    edit(name, how)
    assert plan(built) == expected


def test_a_code_cell_reruns_its_notebook_and_a_lost_figure_is_drawn_again(built, edit):
    def change(text: str) -> str:
        notebook = json.loads(text)
        cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        cell["source"] = [*cell["source"], "\nanother_name = 1"]
        return json.dumps(notebook)

    edit("notebooks/kurtosis.ipynb", change)
    jobs = planned("--configfile", TINY, folder=built)
    assert jobs == {"render_notebook_kurtosis": 1, "all": 1}
    lost = built / "results/tiny/figures/fig1_audit.png"
    kept = lost.rename(built / "kept.png")
    try:
        assert plan(built) == {"plot_audit": 1, "render_notebook": 3}  # two that show it
    finally:
        kept.rename(lost)


def test_forks_that_did_not_change_are_left_alone(built, edit):
    """The rerun for real: the file of another schedule is the very same."""
    sgdr, oli = (built / f"results/tiny/forks/{name}-seed0.csv" for name in ("sgdr", "oli"))
    changed, kept = sgdr.read_bytes(), (oli.stat().st_mtime_ns, oli.read_bytes())
    edit(*setting("period: 16", "period: 20"))
    target = (*(str(path.relative_to(built)) for path in (sgdr, oli)), "--configfile", TINY)
    run = snakemake(*target, "--cores", "2", folder=built)
    assert run.returncode == 0, run.stdout[-3000:]
    assert (oli.stat().st_mtime_ns, oli.read_bytes()) == kept and sgdr.read_bytes() != changed
    rates = pd.read_csv(sgdr)
    restarts = rates.loc[rates["lr_fraction_last_update"] > 0.9, "step"].unique() - 60
    assert list(restarts) == [4, 24], "a restart every twenty steps, seen by the next probe"
    assert planned(*target, folder=built) == {}
