"""A file is rebuilt if its inputs, settings or code change, and only then.

Dry runs are made in a copy of a checkout in which the complete tiny suite was built.
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
    """A function that edits a file of the checkout for one test: ``edit(name, change)``."""
    original_texts = {}

    def edit_file(name: str, change: Callable[[str], str]) -> None:
        path = built / name
        text = path.read_text()
        original_texts.setdefault(path, text)
        assert change(text) != text
        path.write_text(change(text))

    yield edit_file
    for path, text in original_texts.items():
        path.write_text(text)


def plan(folder: Path) -> dict[str, int]:
    """Number of jobs by rule. All notebooks count together, and all jobs of the pretraining."""
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
    """A change in the code of a script or module that does not change its results."""
    return f"workflow_scripts/{file}.py", lambda text: text + "\nANOTHER_NAME = 1\n"


def test_changes_that_decide_no_number_rerun_nothing(built, edit):
    """Time stamps, comments, docstrings, infrastructure, and settings of how jobs run."""
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
        ("decay_steps: 10", "decay_steps: 20"),  # of a rival, which is not part of all
        ("threads: 1", "threads: 2"),
    ):
        edit(*setting(old, new))
    files = [
        path
        for path in sorted(built.rglob("*"))
        if path.is_file() and ".snakemake" not in path.parts
    ]
    assert len(files) > 200
    # Time stamps in a random order, 10 seconds apart.
    order = np.random.default_rng(0).permutation(len(files))
    now = time.time()
    for path, place in zip(files, order, strict=True):
        os.utime(path, (now, now - 10.0 * place))
    assert plan(built) == {}


# Jobs that follow from rebuilt tables.
TABLES = {"tabulate_audit": 1, "tabulate_forks": 1}
FIGURES = dict.fromkeys(
    ("plot_audit", "plot_kurtosis", "plot_forks", "plot_bit_widths", "plot_scaling_law"), 1
)
LAST = {"compute_statistics": 1, "judge_claims": 1, "draw_index": 1, "render_notebook": 4}
AFTER_PHASES = {"fit_scaling_law": 1, "warn_early": 1}
AFTER_PROBES = {"summarise_probes": 2, "gather_audit": 1, "detect_phases": 1} | AFTER_PHASES
AUDIT = {"probe_checkpoints": 2} | AFTER_PROBES
# Jobs of the forks and of the cool-downs that start from their ends.
SUMMARIES = {"summarise_fork": 12, "gather_forks": 2}
PROBED_FORKS = {"probe_fork": 12} | SUMMARIES
FORKS = {"train_fork": 12} | PROBED_FORKS


def some_forks(count: int) -> dict[str, int]:
    """Jobs of ``count`` forks and of their cool-downs."""
    return dict.fromkeys(("train_fork", "probe_fork", "summarise_fork"), 2 * count)


AFTER_FORKS = {"tabulate_forks": 1, "plot_forks": 1, "render_notebook": 3}
KURTOSIS = {"measure_kurtosis": 2, "gather_kurtosis": 1}
TRAINING = {"pretrain_suite": 2, "describe_checkpoints": 2, "gather_suite": 1}
# A change, and all jobs that must follow from it.
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


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reruns_the_jobs_that_depend_on_it_and_no_others(built, edit, change):
    (name, change_text), expected_jobs = CHANGES[change]
    edit(name, change_text)
    assert plan(built) == expected_jobs


def test_a_changed_code_cell_reruns_its_notebook_and_a_deleted_figure_is_drawn_again(built, edit):
    def change(text: str) -> str:
        notebook = json.loads(text)
        cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        cell["source"] = [*cell["source"], "\nanother_name = 1"]
        return json.dumps(notebook)

    edit("notebooks/kurtosis.ipynb", change)
    jobs = planned("--configfile", TINY, folder=built)
    assert jobs == {"render_notebook_kurtosis": 1, "all": 1}
    figure = built / "results/tiny/figures/fig1_audit.png"
    backup = figure.rename(built / "backup.png")
    try:
        # The changed notebook, and two notebooks that show the figure.
        assert plan(built) == {"plot_audit": 1, "render_notebook": 3}
    finally:
        backup.rename(figure)


def test_forks_of_other_schedules_are_not_trained_again(built, edit):
    """Runs the changed fork: the file of another schedule is untouched."""
    sgdr = built / "results/tiny/forks/sgdr-seed0.csv"
    oli = built / "results/tiny/forks/oli-seed0.csv"
    sgdr_before = sgdr.read_bytes()
    oli_before = (oli.stat().st_mtime_ns, oli.read_bytes())
    edit(*setting("period: 16", "period: 20"))
    targets = [str(path.relative_to(built)) for path in (sgdr, oli)]
    arguments = (*targets, "--configfile", TINY)
    run = snakemake(*arguments, "--cores", "2", folder=built)
    assert run.returncode == 0, run.stdout[-3000:]
    assert (oli.stat().st_mtime_ns, oli.read_bytes()) == oli_before
    assert sgdr.read_bytes() != sgdr_before
    rates = pd.read_csv(sgdr)
    restarts = rates.loc[rates["lr_fraction_last_update"] > 0.9, "step"].unique() - 60
    assert list(restarts) == [4, 24], "a restart every 20 steps, visible at the next probe"
    assert planned(*arguments, folder=built) == {}
