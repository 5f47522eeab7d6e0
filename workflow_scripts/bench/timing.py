"""Timing side by side: every round runs each action once, ratios are taken within a round."""

import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20


@dataclass(frozen=True)
class Settings:
    """How a row is measured. ``quick`` is for tests: small sizes, two rounds.

    ``clock`` is ``wall``, or ``cpu`` for one thread on a busy machine. A row that has more
    to show than lines of the table writes it to ``folder``.
    """

    quick: bool = False
    threads: int = 1
    clock: str = "wall"
    device: str = "cpu"
    folder: Path | None = None

    def rounds(self, whole: int) -> int:
        """How many rounds to run where ``whole`` are wanted."""
        return 2 if self.quick else whole

    def now(self) -> float:
        """Seconds on the clock, once what was asked of a GPU is done."""
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.process_time() if self.clock == "cpu" else time.perf_counter()

    def prepare(self) -> None:
        """Threads and numeric mode of a row."""
        import torch

        from flatminima.model import prepare_backend

        torch.set_num_threads(self.threads)
        prepare_backend()
        torch.manual_seed(0)


def side_by_side(
    actions: Mapping[str, Callable[[], object]], rounds: int, settings: Settings, inner: int = 1
) -> dict[str, list[float]]:
    """Seconds of each action in each round; each ran once before, which does not count.

    The order turns with every round, so that none always follows the same other one.
    """
    for action in actions.values():
        action()
    names, seconds = list(actions), {name: [] for name in actions}
    for number in range(rounds):
        turned = names[number % len(names) :] + names[: number % len(names)]
        for name in turned:
            gc.collect()
            started = settings.now()
            for _ in range(inner):
                actions[name]()
            seconds[name].append((settings.now() - started) / inner)
    return seconds


def median(values: Sequence[float]) -> float:
    """Median of the rounds."""
    return float(np.median(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median over the rounds of ``above / below``, which were measured next to each other."""
    return float(np.median(np.divide(above, below)))


def child(module: str, *arguments: object, threads: int) -> dict:
    """Run ``python -m module arguments`` and read the JSON on its last line.

    Raises ``RuntimeError`` with the last line that it said where it fails.
    """
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )
    if run.returncode:
        raise RuntimeError((run.stderr.strip() or "it said nothing").splitlines()[-1])
    return json.loads(run.stdout.strip().splitlines()[-1])


def reset_peak() -> int:
    """Start to look for the peak of this process' memory; returns what it has now, in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return _from_status("VmRSS")


def peak() -> int:
    """The most memory this process had, in bytes, since ``reset_peak`` where Linux says it."""
    try:
        return _from_status("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _from_status(key: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{key}:")[1].split()[0]) * 1024
