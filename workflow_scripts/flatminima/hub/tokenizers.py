"""The tokenizer of a hub model."""

import shutil
import tempfile
from pathlib import Path

from flatminima.files import atomic_path
from flatminima.hub.errors import RevisionMissing
from flatminima.hub.files import fetch_file
from flatminima.hub.retrying import PATIENT, Patience
from flatminima.hub.revisions import find_revision

TOKENIZER_FILE = "tokenizer.json"


def download_tokenizer(repo: str, revision: str, output: Path, patience: Patience = PATIENT) -> str:
    """Copy a revision's ``tokenizer.json`` to ``output``; returns the commit it came from."""
    found = find_revision(repo, revision, patience)
    if TOKENIZER_FILE not in found.files:
        raise RevisionMissing(repo, revision, f"it holds no {TOKENIZER_FILE}")
    with tempfile.TemporaryDirectory() as folder, atomic_path(output) as temporary:
        shutil.copyfile(fetch_file(found, TOKENIZER_FILE, Path(folder), patience), temporary)
    return found.commit
