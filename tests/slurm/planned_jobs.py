"""What Snakemake would submit to a cluster: a file to write, then the arguments of a dry run.

A JSON row per job. A dry run prints no resources of a job that has a message, so they are taken
from the scheduler. The jobs of one group have the same ``group``, and what that asks for is in
``groups``. Inputs that are yet to be made count as 100 MB.
"""

import json
import sys
from pathlib import Path
from unittest import mock

from snakemake.cli import main
from snakemake.iocontainers import InputFiles
from snakemake.scheduling.job_scheduler import JobScheduler

RESOURCES = ("gpu", "mem_mb", "runtime", "hub")


def asked(job) -> dict:
    """The resources that a job or a group of jobs asks for."""
    return {name: job.resources.get(name) for name in RESOURCES}


def devices(value) -> list[str]:
    """Every value of a key ``device`` in the parameters of a job."""
    if not hasattr(value, "items"):
        return []
    below = [device for _, inner in value.items() for device in devices(inner)]
    return below + [inner for key, inner in value.items() if key == "device"]


def schedule(scheduler) -> bool:
    """Write what would be scheduled instead of scheduling it."""
    dag, groups, rows = scheduler.workflow.dag, {}, []
    for job in dag.needrun_jobs():
        group = dag.get_job_group(job)
        groups |= {} if group is None else {group.jobid: asked(group)}
        rows.append(
            {
                "rule": job.rule.name,
                "wildcards": dict(job.wildcards.items()),
                "group": group and group.jobid,
                "devices": devices(job.params),
                **asked(job),
            }
        )
    Path(sys.argv[1]).write_text(json.dumps({"jobs": rows, "groups": groups}, default=str))
    return True


if __name__ == "__main__":
    with (
        mock.patch.object(JobScheduler, "schedule", schedule),
        mock.patch.object(InputFiles, "size_mb", 100.0),
    ):
        main(["--dry-run", "--quiet", "all", *sys.argv[2:]])
