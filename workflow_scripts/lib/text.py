"""Training and validation documents of a suite, as json lines files with a manifest."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from workflow_scripts.lib import corpus
from workflow_scripts.lib.hub.documents import stream_documents
from workflow_scripts.lib.logs import progress

# A subword token of English or code stands for three to five characters; eight leave room.
CHARACTERS_PER_TOKEN = 8


def write_documents(path: str | Path, texts: Iterable[str]) -> int:
    """Write one ``{"text": …}`` per line; returns how many."""
    count = 0
    with open(path, "w", encoding="utf-8") as stream:
        for text in texts:
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_documents(path: str | Path) -> Iterator[str]:
    """Texts of a file that ``write_documents`` wrote."""
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)["text"]


def up_to(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Texts from the front until together they have ``characters``."""
    taken = 0
    for text in texts:
        yield text
        taken += len(text)
        if taken >= characters:
            return


def without(texts: Iterable[str], excluded: Iterable[str]) -> Iterator[str]:
    """Texts that are not in ``excluded``, white space aside."""
    known = set(map(corpus.words, excluded))
    return (text for text in texts if corpus.words(text) not in known)


def collect(source: Mapping, train: str, validation: str) -> dict:
    """Write the documents of both splits and return the manifest.

    ``source`` has ``text``, a suite's section of the configuration, and for the hub
    ``tokens``, how many each split must give.
    """
    text = {name: value for name, value in source["text"].items() if name != "source"}
    if source["text"]["source"] == "packages":
        return collect_packages(text, train, validation)
    return collect_hub(text, train, validation, source["tokens"])


def collect_packages(text: Mapping, train: str, validation: str) -> dict:
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


def collect_hub(text: Mapping, train: str, validation: str, tokens: Mapping[str, int]) -> dict:
    """Write enough documents of hub datasets for ``tokens`` per split; return the manifest.

    Training leaves out every document that validation holds.
    """
    wanted = {split: count * CHARACTERS_PER_TOKEN for split, count in tokens.items()}
    held_out = list(up_to(stream_documents(**text["validation"]), wanted["validation"]))
    training = without(stream_documents(**text["train"]), held_out)
    return {
        "source": "Hugging Face hub",
        "validation": dict(text["validation"]),
        "train": dict(text["train"]),
        "validation_documents": write_documents(validation, held_out),
        "train_documents": write_documents(train, up_to(training, wanted["train"])),
    }


def shared_documents(first: Iterable[str], second: Iterable[str]) -> int:
    """How many documents of ``second`` occur in ``first``, white space aside."""
    known = set(map(corpus.words, first))
    return sum(corpus.words(text) in known for text in second)
