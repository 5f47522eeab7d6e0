"""Runs dry runs of Snakemake in forked processes, which need not import everything again.

Each line on standard input is JSON: a folder, arguments, and whether to describe the plan. The
answer is one line of JSON: the exit status and the output.
"""

import json
import os
import sys
import tempfile
from unittest import mock

# Libraries that the workflow imports. Its own modules are imported again in each dry run.
import pandas  # noqa: F401
import pydantic  # noqa: F401
import yte  # noqa: F401
from snakemake.cli import main
from snakemake.iocontainers import InputFiles
from snakemake.scheduling.job_scheduler import JobScheduler


def devices(params) -> list[str]:
    """Every setting ``device`` in the params of a job, at any depth."""
    if not hasattr(params, "items"):
        return []
    all_devices = []
    for key, setting in params.items():
        all_devices += devices(setting)
        if key == "device":
            all_devices.append(setting)
    return all_devices


def declared(rule) -> dict:
    """The declarations of a rule."""
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
    """Print all rules and the requests of each job instead of scheduling the jobs.

    Snakemake's own dry run does not print the resources of jobs that have a message.
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
    """Plan in ``folder`` and print to the file descriptor ``output``. Never returns."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    if described:  # inputs that do not exist count as 100 MB
        mock.patch.object(JobScheduler, "schedule", describe).start()
        mock.patch.object(InputFiles, "size_mb", 100.0).start()
    main(["--dry-run", *arguments])
    raise SystemExit


if __name__ == "__main__":
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output:
            process = os.fork()
            if process == 0:
                plan(*json.loads(line), output.fileno())
            _, wait_status = os.waitpid(process, 0)
            exit_status = os.waitstatus_to_exitcode(wait_status)
            output.seek(0)
            print(json.dumps([exit_status, output.read().decode()]), flush=True)
