"""The command ``flatminima``: audit a run; plan or publish a suite; freeze its revisions."""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from flatminima.errors import UserError, one_line
from flatminima.messages import message_handlers

logger = logging.getLogger(__name__)

COMMANDS = {  # what each does, and an example
    "audit": (
        "the INT4 and INT8 gap of a run's checkpoints, without any configuration",
        "flatminima audit runs/mine --data validation.txt --deployed\n"
        "flatminima audit EleutherAI/pythia-70m --revisions step1000 step143000\n\n"
        "exit code: 0 done, 2 bad input, 3 the last INT4 gap has left its plateau",
    ),
    "plan": (
        "what a suite costs before it is run: downloads, disk, operations, hours",
        "flatminima plan --suite pythia-160m        (in a clone of the workflow)",
    ),
    "freeze": (
        "list a hub suite's revisions once, for planning without the hub",
        "flatminima freeze --suite olmo-2-1b        (in a clone of the workflow)",
    ),
    "publish": (
        "copy a finished suite's measurements to resources/published, to be committed",
        "flatminima publish --suite mini        (in a clone of the workflow)",
    ),
}


FINISHED, UNEXPECTED_ERROR, BAD_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    A mistake of the user is one line and ``BAD_INPUT``. Any other error is one line and
    ``UNEXPECTED_ERROR``; with ``--traceback`` its traceback comes first.
    """
    options = vars(parser().parse_args(arguments))
    command = options.pop("command")
    with_traceback = options.pop("traceback")
    run_command = {
        "audit": _audit,
        "plan": _plan,
        "freeze": _freeze,
        "publish": _publish,
    }[command]
    handler = logging.StreamHandler()
    handler.setLevel(logging.DEBUG if with_traceback else logging.INFO)
    with message_handlers(handler):
        try:
            return run_command(**options)
        except (UserError, OSError) as error:
            logger.error(f"Error: {' '.join(str(error).split())}")
            return BAD_INPUT
        except Exception as error:
            logger.debug("", exc_info=error)
            if isinstance(error, ModuleNotFoundError) and error.name:
                package = error.name.partition(".")[0]
                logger.error(f"Error: {command} needs the package {package}: pip install {package}")
                return BAD_INPUT
            line = f"unexpected {type(error).__name__}: {one_line(error)}"
            logger.error(f"Error: {line} (--traceback shows where it happened)")
            return UNEXPECTED_ERROR


def parser() -> argparse.ArgumentParser:
    """The whole command line; nothing heavy is imported for ``--help``."""
    formatted = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    top = argparse.ArgumentParser(
        prog="flatminima", description=__doc__, **formatted,
        epilog="example: flatminima audit runs/mine --data validation.txt",
    )  # fmt: skip
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, example) in COMMANDS.items():
        part = commands.add_parser(
            name, help=about, description=about, epilog=f"example: {example}", **formatted
        )
        part.add_argument(
            "--traceback", action="store_true", help="show the traceback of an unexpected error"
        )
        if name == "audit":
            _audit_options(part)
            continue
        part.add_argument("--suite", help="name (default: the one of config.yaml)")
        part.add_argument(
            "--configfile", nargs="*", default=[], dest="configfiles", metavar="FILE",
            help="configuration of one's own, over config.yaml",
        )  # fmt: skip
        if name == "plan":
            timed = "to time this machine for (default: 5; 0: not)"
            part.add_argument("--seconds", type=float, default=5.0, help=timed)
        if name == "publish":
            commit = "commit that measured the results (default: HEAD, which must be up to date)"
            part.add_argument("--measured-by", metavar="COMMIT", help=commit)
    return top


def _audit_options(part: argparse.ArgumentParser) -> None:
    from flatminima.tools.audit_options import AuditOptions

    part.add_argument("target", help="folder of a run or a model, or a hub repository")
    for field in fields(AuditOptions)[1:]:
        name, about = f"--{field.name.replace('_', '-')}", field.metadata["help"]
        if field.default is False:
            part.add_argument(name, action="store_true", help=about)
        elif field.default == ():
            part.add_argument(name, nargs="+", default=[], metavar="NAME", help=about)
        else:
            number = isinstance(field.default, int)
            part.add_argument(
                name, type=int if number else str, default=field.default,
                metavar="N" if number else "NAME",
                help=about if field.default is None else f"{about} (default: {field.default})",
            )  # fmt: skip


def _audit(**given: object) -> int:
    from flatminima.tools.audit import audit
    from flatminima.tools.audit_options import AuditOptions

    return audit(AuditOptions(**given | {"revisions": tuple(given["revisions"])}))


def _need_clone(command: str) -> None:
    from flatminima.config.loading import ROOT

    where = Path.cwd()
    if not Path("Snakefile").is_file():
        raise UserError(f"{command} runs in a clone of the workflow: no Snakefile in {where}")
    if where != ROOT:
        own = f"it is .venv/bin/flatminima, which make {command} calls"
        raise UserError(f"{command} is a command of the clone that it runs in: in this one {own}")


def _plan(suite: str | None, configfiles: list[str], seconds: float) -> int:
    _need_clone("plan")
    from flatminima.tools.costs import plan_suite

    return plan_suite(suite, configfiles, seconds)


def _publish(suite: str | None, configfiles: list[str], measured_by: str | None) -> int:
    _need_clone("publish")
    from flatminima.tools.publish import publish_suite

    return publish_suite(suite, configfiles, measured_by)


def _freeze(suite: str | None, configfiles: list[str]) -> int:
    _need_clone("freeze")
    from flatminima.config.suites import read_suite
    from flatminima.files import write_table
    from flatminima.hub import list_branches
    from flatminima.revisions import table_of_branches

    found = read_suite(suite, configfiles)
    if found.source != "hub":
        raise UserError(f"suite {found.name}: its source is {found.source}, not hub")
    repo, pattern = found.config.repo, found.branch_pattern
    branches = list_branches(repo)
    try:
        table = table_of_branches(pattern, branches)
    except ValueError as error:
        raise UserError(f"suite {found.name}: {repo}: {error}") from error
    path = f"{found.tables}/{found.name}.csv"
    write_table(path, table)
    first, last = table["step"].iloc[0], table["step"].iloc[-1]
    print(f"{path}: {len(table)} revisions of {repo}, step {first:,} to {last:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
