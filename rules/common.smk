"""The validated configuration, and helpers with which rules call functions of the plan.

This file defines no rule.
"""

import re
import sys
from functools import cache
from pathlib import Path

from snakemake.common.configfile import load_configfile

# The folder of this workflow. `workflow.basedir` would be the caller's, where this is a module.
HERE = Path(workflow.current_basedir.get_path_or_uri(True)).parent

# Snakemake puts a script's folder on the path of its job, but not on the path of this process.
sys.path.insert(0, (HERE / "workflow_scripts").as_posix())

from flatminima.code_hash import code_hash
from flatminima.config import plan, plan_forks, plan_mechanism, plan_parts, plan_requests
from flatminima.config.keys import CONTROL
from flatminima.config.loading import as_in_a_file, complete_config, merge, own_path, read_yaml
from flatminima.config.plan_forks import Branch
from flatminima.config.suites import Suite, find_suite
from flatminima.errors import ConfigError
from flatminima.revisions import changed_checkpoints


def one_line(function, *arguments, **fixed):
    """Call the function. A mistake of the user ends Snakemake with one line, without a traceback."""
    try:
        return function(*arguments, **fixed)
    except ConfigError as error:
        sys.exit(f"Error: {error}")


def merged_config():
    """config.yaml, the files of --configfile and --config, merged in this order.

    Snakemake's own `config` is merged key by key everywhere. `merge` replaces some sections. A run
    from another folder may have a config.yaml there, which comes after the workflow's own. As a
    module of another workflow, the workflow gets only what `config:` of the module says.
    """
    is_module = len(workflow.modifier_stack) > 1
    if is_module:
        return merge(read_yaml(HERE / "config.yaml"), config)
    settings = workflow.config_settings
    paths = []
    if not settings.replace_workflow_config:
        # Snakemake lists the files of --configfile first, then those of the workflow.
        paths += workflow.configfiles[len(settings.configfiles) :]
        if Path.cwd() != HERE and Path("config.yaml").is_file():
            paths.append("config.yaml")
    paths += settings.configfiles
    merged = {}
    for path in paths:
        read_yaml(Path(path))  # refuses duplicate keys, which Snakemake accepts
        merged = merge(merged, load_configfile(path))
    command_line = {
        key: as_in_a_file(setting) if isinstance(setting, dict) else setting
        for key, setting in (settings.config or {}).items()
    }
    return merge(merged, command_line)


checked_config = one_line(lambda: complete_config(merged_config()))


@cache
def suite_of(name):
    """A suite by its name."""
    return one_line(find_suite, checked_config, name)


@cache
def look_at_local(suite):
    """Print which folders of a local suite are incomplete, and which were changed.

    This is printed once, and not in jobs. A changed checkpoint is measured again because of the
    params of the rules that read it, not because of this function.
    """
    if suite.source != "local" or not workflow.is_main_process:
        return
    for line in suite.local.skipped:
        print(f"suite {suite.name}: skipped {line}", file=sys.stderr)
    for folder in changed_checkpoints(suite.local.checkpoints, Path(suite.root)):
        print(f"suite {suite.name}: {folder} was changed since it was measured", file=sys.stderr)


def of_suite(function, suite, *names, **fixed):
    """Return an input function that calls `function(suite, *wildcard values, **fixed)`.

    ``names`` are the wildcards whose values are passed.
    """
    return lambda wildcards: one_line(
        function, suite, *(wildcards[name] for name in names), **fixed
    )


def planned(function, *names, **fixed):
    """Like `of_suite`, with the suite of the wildcard {suite}."""

    def call(wildcards):
        suite = suite_of(wildcards.suite)
        one_line(look_at_local, suite)
        return of_suite(function, suite, *names, **fixed)(wildcards)

    return call


def of_branch(function, *names):
    """Return an input function that calls `function(branch, *wildcard values)`.

    The branch is the condition that the wildcards {series} and {condition} name.
    """

    def call(suite, series, condition, *further_values):
        return function(plan_forks.branch(suite, series, condition), *further_values)

    return planned(call, "series", "condition", *names)


