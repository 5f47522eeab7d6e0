"""The checked configuration, and how rules ask the plan of their suite. Defines no rule."""

import re
import sys
from functools import cache
from pathlib import Path

from snakemake.common.configfile import load_configfile

# Snakemake puts the folder of a script on the path of its job, but not on its own.
sys.path.insert(0, Path(workflow.basedir, "workflow_scripts").as_posix())

from flatminima.code_hash import code_hash
from flatminima.config import plan, plan_forks, plan_mechanism, plan_requests
from flatminima.config.keys import CONTROL
from flatminima.config.loading import as_in_a_file, complete_config, merge, read_yaml
from flatminima.config.plan_forks import Branch
from flatminima.config.suites import Suite, find_suite
from flatminima.errors import ConfigError
from flatminima.revisions import changed_checkpoints


def one_line(function, *arguments, **fixed):
    """What the function returns; a mistake of the user ends in one line, without a traceback."""
    try:
        return function(*arguments, **fixed)
    except ConfigError as error:
        sys.exit(f"Error: {error}")


def merged_config():
    """config.yaml, the files of --configfile and --config over each other.

    Snakemake has merged them in `config` already, but key by key everywhere.
    """
    if workflow.modifier.skip_configfile:  # a module has the configuration of its user
        return config
    settings = workflow.config_settings
    own = workflow.configfiles[len(settings.configfiles) :]
    merged = {}
    for path in (*([] if settings.replace_workflow_config else own), *settings.configfiles):
        read_yaml(Path(path))  # refuses a key that stands twice
        merged = merge(merged, load_configfile(path))
    given = {
        key: as_in_a_file(value) if isinstance(value, dict) else value
        for key, value in (settings.config or {}).items()
    }
    return merge(merged, given)


checked_config = one_line(lambda: complete_config(merged_config()))


@cache
def suite_of(name):
    """A suite by its name."""
    return one_line(find_suite, checked_config, name)


@cache
def look_at_local(suite):
    """Name the folders of a local suite that are not whole, and those that were changed.

    Once, and not in jobs. That a changed checkpoint is measured again follows from the params
    of the rules that read it, not from here.
    """
    if suite.source != "local" or not workflow.is_main_process:
        return
    for line in suite.local.skipped:
        print(f"suite {suite.name}: skipped {line}", file=sys.stderr)
    for folder in changed_checkpoints(suite.local.checkpoints, Path(suite.root)):
        print(f"suite {suite.name}: {folder} was changed since it was measured", file=sys.stderr)


def of_suite(function, suite, *names, **fixed):
    """Function of the wildcards: what a function of the plan says of a suite.

    ``names`` are wildcards whose values are passed, ``fixed`` is passed as it is.
    """
    return lambda wildcards: one_line(function, suite, *(wildcards[n] for n in names), **fixed)


def planned(function, *names, **fixed):
    """The same of the suite that is a wildcard."""

    def value(wildcards):
        suite = suite_of(wildcards.suite)
        one_line(look_at_local, suite)
        return of_suite(function, suite, *names, **fixed)(wildcards)

    return value


def of_branch(function, *names):
    """Function of the wildcards: what is asked of the condition that they name."""

    def value(suite, series, condition, *rest):
        return function(plan_forks.branch(suite, series, condition), *rest)

    return planned(value, "series", "condition", *names)


def checkpoints(makes):
    """Input: all files of the checkpoints of {steps}, for the rule that makes a table of them."""
    return lambda wildcards: planned(
        plan.checkpoint_files, "steps", makes=makes.format(steps=wildcards.steps)
    )(wildcards)


def start_of_fork(wildcards):
    """The checkpoint that a condition leaves from, and the run's state if it is restored.

    For ``cooled`` the fork's last, told by the sha256 in ``fork``, not by the age of a folder.
    """
    if wildcards.series != "cooled":
        return of_branch(Branch.inputs)(wildcards)
    forks = f"results/{wildcards.suite}/forks"
    run = f"{wildcards.condition}-seed{wildcards.seed}"
    return {"weights": ancient(f"{forks}/checkpoints/{run}"), "fork": f"{forks}/losses/{run}.json"}


def setting(key):
    """Function of the wildcards: a key of the suite's configuration, such as ``probe.resamples``.

    Snakemake's ``lookup`` reads the same and walks the whole configuration each time.
    """
    return planned(Suite.key, path=key)


def unwatched(key, suite=None):
    """Param: a key that says how a job runs and not what it computes.

    Snakemake compares no param that is derived from a job's input, output, threads or resources
    with that of the last run. This one asks for the resources, so that another value reruns
    nothing. The suite is the wildcard's unless it is named.
    """
    return lambda wildcards, resources: one_line(Suite.key, suite or suite_of(wildcards.suite), key)


def requested(function, *names, **fixed):
    """Resource: an amount from the plan, as many times as the job has been started."""
    return lambda wildcards, attempt: attempt * planned(function, *names, **fixed)(wildcards)


def requested_by(job, function):
    """Resource: the same of a training job of a suite."""
    return lambda wildcards, attempt: attempt * one_line(function, job)


def gpus(wildcards):
    """Resource: the GPUs of a job whose model may be on one.

    A cluster is to give one for the device `auto`; here one is asked for where there is one.
    """
    return planned(plan.gpus, is_cluster=workflow.non_local_exec)(wildcards)


def of_ranges(pattern):
    """The files of a pattern for every range of revisions of a suite."""
    return collect(pattern, steps=planned(lambda suite: suite.ranges), allow_missing=True)


def suites_where(condition):
    """Pattern that matches the names of the suites that meet a condition, and nothing else."""
    names = [name for name in checked_config.suites if condition(suite_of(name))]
    return "|".join(map(re.escape, names)) or r"(?!)"


def in_report(path, category, item, caption=None, suite="{suite}"):
    """The file as a part of `snakemake --report`; its caption is in rules/report/."""
    caption = f"report/{caption or Path(path).stem}.rst"
    return report(path, caption=caption, category=category, labels={"item": item, "suite": suite})


def figure(stem, category, number):
    """The three files of a figure; the SVG is part of the report."""
    suite = "{suite}" if "{suite}" in stem else "published"
    shown = in_report(f"{stem}.svg", category, f"Figure {number}", suite=suite)
    return [f"{stem}.pdf", shown, f"{stem}.png"]


def table(stem, category, number):
    """The three files of a table; the CSV is part of the report."""
    shown = in_report(f"{stem}.csv", category, f"Table {number}")
    return [shown, f"{stem}.md", f"{stem}.tex"]


def drawn_from(rule):
    """What a figure is drawn from, below the folder of its suite."""
    return [str(path).removeprefix("results/{suite}/") for path in rule.input]
