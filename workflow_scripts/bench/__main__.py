"""Measure rows and write ``benchmarks/results.csv`` and ``benchmarks/README.md``."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from workflow_scripts.bench.results import Result, describe_machine, write
from workflow_scripts.bench.timing import ROOT, Settings

# In the order of the table. Each is a module of this package and runs in a process of its own.
ROWS = (
    "quantize", "perplexity", "probe", "stream", "training_step", "overhead", "planning", "growth",
)  # fmt: skip


def measure_row(name: str, settings: Settings) -> list[Result]:
    """Run one row in this process."""
    settings.prepare()
    from workflow_scripts.bench import (
        growth,
        overhead,
        perplexity,
        planning,
        probe,
        quantize,
        stream,
        training_step,
    )

    modules = (
        quantize, perplexity, probe, stream, training_step, overhead, planning, growth,
    )  # fmt: skip
    return {module.ROW: module for module in modules}[name].run(settings)


def _in_own_process(name: str, arguments: list[str], threads: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "row.json")
        command = [sys.executable, "-m", "workflow_scripts.bench", *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        subprocess.run(
            [*command, "--row", name, "--json", file], cwd=ROOT, env=environment, check=True
        )
        return [Result(**line) for line in json.loads(file.read_text())]


def main(options: argparse.Namespace) -> int:
    """Measure; the exit status says whether every row could be measured."""
    settings = Settings(
        options.quick, options.threads, options.clock, options.device, options.output
    )
    if options.row:
        results = measure_row(options.row, settings)
        options.json.write_text(json.dumps([asdict(result) for result in results]))
        return 0
    arguments = [f"--threads={options.threads}", f"--clock={options.clock}"]
    arguments += [
        f"--device={options.device}",
        f"--output={options.output.resolve()}",
        *(["--quick"] if options.quick else []),
    ]
    conditions = {
        "machine": describe_machine(options.threads, options.device),
        "conditions": f"{options.clock} clock{', quick' if options.quick else ''}",
    }
    failed = []
    for name in options.rows:
        started = time.perf_counter()
        load = os.getloadavg()[0]
        try:
            results = _in_own_process(name, arguments, options.threads)
        except subprocess.CalledProcessError:
            failed.append(name)
            continue
        at = conditions | {"conditions": f"{conditions['conditions']}, load before {load:.1f}"}
        write(options.output, {name: results}, at)
        for line in results:
            print(f"{name}: {line.what}, {line.against}: {line.means} {line.ratio:.3g} "
                  f"{line.target and f'(target {line.target}: {line.verdict})'}")  # fmt: skip
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    for name in failed:
        print(f"{name} could not be measured", file=sys.stderr)
    return bool(failed)


def _row(name: str) -> str:
    if name not in ROWS:
        raise argparse.ArgumentTypeError(f"{name!r}: valid are {', '.join(ROWS)}")
    return name


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rows", nargs="*", type=_row, default=list(ROWS))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=_default_device())
    parser.add_argument("--output", type=Path)
    parser.add_argument("--row", type=_row, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick and options.output is None and not options.row:
        parser.error("--quick needs an --output folder: it is no measurement to keep")
    options.output = options.output or ROOT / "benchmarks"
    return options


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    sys.exit(main(_options()))
