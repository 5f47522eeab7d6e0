"""A hash of the code that decides a rule's numbers, so that editing it reruns the rule.

Snakemake watches the script of a rule, but not the modules that the script imports. This hash
covers the script and every module of ``flatminima`` that it imports, directly or indirectly.
``INFRASTRUCTURE`` is left out: how a job runs, how a file is written and how an error is reported
decides no number. The hash is taken over the parsed code without docstrings, messages of errors
and logs, and descriptions of configuration keys. So edits of comments, messages or layout rerun
nothing.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = "workflow_scripts"
PACKAGE = "flatminima"
# Modules of the package outside the hash. A test edits each and checks that nothing reruns.
INFRASTRUCTURE = frozenset({"jobs", "files", "errors", "config_section", "code_hash"})
# Functions whose arguments are texts for readers, by the module from which they are imported.
# The module matters: a function of the same name, such as ``np.log``, may decide numbers.
_MESSAGES = {"flatminima.jobs": {"log", "progress"}}
_DESCRIBED = {"pydantic": {"Field"}}


def _imported_names(tree: ast.Module, functions: Mapping[str, set[str]]) -> set[str]:
    """Local names of those ``functions``, listed by module, that the code imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                if alias.name in functions.get(node.module, ()):
                    names.add(alias.asname or alias.name)
    return names


def _loggers(tree: ast.Module) -> set[str]:
    """Names to which the module assigns ``logging.getLogger(…)`` at its top level."""
    names = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if ast.unparse(node.value.func) == "logging.getLogger":
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


class _WithoutReaderTexts(ast.NodeTransformer):
    """Removes texts for readers from the syntax tree of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self._messages = _imported_names(tree, _MESSAGES)
        self._described = _imported_names(tree, _DESCRIBED)
        self._loggers = _loggers(tree)

    def _is_message(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute):
            return isinstance(function.value, ast.Name) and function.value.id in self._loggers
        return isinstance(function, ast.Name) and function.id in self._messages

    def _without_docstring(self, node: ast.AST) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    visit_Module = _without_docstring
    visit_ClassDef = _without_docstring
    visit_FunctionDef = _without_docstring
    visit_AsyncFunctionDef = _without_docstring

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        # Only the class of the error matters.
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._is_message(node.func):
            # A computed argument stays: it may decide something.
            node.args = [
                argument
                for argument in node.args
                if not isinstance(argument, ast.Constant | ast.JoinedStr)
            ]
        if isinstance(node.func, ast.Name) and node.func.id in self._described:
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "description"]
        return self.generic_visit(node)


def read_source(path: Path) -> str:
    """Python source of a module, or of the code cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    lines = "\n".join("".join(cell["source"]) for cell in cells).splitlines()
    # Lines with % or ! are commands of IPython, not Python.
    return "\n".join(line for line in lines if not line.startswith(("%", "!")))


def _module_files(module: str) -> Iterator[Path]:
    """Files of a dotted name of the package: the module and the packages that contain it."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in INFRASTRUCTURE:
        return
    for length in range(1, len(parts) + 1):
        base = ROOT.joinpath(SCRIPTS, *parts[:length])
        for candidate in (base / "__init__.py", base.with_suffix(".py")):
            if candidate.is_file():
                yield candidate


def _imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of the package that the code imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == PACKAGE:
                yield name


@cache
def read_code(path: Path) -> tuple[str, frozenset[Path]]:
    """The code of a file without its layout, and the files of the package that it imports."""
    tree = ast.parse(read_source(path), filename=str(path))
    imported = frozenset(file for name in _imports(tree) for file in _module_files(name))
    return ast.dump(_WithoutReaderTexts(tree).visit(tree)), imported


def code_files(*paths: Path) -> list[Path]:
    """``paths`` and all files that they import and that may decide numbers, sorted."""
    pending = list(paths)
    visited = set()
    while pending:
        path = pending.pop()
        if path not in visited:
            visited.add(path)
            _, imported = read_code(path)
            # What an imported file imports may decide numbers too.
            pending.extend(imported)
    return sorted(visited)


def code_hash(*names: str) -> str:
    """Hexadecimal hash of the code of scripts or notebooks, named relative to the root."""
    digest = hashlib.sha256()
    for path in code_files(*(ROOT / name for name in names)):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        code, _ = read_code(path)
        digest.update(code.encode())
    return digest.hexdigest()[:16]
