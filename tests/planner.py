"""Dry runs of Snakemake, each in a process of its own that has nothing left to import.

A line of JSON, the folder, the arguments and whether to describe the plan, is answered by one
with the exit status and what was printed.
"""

import json
import os
import sys
import tempfile
from unittest import mock

# What the workflow imports from elsewhere; its own modules are read anew in each dry run.
import pandas  # noqa: F401
import pydantic  # noqa: F401
import yte  # noqa: F401
from snakemake.cli import main
from snakemake.iocontainers import InputFiles
from snakemake.scheduling.job_scheduler import JobScheduler


def devices(value) -> list[str]:
    """Every value of a key ``device`` in the parameters of a job."""
    if not hasattr(value, "items"):
        return []
    below = [device for _, inner in value.items() for device in devices(inner)]
    return below + [inner for key, inner in value.items() if key == "device"]


def declared(rule) -> dict:
    """What a rule declares."""
    return {
        "rule": rule.name,
        "name": rule.name,
        "docstring": rule.docstring,
        "message": rule.message,
        "conda": rule.conda_env,
        "log": str(rule.log[0]) if rule.log else None,
        "benchmark": rule.benchmark and str(rule.benchmark),
        "inputs": [str(path) for path in rule.input if not callable(path)],
        "script": rule.script,
        "code": dict(rule.params.items()).get("code"),
        "is_local": rule.name in rule.workflow._localrules,
        "resources": sorted(rule.resources),
    }


def describe(scheduler) -> bool:
    """Print every rule, and what each job would ask a cluster for, instead of scheduling them.

    A dry run prints no resources of a job that has a message.
    """
    rules = [declared(rule) for rule in scheduler.workflow.rules]
    jobs = [
        {
            "rule": job.rule.name,
            "wildcards": dict(job.wildcards.items()),
            "devices": devices(job.params),
            "outputs": [str(path) for path in job.output],
            **{name: job.resources.get(name) for name in ("gpu", "mem_mb", "runtime")},
        }
        for job in scheduler.workflow.dag.needrun_jobs()
    ]
    print(json.dumps({"rules": rules, "jobs": jobs}, default=str))
    return True


def plan(folder: str, arguments: list[str], described: bool, output: int) -> None:
    """Plan in ``folder`` and print to the file descriptor ``output``; does not return."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    if described:  # inputs that are yet to be made count as 100 MB
        mock.patch.object(JobScheduler, "schedule", describe).start()
        mock.patch.object(InputFiles, "size_mb", 100.0).start()
    main(["--dry-run", *arguments])
    raise SystemExit


if __name__ == "__main__":
    for line in sys.stdin:
        with tempfile.TemporaryFile() as printed:
            process = os.fork()
            if process == 0:
                plan(*json.loads(line), printed.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            printed.seek(0)
            print(json.dumps([status, printed.read().decode()]), flush=True)