def checkpoints(makes):
    """Input: all files of the checkpoints of {steps}. ``makes`` is the output of the rule."""
    return lambda wildcards: planned(
        plan.checkpoint_files, "steps", makes=makes.format(steps=wildcards.steps)
    )(wildcards)


def start_of_fork(wildcards):
    """Input: the checkpoint from which a condition starts, and the training state if restored.

    ``cooled`` starts from the last checkpoint of a fork. The time stamp of its folder says nothing
    about its weights, so it is `ancient`, and the sha256 in ``fork`` decides about a rerun.
    """
    if wildcards.series != "cooled":
        return of_branch(Branch.inputs)(wildcards)
    forks = f"results/{wildcards.suite}/forks"
    run = f"{wildcards.condition}-seed{wildcards.seed}"
    return {"weights": ancient(f"{forks}/checkpoints/{run}"), "fork": f"{forks}/losses/{run}.json"}


def setting(key):
    """Return an input function for a key of the suite, such as ``probe.resamples``.

    Snakemake's own ``lookup`` is slower: it searches the complete configuration each time.
    """
    return planned(Suite.key, path=key)


def unwatched(key, suite=None):
    """Param: a key that decides how a job runs, not what it computes. Changes rerun nothing.

    Snakemake does not compare params that depend on a job's input, output, threads or resources
    with those of the last run. That is why this function takes ``resources``. Without ``suite``
    it is the suite of the wildcard.
    """
    return lambda wildcards, resources: one_line(Suite.key, suite or suite_of(wildcards.suite), key)


def requested(function, *names, **fixed):
    """Resource: an amount from the plan, multiplied with the number of the attempt."""
    return lambda wildcards, attempt: attempt * planned(function, *names, **fixed)(wildcards)


def requested_by(job, function):
    """Resource: like `requested`, for a training job of a suite."""
    return lambda wildcards, attempt: attempt * one_line(function, job)


def gpus(wildcards):
    """Resource: the number of GPUs of a job that runs a model.

    For the device `auto`, a job on a cluster requests one. On this machine it requests one if
    there is a GPU.
    """
    return planned(plan.gpus, is_cluster=workflow.non_local_exec)(wildcards)


def of_ranges(pattern):
    """Input: the files of a pattern for every range of revisions of a suite."""
    return collect(pattern, steps=planned(lambda suite: suite.ranges), allow_missing=True)


def of_part(pattern):
    """Input: the files of a pattern for every range of revisions of a part."""
    return collect(pattern, steps=planned(plan_parts.part_ranges, "part"), allow_missing=True)


def suites_where(condition):
    """Regular expression of the names of all suites that meet a condition."""
    names = [name for name in checked_config.suites if condition(suite_of(name))]
    never_matches = r"(?!)"
    return "|".join(map(re.escape, names)) or never_matches


def in_report(path, category, item, caption=None, suite="{suite}"):
    """Mark a file as part of `snakemake --report`. Its caption is in rules/report/."""
    caption = f"report/{caption or Path(path).stem}.rst"
    return report(path, caption=caption, category=category, labels={"item": item, "suite": suite})


def figure(stem, category, number):
    """The three files of a figure. The SVG is part of the report."""
    suite = "{suite}" if "{suite}" in stem else "published"
    reported = in_report(f"{stem}.svg", category, f"Figure {number}", suite=suite)
    return [f"{stem}.pdf", reported, f"{stem}.png"]


def table(stem, category, number):
    """The three files of a table. The CSV is part of the report."""
    reported = in_report(f"{stem}.csv", category, f"Table {number}")
    return [reported, f"{stem}.md", f"{stem}.tex"]


def drawn_from(rule):
    """Inputs of a rule that draws a figure, as paths below the folder of its suite."""
    return [str(path).removeprefix("results/{suite}/") for path in rule.input]
