"""A hash of the code that a rule runs, so that editing it reruns the rule.

Snakemake watches the script of a rule but not the modules it imports. This hash
covers the script and every module of this project that it imports, directly or
not. It is taken over the parsed code without docstrings: editing a comment, a
docstring or the layout changes nothing.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flatminima", "workflow_scripts")


def _source(path: Path) -> str:
    """Python source of a module, or of the code cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    lines = "\n".join("".join(cell["source"]) for cell in cells).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("%", "!")))  # IPython's own


def module_tree(path: Path) -> ast.Module:
    """The parsed code of a module, or of the code cells of a notebook, without docstrings."""
    tree = ast.parse(_source(path), filename=str(path))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, definition) and ast.get_docstring(node, clean=False) is not None:
            node.body = body[1:]
    return tree


def _module_files(module: str) -> Iterator[Path]:
    """Files behind a dotted module name of this project: the module and its packages."""
    parts = module.split(".")
    if parts[0] == "flatminima":
        parts = ["workflow_scripts", *parts]
    for length in range(1, len(parts) + 1):
        base = ROOT.joinpath(*parts[:length])
        for candidate in (base / "__init__.py", base.with_suffix(".py")):
            if candidate.is_file():
                yield candidate


def _imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of this project that the code imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


@cache
def read_code(path: Path) -> tuple[str, frozenset[Path]]:
    """The code of a file in one form for all layouts, and the project's files it imports itself."""
    tree = module_tree(path)
    return ast.dump(tree), frozenset(f for name in _imports(tree) for f in _module_files(name))


def code_files(*paths: Path) -> list[Path]:
    """``paths`` and everything of this project that they import, sorted."""
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
