"""Freeze the measurements of a finished suite, to be committed: ``make publish SUITE=…``."""

import argparse
import sys
from pathlib import Path

from flatminima.config.suites import read_suite
from flatminima.freezing import check_current, git, machine, publish


def main(*, suite: str | None, configfiles: list[str], measured_by: str | None) -> None:
    """Write ``resources/published/{suite}`` from ``results/{suite}``."""
    found = read_suite(suite, configfiles)
    folder = Path("resources/published", found.name)
    if measured_by is None:
        check_current(found, configfiles, folder)
    commit = git("rev-parse", f"{measured_by or 'HEAD'}^{{commit}}")
    files, size = publish(found, Path(found.root), folder, commit=commit, machine=machine())
    print(f"{folder}: {files} files, {size / 1e6:.1f} MB, measured by {commit[:7]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite")
    parser.add_argument("--configfile", nargs="*", default=[], dest="configfiles")
    parser.add_argument("--measured-by", help="commit of results that another code measured")
    try:
        main(**vars(parser.parse_args()))
    except ValueError as error:
        sys.exit(f"Error: {error}")
