"""A folder with the workflow and none of its results."""

import shutil
from pathlib import Path

from workflow_scripts.bench.timing import ROOT

PARTS = (
    "Snakefile",
    "config.yaml",
    "rules",
    "envs",
    "notebooks",
    "profiles",
    "resources",
    "workflow_scripts",
)


def copy_workflow(folder: Path) -> None:
    """Copy what a run needs into ``folder``."""
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, folder / part)
