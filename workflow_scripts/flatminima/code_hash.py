"""A hash of the code that decides a rule's numbers, so that editing it reruns the rule.

Snakemake watches the script of a rule but not the modules it imports. This hash covers
the script and every module of ``flatminima`` that it imports, directly or not, but for
``INFRASTRUCTURE``: what says how a job runs, how a file is written and how a mistake is
told decides no number. It is taken over the parsed code without docstrings, without what
is raised or logged, and without descriptions of configuration keys: editing a comment, a
message or the layout reruns nothing.
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
# Modules of the package outside the hash; a test edits each and sees that nothing reruns.
INFRASTRUCTURE = frozenset({"jobs", "files", "errors", "config_section", "code_hash"})
# Names whose texts are for a reader, by the module that they must be imported from: a
# function of the same name from elsewhere, such as ``np.log``, decides numbers.
_MESSAGES = {"flatminima.jobs": {"log", "progress"}}
_DESCRIBED = {"pydantic": {"Field"}}


def _imported_names(tree: ast.Module, wanted: Mapping[str, set[str]]) -> set[str]:
    """What the module calls the ``wanted`` names, which are listed by the module they are from."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0
        for alias in node.names
        if alias.name in wanted.get(node.module, ())
    }


def _loggers(tree: ast.Module) -> set[str]:
    """Names that the module assigns, outside functions, from ``logging.getLogger``."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "logging.getLogger"
        for target in node.targets
        if isinstance(target, ast.Name)
    }


class _WithoutWords(ast.NodeTransformer):
    """Leaves out of the tree of a module what only a reader sees."""

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

    visit_Module = visit_ClassDef = _without_docstring
    visit_FunctionDef = visit_AsyncFunctionDef = _without_docstring

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._is_message(node.func):
            node.args = [a for a in node.args if not isinstance(a, ast.Constant | ast.JoinedStr)]
        if isinstance(node.func, ast.Name) and node.func.id in self._described:
            node.keywords = [k for k in node.keywords if k.arg != "description"]
        return self.generic_visit(node)


def read_source(path: Path) -> str:
    """Python source of a module, or of the code cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    lines = "\n".join("".join(cell["source"]) for cell in cells).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("%", "!")))  # IPython's own


def _module_files(module: str) -> Iterator[Path]:
    """Files behind a dotted name of the package: the module and the packages it is in."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in INFRASTRUCTURE:
        return
    for length in range(1, len(parts) + 1):
        base = ROOT.joinpath(SCRIPTS, *parts[:length])
        for candidate in (base / "__init__.py", base.with_suffix(".py")):
            if candidate.is_file():
                yield candidate


def _imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of the package that the code imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == PACKAGE)


@cache
def read_code(path: Path) -> tuple[str, frozenset[Path]]:
    """The code of a file in one form for all layouts, and the files of the package it imports."""
    tree = ast.parse(read_source(path), filename=str(path))
    imported = frozenset(file for name in _imports(tree) for file in _module_files(name))
    return ast.dump(_WithoutWords(tree).visit(tree)), imported


def code_files(*paths: Path) -> list[Path]:
    """``paths`` and everything of the package behind them that decides numbers, sorted."""
    pending, seen = list(paths), set()
    while pending:
        path = pending.pop()
        if path not in seen:
            seen.add(path)
            pending.extend(read_code(path)[1])
    return sorted(seen)


def code_hash(*names: str) -> str:
    """Hexadecimal hash of the code behind scripts or notebooks, named relative to the root."""
    digest = hashlib.sha256()
    for path in code_files(*(ROOT / name for name in names)):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(read_code(path)[0].encode())
    return digest.hexdigest()[:16]
