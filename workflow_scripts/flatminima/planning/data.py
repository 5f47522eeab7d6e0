"""Text, tokenizer and batches."""

import copy
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from flatminima.errors import ConfigError
from flatminima.planning.base import SuiteBase
from flatminima.planning.fitting import check_lengths
from flatminima.text.corpus import package_versions

TOKENIZER_FILE = "tokenizer.json"
# A subword token of English or code stands for three to five characters; eight leave room.
CHARACTERS_PER_TOKEN = 8


class DataPlan(SuiteBase):
    """Text, tokenizer and batches."""

    @property
    def text(self) -> dict:
        """Where documents come from, and for files how much of them is wanted."""
        text = copy.deepcopy(dict(self.section["text"]))
        if text["source"] == "packages":
            return {"text": text, "installed": package_versions(text["packages"])}
        rate = text.pop("characters_per_token", CHARACTERS_PER_TOKEN)
        splits = self.section["batches"]
        return {"text": text, "wanted": {s: _wanted(b, rate) for s, b in splits.items()}}

    @property
    def text_files(self) -> list[str]:
        """Local files that the text is surely taken from: a change makes it anew.

        Raises ``ConfigError`` where a split has nothing but local files and none is there.
        """
        text, found = self.section["text"], []
        for split in self.section["batches"] if text["source"] == "files" else ():
            paths = [source.get("path") for source in text[split]]
            there = [path for path in paths if path is not None and Path(path).is_file()]
            if None not in paths and not there:
                raise ConfigError(
                    f"config key suites.{self.name}.text.{split}: no such file: {', '.join(paths)}"
                )
            leading = takewhile(lambda path: path is not None, paths)
            found += [path for path in leading if path in there][:1]
        return list(dict.fromkeys(found))

    @property
    def vocab_size(self) -> int:
        """Entries of the tokenizer that is trained for the suite."""
        return self.section["tokenizer"]["vocab_size"]

    @property
    def tokenizer_source(self) -> dict[str, str]:
        """Hub model whose tokenizer the suite takes, and its revision."""
        tokenizer = self.section["tokenizer"]
        return {"repo": tokenizer["repo"], "revision": tokenizer.get("revision", "main")}

    @property
    def batches(self) -> dict:
        """How each split is cut into sequences, none longer than a local suite's model takes."""
        if self.is_local:
            check_lengths(f"suites.{self.name}", self.section["batches"], self.model_config)
        return {split: dict(batches) for split, batches in self.section["batches"].items()}

    @property
    def tokenizer_file(self) -> str:
        """The file a local suite's tokenizer is taken from; one line where there is none."""
        path = self.section["tokenizer"].get("path")
        folders = [Path(path)] if path else self._beside_checkpoints()
        for folder in folders:
            for candidate in (folder, folder / TOKENIZER_FILE):
                if candidate.is_file():
                    return candidate.as_posix()
        looked = " or ".join(folder.as_posix() for folder in folders)
        raise ConfigError(
            f"config key suites.{self.name}.tokenizer: no {TOKENIZER_FILE} in {looked}; "
            'add "tokenizer: {path: FOLDER}" to the suite, or "{repo: OWNER/NAME}" of the hub'
        )

    def _beside_checkpoints(self) -> list[Path]:
        last = Path(self.folder(self.steps[-1]))
        return [last, last.parent]

    @property
    def length(self) -> int:
        """Tokens of a validation sequence."""
        return self.section["batches"]["validation"]["length"]

    @property
    def vocabulary(self) -> dict:
        """The token that ends a document and the size of the model's vocabulary, where given."""
        named = {
            "end_token": self.section["tokenizer"].get("end_of_text"),
            "model_vocabulary": self.section.get("architecture", {}).get("vocab_size"),
        }
        return {key: value for key, value in named.items() if value is not None}


def _wanted(batches: Mapping, characters_per_token: int) -> dict[str, int]:
    """The text that surely fills ``batches``; see ``up_to`` in text/sources.py."""
    tokens = batches["sequences"] * batches["length"]
    wanted = {"amount": tokens * characters_per_token}
    if batches.get("document_start"):
        shortest = batches["length"] * characters_per_token
        wanted = {"amount": batches["sequences"], "document_of": shortest}
    if longest := batches.get("longest_document"):
        # About half of the documents up to here have more tokens than that.
        wanted |= {"longest": longest * characters_per_token, "amount": 2 * wanted["amount"]}
    return wanted
