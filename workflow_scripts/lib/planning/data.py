"""Text, tokenizer and batches."""

from pathlib import Path

from workflow_scripts.lib.config import ConfigError
from workflow_scripts.lib.corpus import package_versions
from workflow_scripts.lib.planning.base import SuiteBase

TOKENIZER_FILE = "tokenizer.json"


class DataPlan(SuiteBase):
    """Text, tokenizer and batches."""

    @property
    def text(self) -> dict:
        """Where documents come from, and how many tokens a hub source must give."""
        text = dict(self.section["text"])
        if text["source"] == "packages":
            return {"text": text, "installed": package_versions(text["packages"])}
        wanted = {s: b["sequences"] * b["length"] for s, b in self.section["batches"].items()}
        return {"text": text, "tokens": wanted}

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
        """Sequences and length of each split."""
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
            "name one with path, or a hub model with repo"
        )

    def _beside_checkpoints(self) -> list[Path]:
        last = Path(self.folder(self.steps[-1]))
        return [last, last.parent]
