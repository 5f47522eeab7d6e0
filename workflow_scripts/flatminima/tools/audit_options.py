"""The options of the audit, with one line of help each. This module imports nothing heavy."""

from dataclasses import dataclass, field, fields
from pathlib import Path

from flatminima.errors import UserError


def _option(
    help_text: str, default: object, least: float | None = None, *, kind: type | None = None
) -> object:
    """An option; its type on the command line is ``kind``, or else that of the default."""
    if kind is None:
        kind = int if isinstance(default, int) else str
    return field(default=default, metadata={"help": help_text, "least": least, "kind": kind})


@dataclass(frozen=True)
class AuditOptions:
    """The options of ``flatminima audit``; each is ``--name-of-the-field``."""

    target: str
    revisions: tuple[str, ...] = _option(
        "audit only these: hub branches or tags, folder names or steps of a run", ()
    )
    data: str | None = _option(
        "validation text: .txt, .jsonl (field text) or .parquet, also with .gz or .zst", None
    )
    out: str | None = _option("folder of the results (default: audit-NAME)", None)
    tokenizer: str | None = _option(
        "tokenizer.json, or a folder that contains one (default: the model's own)", None
    )
    sequences: int = _option("validation sequences", 64, 2)
    length: int = _option("tokens of a sequence, at most what the model takes", 512, 2)
    batch_size: int = _option("sequences at a time", 4, 1)
    group_size: int = _option("weights that share a scale at 4 bits", 128, 1)
    quantizer: tuple[str, ...] = _option(
        "measure these as well: int3_g64, int4_channel, nf4, mxfp4, nvfp4, … (bits, then what "
        "shares a scale)",
        (),
    )
    harm: float = _option(
        "cost in % of perplexity above which INT4 counts as harmful", 1.0, 0.0, kind=float
    )
    resamples: int = _option("bootstrap resamples behind each interval", 1000, 2)
    device: str = _option("auto, cpu, cuda or mps", "auto")
    threads: int | None = _option(
        "processor threads (default: by the model's size and the machine's load)", None, 1, kind=int
    )
    deployed: bool = _option("also measure the last checkpoint in real quantized formats", False)
    json: bool = _option("print the record as JSON on standard output, for scripts", False)

    def __post_init__(self) -> None:
        for option in fields(self)[1:]:  # all but the target
            number = getattr(self, option.name)
            least = option.metadata["least"]
            if least is not None and number is not None and not number >= least:
                flag = option.name.replace("_", "-")
                raise UserError(f"--{flag} {number} is not valid; valid: {least} or more")

    @property
    def name(self) -> str:
        """Short name of what is audited."""
        return self.target.rstrip("/").split("/")[-1] or "run"

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.out or f"audit-{self.name}")
