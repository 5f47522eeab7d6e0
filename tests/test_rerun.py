"""A file is rebuilt when what it was made from changes, and only then.

Plans are made in a copy of a checkout in which all of the tiny suite has been built.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.workflow import TINY, base_name, planned, snakemake, tiny_checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]
QUANTIZERS = "workflow_scripts/flatminima/quantizers.py"


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
    """Jobs by the name of their script."""
    jobs: dict[str, int] = {}
    for rule, count in planned("--configfile", TINY, folder=folder).items():
        jobs[base_name(rule)] = jobs.get(base_name(rule), 0) + count
    jobs.pop("all", None)
    return jobs


def test_touching_everything_reruns_nothing(built):
    """Every file gets a time of its own, so that inputs are newer than outputs and so on."""
    files = [p for p in sorted(built.rglob("*")) if p.is_file() and ".snakemake" not in p.parts]
    assert len(files) > 200
    order = np.random.default_rng(0).permutation(len(files))
    now = time.time()
    for path, place in zip(files, order, strict=True):
        os.utime(path, (now, now - 10.0 * place))
    assert plan(built) == {}


def test_comments_anywhere_rerun_nothing(built, edit):
    python = [p.relative_to(built).as_posix() for p in (built / "workflow_scripts").rglob("*.py")]
    rules = [p.relative_to(built).as_posix() for p in (built / "rules").rglob("*.smk")]
    for name in [*python, *rules, "Snakefile", "config.yaml", TINY]:
        edit(name, lambda text: text + "\n# A comment.\n")
    edit(
        "workflow_scripts/flatminima/quantizers.py",
        lambda text: text.replace('"""', '"""Also: ', 1),
    )
    assert len(python) > 60
    assert plan(built) == {}


def setting(old: str, new: str) -> tuple[str, Callable[[str], str]]:
    """A change of one setting of the tiny suite."""

    def change(text: str) -> str:
        assert text.count(old) == 1, old
        return text.replace(old, new)

    return TINY, change


def code(file: str) -> tuple[str, Callable[[str], str]]:
    """A change of the code of a script or module that leaves what it computes as it is."""
    return f"workflow_scripts/{file}.py", lambda text: text + "\nANOTHER_NAME = 1\n"


# What is drawn or told from tables that were rebuilt.
TABLES = {"tabulate_audit": 1, "tabulate_forks": 1}
FIGURES = {
    "plot_audit": 1,
    "plot_kurtosis": 1,
    "plot_forks": 1,
    "plot_bit_widths": 1,
    "plot_scaling_law": 1,
}
LAST = {"test_hypotheses": 1, "judge_claims": 1, "draw_index": 1, "render_notebook": 4}
AFTER_PHASES = {"fit_scaling_law": 1, "warn_early": 1}
AFTER_PROBES = {"summarise_probes": 2, "gather_audit": 1, "detect_phases": 1} | AFTER_PHASES
AUDIT = {"probe_checkpoints": 2} | AFTER_PROBES
# Of a fork and of the common cool-down that leaves from its end.
SUMMARIES = {"summarise_fork": 12, "gather_forks": 2}
PROBED_FORKS = {"probe_fork": 12} | SUMMARIES
FORKS = {"train_fork": 6, "cool_fork": 6} | PROBED_FORKS


def some_forks(count: int) -> dict[str, int]:
    """Jobs of so many forks and of their cool-downs."""
    both = dict.fromkeys(("probe_fork", "summarise_fork"), 2 * count)
    return both | dict.fromkeys(("train_fork", "cool_fork"), count)


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
                "plot_scaling_law": 1, "plot_kurtosis": 1, "tabulate_forks": 1,
                "judge_claims_paper": 1},
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
    "whether forks keep their weights": (
        setting("optimizer_state: fresh", "keep_checkpoints: true\n      optimizer_state: fresh"),
        {},
    ),
    "how often a state is saved": (setting("save_every: 20", "save_every: 10"), {}),
    "a rival": (setting("decay_steps: 10", "decay_steps: 20"), {}),
    "layers whose kurtosis is measured": (
        setting("kurtosis:\n      layers: blocks", "kurtosis:\n      layers: blocks+head"),
        KURTOSIS | LAST | {"plot_kurtosis": 1, "tabulate_forks": 1, "render_notebook": 3},
    ),
    "learning rate of the training": (
        setting("lr_max: 0.01", "lr_max: 0.02"),
        TRAINING | AUDIT | FORKS | KURTOSIS | TABLES | FIGURES | LAST,
    ),
    "label": (
        setting("label: tiny", "label: little"),
        TABLES | FIGURES | {"judge_claims": 1, "draw_index": 1, "render_notebook": 4},
    ),
    "threads": (setting("threads: 1", "threads: 2"), {}),
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


@pytest.mark.parametrize("what", ["code of the quantizers", "another quantizer"])
def test_another_quantizer_plans_no_training_at_all(built, edit, what):
    """Not pretraining, not a fork, not a rival: their weights are probed again."""
    target = ("results/tiny/rivals.csv", "--configfile", TINY)
    run = snakemake(*target, "--cores", "2", folder=built)
    assert run.returncode == 0, run.stdout[-3000:]
    (name, how), _ = CHANGES[what]
    edit(name, how)
    jobs = planned(*target, folder=built)
    assert jobs["probe_fork"] == 6 + 2 and jobs["average_checkpoints"] == 3
    assert not [rule for rule in jobs if rule.startswith(("train", "pretrain"))]


def test_a_code_cell_reruns_its_notebook_only(built, edit):
    def change(text: str) -> str:
        notebook = json.loads(text)
        cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        cell["source"] = [*cell["source"], "\nanother_name = 1"]
        return json.dumps(notebook)

    edit("notebooks/kurtosis.ipynb", change)
    jobs = planned("--configfile", TINY, folder=built)
    assert jobs == {"render_notebook_kurtosis": 1, "all": 1}


def test_a_lost_figure_is_drawn_again(built):
    lost = built / "results/tiny/figures/fig1_audit.png"
    kept = lost.rename(built / "kept.png")
    try:
        assert plan(built) == {"plot_audit": 1, "render_notebook": 2}
    finally:
        kept.rename(lost)


def test_forks_that_did_not_change_are_left_alone(built, edit):
    """The rerun for real: the files of the other schedules are the very same."""
    forks = built / "results/tiny/forks"
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in forks.glob("*.csv")}
    assert len(before) == 6
    edit(*setting("period: 16", "period: 20"))
    target = ("results/tiny/forks.csv", "--configfile", TINY)
    run = snakemake(*target, "--cores", "2", folder=built)
    assert run.returncode == 0, run.stdout[-3000:]
    for path in forks.glob("*.csv"):
        text, changed_at = before[path.name]
        if path.name.startswith("sgdr"):
            assert path.read_bytes() != text
        else:
            assert (path.read_bytes(), path.stat().st_mtime_ns) == (text, changed_at)
    rates = pd.read_csv(built / "results/tiny/forks.csv").query("schedule == 'sgdr'")
    restarts = rates.loc[rates["lr_fraction_last_update"] > 0.9, "step"].unique() - 60
    assert list(restarts) == [4, 24], "a restart every twenty steps, seen by the next probe"
    assert planned(*target, folder=built) == {}
