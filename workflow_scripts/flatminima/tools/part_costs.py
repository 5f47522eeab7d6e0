"""What a part of a suite costs, and whether it can run here: ``flatminima plan --part headline``.

``make headline`` and ``make table1`` print this before anything is fetched. Memory, disk and the
connection are checked first, because a job that lacks them fails late: the system kills it without
a message, or the hub's client repeats its requests for minutes.
"""

import shutil
import sys
from collections.abc import Sequence

import psutil
from huggingface_hub import constants
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import get_session
from tabulate import tabulate

from flatminima.config.plan_parts import part_targets, unmeasured_steps
from flatminima.config.plan_requests import revision_mb
from flatminima.config.suites import Suite, read_suite
from flatminima.errors import UserError, one_line
from flatminima.jobs import dry_run

ANSWER_WITHIN_S = 10.0
# A job may have twice its checkpoint on disk: as it was published, and as one file.
COPIES_ON_DISK = 2
# Requested memory is the most that a job was seen to use, and more. Half of it is too little.
FEWEST_SHARE_OF_MEMORY = 0.5


def plan_part(name: str | None, configfiles: Sequence[str], seconds: float, part: str) -> int:
    """Print the costs of a part and return 0, or Snakemake's exit code if it cannot plan the part.

    Nothing is printed but one line if the part is finished. Raises ``UserError`` if the part
    cannot run here.
    """
    suite = read_suite(name, configfiles)
    plan = dry_run("--", *part_targets(suite, part), configfiles=configfiles)
    if plan.exit_code:
        for line in plan.messages:
            print(line, file=sys.stderr)
        return plan.exit_code
    steps = unmeasured_steps(suite, part)
    if not steps or suite.source == "published":
        print(f"{suite.config.label}, {part}: all revisions are measured")
        return 0

    # Imports of torch and transformers take seconds, and a finished part needs neither.
    from flatminima.tools import costs

    config = costs.read_config(suite.config)
    shape = costs.describe_shape(config, suite.config.architecture.dtype)
    audit_only = suite.config.model_copy(update={"fork": None})
    part_costs = costs.suite_costs(audit_only, shape, revisions=len(steps), last=suite.last)
    forwards = costs.forwards_of_a_probe(suite.config)
    rows = list(costs.count_rows(part_costs, shape, len(steps), forwards))
    if suite.config.text.source == "files":
        rows.append(costs.text_row(suite, "validation"))
    if seconds > 0:
        rows += costs.time_rows(audit_only, config, part_costs, len(steps), seconds)
    rows.append(costs.jobs_row(plan.jobs))
    print(f"{suite.config.label}, {part}: {len(steps)} revisions to measure")
    print(tabulate(rows, ("what", "how much", "how it is known"), disable_numparse=True))
    check_machine(suite, shape.stored_bytes)
    if suite.source == "hub":
        check_hub(suite)
    return 0


def check_machine(suite: Suite, checkpoint_bytes: int) -> None:
    """Raise ``UserError`` if this machine has too little memory or disk for one revision."""
    needed_disk = COPIES_ON_DISK * checkpoint_bytes
    free_disk = shutil.disk_usage(".").free
    if free_disk < needed_disk:
        raise UserError(
            f"{free_disk / 1e9:.1f} GB of disk are free here, and one revision of "
            f"{suite.config.label} needs {needed_disk / 1e9:.1f} GB; free some, or clone the "
            "repository to another disk"
        )
    needed_memory = revision_mb(suite) * 1e6
    memory = psutil.virtual_memory().total
    if memory < FEWEST_SHARE_OF_MEMORY * needed_memory:
        raise UserError(
            f"this machine has {memory / 1e9:.1f} GB of memory, and a job of "
            f"{suite.config.label} needs up to {needed_memory / 1e9:.1f} GB; use a larger machine, "
            f"or a smaller batch: suites.{suite.name}.probe.batch_size"
        )
    if memory < needed_memory:
        print(
            f"Memory may be short: {memory / 1e9:.1f} GB here, up to "
            f"{needed_memory / 1e9:.1f} GB needed"
        )


def check_hub(suite: Suite) -> None:
    """Raise ``UserError`` if the hub does not answer. With HF_HUB_OFFLINE it is not asked."""
    if constants.is_offline_mode():
        return
    address = f"{constants.ENDPOINT}/api/models/{suite.config.repo}"
    try:
        get_session().head(address, timeout=ANSWER_WITHIN_S, follow_redirects=True)
    except (HTTPError, OSError) as error:
        raise UserError(
            f"{constants.ENDPOINT} does not answer ({one_line(error)}); check the network, set "
            "HTTPS_PROXY for a proxy or HF_ENDPOINT for a mirror, or HF_HUB_OFFLINE=1 to use the "
            "files in your cache; then give the same command again"
        ) from error
