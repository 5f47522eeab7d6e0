"""Dry runs of Snakemake, each in a process of its own that has nothing left to import.

A line of JSON, the folder and the arguments, is answered by one with the exit status and
what was printed.
"""

import json
import os
import sys
import tempfile

# What the workflow imports from elsewhere; its own modules are read anew in each dry run.
import pandas  # noqa: F401
import pydantic  # noqa: F401
import yte  # noqa: F401
from snakemake.cli import main


def dry_run(folder: str, arguments: list[str], output: int) -> None:
    """Plan in ``folder`` and print to the file descriptor ``output``; does not return."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    main(["--dry-run", *arguments])
    raise SystemExit


if __name__ == "__main__":
    for line in sys.stdin:
        with tempfile.TemporaryFile() as printed:
            process = os.fork()
            if process == 0:
                dry_run(*json.loads(line), printed.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            printed.seek(0)
            print(json.dumps([status, printed.read().decode()]), flush=True)
