"""What a start of Snakemake does not load."""

import subprocess
import sys

from flatminima.config.lean_imports import absent
from tests.workflow import ROOT


def python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_the_configuration_is_checked_without_grammars_of_addresses():
    loaded = python(
        "import sys; import flatminima.config.checks; "
        "print('jsonschema' in sys.modules, 'rfc3987_syntax' in sys.modules, 'lark' in sys.modules)"
    )
    assert loaded == "True False False"


def test_the_package_can_be_imported_afterwards():
    code = "import flatminima.config.checks, rfc3987_syntax as after; "
    assert python(f"{code}print(after.__name__)") == "rfc3987_syntax"


def test_what_is_loaded_stays_loaded():
    import json

    with absent("json"):
        assert sys.modules["json"] is json
    assert sys.modules["json"] is json
