"""Checks of the keys about text, tokenizer and batches that the schema cannot say."""

import math
from collections.abc import Iterator, Mapping

from flatminima.text.names import file_format


def text_mistakes(suite: Mapping) -> Iterator[tuple[str, str]]:
    """Key below the suite and what is wrong with it, for each mistake."""
    yield from _sources(suite["text"])
    yield from _batches(suite["batches"], suite.get("architecture", {}).get("max_length", math.inf))
    if suite["text"]["source"] == "files" and set(suite["batches"]) - set(suite["text"]):
        yield "text", "lacks train, needed for batches.train"


def _sources(text: Mapping) -> Iterator[tuple[str, str]]:
    for split in ("validation", "train") if text["source"] == "files" else ():
        for number, source in enumerate(text.get(split, ())):
            key, given = f"text.{split}.{number}", set(source) - {"field", "revision"}
            if given not in ({"path"}, {"repo", "file"}):
                has = ", ".join(sorted(given)) or "no file"
                yield key, f"has {has}; valid: path, or repo and file"
                continue
            if "path" in source and "revision" in source:
                yield f"{key}.revision", "goes with repo and file, not with path"
            name = "path" if "path" in source else "file"
            try:
                file_format(source[name])
            except ValueError as error:
                yield f"{key}.{name}", str(error)


def _batches(splits: Mapping, max_length: float) -> Iterator[tuple[str, str]]:
    for split, batches in splits.items():
        length, longest = batches["length"], batches.get("longest_document")
        if length > max_length:
            yield (
                f"batches.{split}.length",
                f"{length} is longer than architecture.max_length {max_length}",
            )
        if batches.get("document_start") and longest is not None and longest < length:
            yield (
                f"batches.{split}.longest_document",
                f"{longest} is below length {length}: document_start would leave no document",
            )
