"""Show how far a run is: ``python -m workflow_scripts.show_status`` or ``make status``.

Arguments are passed on to Snakemake, such as ``--config suite=mini`` or a target.
"""

import subprocess
import sys
from pathlib import Path

from rich.console import Console

from flatminima.running.status import (
    describe,
    fork_progress,
    jobs_left,
    unfinished_outputs,
)


def main(arguments: list[str]) -> int:
    """Print what is left, what is in the making and the newest gap of each fork."""
    command = [sys.executable, "-m", "snakemake", *arguments, "--dry-run", "--quiet", "host"]
    plan = subprocess.run(command, capture_output=True, text=True)
    if plan.returncode:
        print((plan.stderr or plan.stdout).strip().splitlines()[-1], file=sys.stderr)
        return plan.returncode
    console, left = Console(), jobs_left(plan.stdout + plan.stderr)
    running = unfinished_outputs(Path(".snakemake"))
    if left:
        console.print(describe(left, Path("benchmarks"), running))
    else:
        console.print("Everything that was asked for is done.")
    for path in running[:20]:
        console.print(f"in the making: {path}")
    for root in sorted(Path("results").glob("*")):
        for fork in fork_progress(root):
            console.print(f"{root.name} {fork.name}: step {fork.step:,}, gap {fork.gap_pct:.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
