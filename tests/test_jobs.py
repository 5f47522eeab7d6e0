"""How a job and the command end: one line on the terminal, the traceback in the log."""

import ast
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from flatminima import __main__ as command
from flatminima.errors import ConfigError
from flatminima.jobs import logged
from tests.workflow import ROOT

PACKAGE = ROOT / "workflow_scripts" / "flatminima"
# What these print is what the user asked for.
COMMANDS = {"__main__.py", "audit.py", "costs.py", "part_costs.py", "publish.py"}


def run_failing(error: Exception, log_file: Path) -> None:
    with pytest.raises(SystemExit) as ended, logged(log_file):
        logging.getLogger("flatminima.somewhere").info("a message")
        raise error
    assert ended.value.code == 1


def test_a_mistake_of_the_user_is_one_line_on_the_terminal_and_in_the_log(tmp_path, capsys):
    run_failing(ConfigError("config key a:\n is wrong"), tmp_path / "job.log")
    lines = ["a message", "Error: config key a: is wrong"]
    assert capsys.readouterr().err.splitlines() == lines
    assert (tmp_path / "job.log").read_text().splitlines() == lines


def test_a_mistake_of_ours_keeps_its_traceback_in_the_log_alone(tmp_path, capsys):
    run_failing(KeyError("a key"), tmp_path / "job.log")
    terminal = capsys.readouterr().err.splitlines()
    assert len(terminal) == 2
    assert "KeyError" in terminal[1] and str(tmp_path / "job.log") in terminal[1]
    log = (tmp_path / "job.log").read_text()
    assert "Traceback" in log and "in run_failing" in log


def test_messages_leave_no_handler_or_level_behind(tmp_path):
    handlers = list(logging.getLogger().handlers)
    with logged(tmp_path / "job.log"):
        pass
    assert logging.getLogger().handlers == handlers
    assert logging.getLogger("flatminima").level == logging.NOTSET


def test_the_package_does_not_print_by_itself():
    """A program that imports it decides where messages go."""
    printing = [
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ]
    assert set(printing) <= COMMANDS
    code = "import flatminima.scoring, logging; logging.getLogger('flatminima').info('hello')"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert run.stdout == run.stderr == ""


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (ConfigError("config key suite: wrong"), 2, "config key suite"),
        (PermissionError(13, "Permission denied", "a file"), 2, "a file"),
        (ModuleNotFoundError("no module", name="torchao.quantization"), 2, "pip install torchao"),
        (KeyError("a key"), 1, "KeyError"),
    ],
)
def test_the_command_ends_with_one_line_and_shows_a_traceback_on_request(
    monkeypatch, capsys, error, code, word
):
    def fail(**options):
        raise error

    monkeypatch.setattr(command, "_plan", fail)
    assert command.main(["plan"]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ") and word in line
    assert command.main(["plan", "--traceback"]) == code
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1] == line
    assert ("Traceback" in shown) == (not isinstance(error, ConfigError | OSError))
