"""Training and validation documents of a suite, as json lines files with a manifest."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from flatminima.hub.retrying import PATIENT, Patience
from flatminima.jobs import log, progress
from flatminima.text import corpus
from flatminima.text.documents import read_documents, write_documents
from flatminima.text.files import read_texts
from flatminima.text.leakage import document_keys, without
from flatminima.text.sources import find_first

SPLITS = ("validation", "train")  # validation first: training leaves its documents out


def up_to(texts: Iterable[str], wanted: Mapping[str, int]) -> Iterator[str]:
    """Texts from the front until they give ``wanted["amount"]``.

    Without ``document_of`` that is so many characters; with it, so many documents of at least
    ``document_of`` characters. Documents of more than ``longest`` characters do not count.
    """
    given = 0
    shortest, longest = wanted.get("document_of"), wanted.get("longest")
    for text in texts:
        yield text
        if longest is not None and len(text) > longest:
            continue
        given += len(text) if shortest is None else len(text) >= shortest
        if given >= wanted["amount"]:
            return


class Tally:
    """Passes texts on and keeps their number, their characters and a digest of them all."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts
        self.documents = self.characters = 0
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.documents += 1
            self.characters += len(text)
            self._digest.update(text.encode() + b"\0")
            yield text

    def record(self) -> dict[str, int | str]:
        """What went through so far, for the manifest."""
        counted = {"documents": self.documents, "characters": self.characters}
        return counted | {"sha256": self._digest.hexdigest()}


def collect(
    source: Mapping, train: str | Path, validation: str | Path, patience: Patience = PATIENT
) -> dict:
    """Write the documents of both splits and return the manifest.

    ``source`` has ``text``, a suite's section of the configuration, and for files
    ``wanted``, what each split must give (see ``up_to``).
    """
    text = {name: value for name, value in source["text"].items() if name != "source"}
    if source["text"]["source"] == "packages":
        return collect_packages(text, train, validation)
    paths = {"train": train, "validation": validation}
    return collect_files(text, paths, source["wanted"], patience)


def collect_packages(text: Mapping, train: str | Path, validation: str | Path) -> dict:
    """Write the documents of installed packages and return the manifest."""
    found = {
        name: corpus.package_documents(name, text["min_characters"])
        for name in progress(text["packages"], "packages")
    }
    documents = corpus.deduplicate([document for group in found.values() for document in group])
    training, held_out = corpus.split(
        documents, validation_fraction=text["validation_fraction"], seed=text["seed"]
    )
    return {
        "source": "docstrings of installed packages",
        "packages": [asdict(corpus.describe(name, group)) for name, group in found.items()],
        "documents": len(documents),
        "seed": text["seed"],
        "train_documents": write_documents(train, (d.text for d in training)),
        "validation_documents": write_documents(validation, (d.text for d in held_out)),
    }


def collect_files(
    text: Mapping,
    paths: Mapping[str, str | Path],
    wanted: Mapping[str, Mapping[str, int]],
    patience: Patience = PATIENT,
) -> dict:
    """Write what ``wanted`` says of each split's first available source; return the manifest.

    Training leaves out every document that validation holds, white space aside. A split of
    which nothing is wanted has a file without documents.
    """
    manifest: dict = {"source": "files"}
    held_out: set[bytes] = set()
    for split in SPLITS:
        if split not in wanted:
            manifest[split] = {"documents": write_documents(paths[split], [])}
            continue
        file, passed_over = find_first(text[split], f"{split} text", patience)
        for entry in passed_over:
            log(f"{split} text: passed over {entry['source']}: {entry['reason']}")
        read = Tally(read_texts(file, patience))
        kept = Tally(up_to(without(read, held_out), wanted[split]))
        write_documents(paths[split], progress(kept, f"documents from {file.name}"))
        manifest[split] = {
            "taken": file.name,
            "commit": file.commit,
            "field": None if file.format == "text" else file.field,
            **kept.record(),
            "left_out_as_validation": read.documents - kept.documents,
            "passed_over": passed_over,
        }
        if split == "validation":
            held_out = document_keys(read_documents(paths[split]))
    return manifest | {f"{split}_documents": manifest[split]["documents"] for split in SPLITS}
