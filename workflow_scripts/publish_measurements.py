"""Freeze the measurements of a finished suite, to be committed: ``make publish SUITE=…``."""

import argparse
import subprocess
import sys
from pathlib import Path

from workflow_scripts.lib.config_files import read_plan
from workflow_scripts.lib.errors import UserError
from workflow_scripts.lib.publishing import machine, publish
from workflow_scripts.lib.status import jobs_left


def git(*arguments: str) -> str:
    """What git prints; a ``UserError`` where it fails."""
    run = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise UserError(f"git {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout.strip()


def main(*, suite: str | None, configfiles: list[str], measured_by: str | None) -> None:
    """Write ``resources/published/{suite}`` from ``results/{suite}``."""
    plan = read_plan(suite, configfiles)
    folder = Path("resources/published", plan.name)
    if measured_by is None and (changed := git("diff", "--name-only", "HEAD", "--", f":!{folder}")):
        raise UserError(f"{changed.split()[0]} has changes that are not committed")
    if measured_by is None:
        targets = [f"{plan.root}/{name}" for name in plan.measured]
        command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "host", *targets]
        command += ["--configfile", *configfiles] if configfiles else []
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        left = jobs_left(listed.stdout + listed.stderr)
        if listed.returncode or left:
            raise UserError(
                f"{plan.root} is not what this code measures: {sum(left.values())} jobs left"
            )
    commit = git("rev-parse", f"{measured_by or 'HEAD'}^{{commit}}")
    files, size = publish(plan, Path(plan.root), folder, commit=commit, machine=machine())
    print(f"{folder}: {files} files, {size / 1e6:.1f} MB, measured by {commit[:7]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite")
    parser.add_argument("--configfile", nargs="*", default=[], dest="configfiles")
    parser.add_argument("--measured-by", help="commit of results that another code measured")
    try:
        main(**vars(parser.parse_args()))
    except ValueError as error:
        sys.exit(f"Error: {error}")
