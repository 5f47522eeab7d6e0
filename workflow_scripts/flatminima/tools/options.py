"""What the audit can be asked, with one line of help for each option; imports nothing heavy."""

from dataclasses import dataclass, field


def _option(about: str, default: object) -> object:
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class AuditOptions:
    """The options of ``flatminima audit``; each is ``--name-of-the-field``."""

    target: str
    revisions: tuple[str, ...] = _option(
        "only these: hub branches or tags, folder names or steps of a run", ()
    )
    data: str | None = _option(
        "validation text: .txt, .jsonl (field text) or .parquet, also with .gz or .zst", None
    )
    out: str | None = _option("folder of the results (default: audit-NAME)", None)
    tokenizer: str | None = _option(
        "tokenizer.json, or a folder that holds one (default: the model's own)", None
    )
    sequences: int = _option("validation sequences", 64)
    length: int = _option("tokens of a sequence, at most what the model takes", 512)
    batch_size: int = _option("sequences at a time", 4)
    group_size: int = _option("weights that share a scale at 4 bits", 128)
    resamples: int = _option("bootstrap resamples behind each interval", 1000)
    device: str = _option("auto, cpu, cuda or mps", "auto")
    deployed: bool = _option("also run the last checkpoint as it would ship", False)
    json: bool = _option("print the record as JSON on standard output, for scripts", False)

    @property
    def name(self) -> str:
        """Short name of what is audited."""
        return self.target.rstrip("/").split("/")[-1] or "run"
