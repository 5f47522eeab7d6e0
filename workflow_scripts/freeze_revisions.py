"""Record which branch of a hub suite holds which step: ``make freeze SUITE=…``."""

import argparse
import sys
from pathlib import Path

from flatminima.files import atomic_path
from flatminima.hub.revisions import list_branches
from flatminima.planning import read_plan
from flatminima.revisions.frozen import table_of_branches
from flatminima.revisions.names import DEFAULT_PATTERN


def main(*, suite: str | None, configfiles: list[str]) -> None:
    """Write ``resources/revisions/{suite}.csv`` from the hub's list of branches."""
    plan = read_plan(suite, configfiles)
    if plan.section["source"] != "hub":
        raise ValueError(f"suite {plan.name}: its source is {plan.section['source']}, not hub")
    repo = plan.section["repo"]
    pattern = plan.section.get("revision", DEFAULT_PATTERN)
    branches = list_branches(repo)
    try:
        table = table_of_branches(pattern, branches)
    except ValueError as error:
        raise ValueError(f"suite {plan.name}: {repo}: {error}") from error
    path = Path(plan.tables, f"{plan.name}.csv")
    with atomic_path(path) as temporary:
        table.to_csv(temporary, index=False)
    first, last = table["step"].iloc[0], table["step"].iloc[-1]
    print(f"{path}: {len(table)} revisions of {repo}, step {first:,} to {last:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite")
    parser.add_argument("--configfile", nargs="*", default=[], dest="configfiles")
    try:
        main(**vars(parser.parse_args()))
    except ValueError as error:
        sys.exit(f"Error: {error}")
