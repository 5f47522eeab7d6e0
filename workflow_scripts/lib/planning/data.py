"""Text, tokenizer and batches."""

from workflow_scripts.lib.corpus import package_versions
from workflow_scripts.lib.planning.base import SuiteBase


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
