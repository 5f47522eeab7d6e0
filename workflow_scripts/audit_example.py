"""Audit the example run, as the command ``flatminima audit`` does for any run."""

import contextlib
import sys
from pathlib import Path

import torch

from flatminima.errors import UserError
from flatminima.jobs import run as run_job
from flatminima.tools.audit import BAD_INPUT, audit
from flatminima.tools.audit_options import AuditOptions


def main(run: str, validation: str, table: str, options: dict) -> None:
    """Write the audit into the folder of ``table``. A run that left its plateau is no error."""
    torch.set_num_threads(1)  # numbers do not depend on the machine's cores
    audit_options = AuditOptions(run, data=validation, out=str(Path(table).parent), **options)
    with contextlib.redirect_stdout(sys.stderr):  # the job's log
        exit_code = audit(audit_options)
    if exit_code == BAD_INPUT:
        raise UserError(f"{run}: the audit failed, see above")


if __name__ == "__main__":
    run_job(main, snakemake)
