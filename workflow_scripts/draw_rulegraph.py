"""Draw the workflow's rules anew in README.md: ``make rulegraph``."""

import argparse
import subprocess
import sys
from pathlib import Path

from flatminima.rulegraph import mermaid, put_in, read_mermaid

README = Path(__file__).resolve().parents[1] / "README.md"
TARGET = "results/mini/claims.md"
GENERATED = ("pretrain_suite",)


def main(*, target: str, output: str) -> None:
    """Replace the drawing in the page ``output`` by that of the rules behind ``target``."""
    command = [sys.executable, "-m", "snakemake", "--forceall", "--rulegraph", "mermaid-js", target]
    drawn = subprocess.run(command, capture_output=True, text=True, cwd=README.parent)
    graph = read_mermaid(drawn.stdout or drawn.stderr, bases=GENERATED)
    page = Path(output)
    page.write_text(put_in(page.read_text(encoding="utf-8"), mermaid(graph)), encoding="utf-8")
    print(f"{output}: {len(graph)} rules behind {target}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--output", default=str(README))
    try:
        main(**vars(parser.parse_args()))
    except ValueError as error:
        sys.exit(f"Error: {error}")
