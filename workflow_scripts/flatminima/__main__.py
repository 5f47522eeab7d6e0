"""The command ``flatminima``: audit a run; plan or publish a suite; freeze its revisions."""

import argparse
import io
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from flatminima.errors import Terminated, UserError, one_line
from flatminima.messages import message_handlers, silence_closed_pipes

logger = logging.getLogger(__name__)

# Of each command: one line of help, and an example.
COMMANDS = {
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


FINISHED = 0
UNEXPECTED_ERROR = 1
BAD_INPUT = 2
# 128 and the number of the signal, as shells have it.
STOPPED_BY_USER = 130
STOPPED_BY_SIGTERM = 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code.

    A mistake of the user is one line and ``BAD_INPUT``. Any other error is one line and
    ``UNEXPECTED_ERROR``; with ``--traceback`` its traceback comes first. Ctrl-C and SIGTERM are one
    line as well.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Lines appear at once in a pipe, and a name that the terminal cannot show is no error.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
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
    with message_handlers(handler), sigterm_as_exception():
        try:
            return run_command(**options)
        except KeyboardInterrupt as error:
            is_sigterm = isinstance(error, Terminated)
            logger.error(f"stopped by {'SIGTERM' if is_sigterm else 'Ctrl-C'}")
            return STOPPED_BY_SIGTERM if is_sigterm else STOPPED_BY_USER
        except (UserError, OSError) as error:
            silence_closed_pipes()
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


@contextmanager
def sigterm_as_exception() -> Iterator[None]:
    """Raise ``Terminated`` at SIGTERM, so that a command can write what it has measured."""

    def stop(number: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    handler_before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler_before)


def parser() -> argparse.ArgumentParser:
    """The command line. ``--help`` imports nothing heavy."""
    raw_text = argparse.RawDescriptionHelpFormatter  # keeps the line breaks of examples
    top = argparse.ArgumentParser(
        prog="flatminima",
        description=__doc__,
        epilog="example: flatminima audit runs/mine --data validation.txt",
        formatter_class=raw_text,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (summary, example) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"example: {example}",
            formatter_class=raw_text,
        )
        command.add_argument(
            "--traceback", action="store_true", help="show the traceback of an unexpected error"
        )
        if name == "audit":
            _audit_options(command)
            continue
        command.add_argument("--suite", help="name (default: `suite` in config.yaml)")
        command.add_argument(
            "--configfile",
            nargs="*",
            default=[],
            dest="configfiles",
            metavar="FILE",
            help="your own configuration, which overrides config.yaml",
        )
        if name == "plan":
            command.add_argument(
                "--seconds",
                type=float,
                default=5.0,
                help="duration of each timing on this machine (default: 5; 0: no timing)",
            )
            command.add_argument(
                "--tflops",
                type=float,
                metavar="N",
                help="compute hours for a GPU that sustains N TFLOP/s in float32; time nothing",
            )
            command.add_argument(
                "--part",
                choices=["headline", "table1"],
                help="only what this part of the suite needs, and whether it can run here",
            )
        if name == "publish":
            command.add_argument(
                "--measured-by",
                metavar="COMMIT",
                help="commit that measured the results (default: HEAD, which must be up to date)",
            )
    return top


def _audit_options(command: argparse.ArgumentParser) -> None:
    """Add the fields of ``AuditOptions`` as options; their defaults decide the types."""
    from flatminima.tools.audit_options import AuditOptions

    command.add_argument("target", help="folder of a run or a model, or a hub repository")
    for field in fields(AuditOptions)[1:]:
        flag = f"--{field.name.replace('_', '-')}"
        help_text = field.metadata["help"]
        kind = field.metadata["kind"]
        if field.default is False:
            command.add_argument(flag, action="store_true", help=help_text)
            continue
        if field.default == ():
            command.add_argument(
                flag, nargs="+", action="extend", default=[], metavar="NAME", help=help_text
            )
            continue
        if field.default is not None:
            default_text = f"{field.default:g}" if kind is float else field.default
            help_text += f" (default: {default_text})"
        command.add_argument(
            flag,
            type=kind,
            default=field.default,
            metavar="NAME" if kind is str else "N",
            help=help_text.replace("%", "%%"),
        )


def _audit(**options: object) -> int:
    from flatminima.tools.audit import audit
    from flatminima.tools.audit_options import AuditOptions

    for name in ("revisions", "quantizer"):
        options[name] = tuple(options[name])
    return audit(AuditOptions(**options))


def _need_clone(command: str) -> None:
    """Raise ``UserError`` unless the current folder is the clone that this package is part of."""
    from flatminima.config.loading import ROOT

    folder = Path.cwd()
    if not Path("Snakefile").is_file():
        raise UserError(f"{command} runs in a clone of the workflow: no Snakefile in {folder}")
    if folder != ROOT:
        raise UserError(
            f"this `flatminima` belongs to another clone ({ROOT}); here, use .venv/bin/flatminima, "
            f"as `make {command}` does"
        )


def _plan(
    suite: str | None,
    configfiles: list[str],
    seconds: float,
    tflops: float | None,
    part: str | None,
) -> int:
    _need_clone("plan")
    if part is not None:
        from flatminima.tools.part_costs import plan_part

        return plan_part(suite, configfiles, seconds, part)
    from flatminima.tools.costs import plan_suite

    return plan_suite(suite, configfiles, seconds, tflops)


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

    hub_suite = read_suite(suite, configfiles)
    if hub_suite.source != "hub":
        raise UserError(f"suite {hub_suite.name}: its source is {hub_suite.source}, not hub")
    repo = hub_suite.config.repo
    branches = list_branches(repo)
    try:
        table = table_of_branches(hub_suite.branch_pattern, branches)
    except ValueError as error:
        raise UserError(f"suite {hub_suite.name}: {repo}: {error}") from error
    path = f"{hub_suite.tables}/{hub_suite.name}.csv"
    write_table(path, table)
    first = table["step"].iloc[0]
    last = table["step"].iloc[-1]
    print(f"{path}: {len(table)} revisions of {repo}, step {first:,} to {last:,}")
    return FINISHED


if __name__ == "__main__":
    sys.exit(main())
