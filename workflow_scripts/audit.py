"""Audit a run or a hub model without a configuration: the INT4 and INT8 gap of its checkpoints.

    python -m workflow_scripts.audit PATH_OR_REPO [--revisions …] [--data FILE] [--out DIR]

Exit code 0: the INT4 gap of the last checkpoint has left no plateau, or that cannot be told;
3: it has left it (the rule: lib/audit_command/plateau.py); 2: bad input, said in one line.
"""

import argparse
import sys
from dataclasses import fields

from rich.console import Console

from flatminima.audit_command.options import AuditOptions


def read_options(arguments: list[str]) -> AuditOptions:
    """The options of a command line; a mistake ends with exit code 2."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__.split("\n")[0])
    parser.add_argument("target", help="folder of a run or a model, or a hub repository")
    for field in fields(AuditOptions)[1:]:
        name, about = f"--{field.name.replace('_', '-')}", field.metadata["help"]
        if field.default is False:
            parser.add_argument(name, action="store_true", help=about)
        elif field.metadata.get("many"):
            parser.add_argument(name, nargs="+", default=[], help=about)
        else:
            kind = int if isinstance(field.default, int) else str
            parser.add_argument(name, type=kind, default=field.default, help=about)
    given = vars(parser.parse_args(arguments))
    return AuditOptions(**given | {"revisions": tuple(given["revisions"])})


if __name__ == "__main__":
    options = read_options(sys.argv[1:])
    from flatminima.audit_command.run import audit  # torch: not for --help

    sys.exit(audit(options, Console()))
