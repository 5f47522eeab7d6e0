"""Show what a suite costs: ``make plan SUITE=…``, ``python -m workflow_scripts.plan_suite``."""

import argparse
import subprocess
import sys

from rich.console import Console

from flatminima.costs.report import model_config, model_shape, report
from flatminima.costs.throughput import measure, timed_batch
from flatminima.costs.totals import batch_shapes, suite_costs
from flatminima.jobs import jobs_left
from flatminima.planning import read_plan
from flatminima.probing import choose_device


def main(*, suite: str | None, configfiles: list[str], seconds: float) -> None:
    """Print the plan; ``seconds`` are spent on each of two measurements, none where it is 0."""
    plan = read_plan(suite, configfiles)
    if plan.is_published:
        return print(f"{plan.name}: nothing to compute, it is measured ({plan.frozen_folder})")
    config, throughput = model_config(plan), None
    shape = model_shape(plan, config)
    if seconds > 0:
        device = choose_device(plan.section["device"])
        forward, update = (timed_batch(shape, *b, device) for b in batch_shapes(plan.section))
        timed = {"forward": forward, "update": update, "threads": plan.threads}
        throughput = measure(config, device=device, seconds=seconds, **timed)
    arguments = ["--dry-run", "--quiet", "host", "--config", f"suite={plan.name}"]
    arguments += ["--configfile", *configfiles] if configfiles else []
    command = [sys.executable, "-m", "snakemake", *arguments]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    costs = suite_costs(plan.section, shape, revisions=len(plan.steps), last=plan.last)
    jobs = jobs_left(listed.stdout + listed.stderr)
    Console().print(report(plan, costs, shape, jobs=jobs, throughput=throughput), *plan.skipped)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite")
    parser.add_argument("--configfile", nargs="*", default=[], dest="configfiles")
    parser.add_argument("--seconds", type=float, default=5.0)
    try:
        main(**vars(parser.parse_args()))
    except ValueError as error:
        sys.exit(f"Error: {error}")
