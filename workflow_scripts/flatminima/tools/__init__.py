"""One's own run: the audit, the Trainer's callback, the schedules, what shipping it would cost.

    from flatminima.tools import ConvergenceCallback, get_oli_schedule

A name is imported when it is asked for, so that torch and transformers are not loaded for
the schedule of a run, nor the Trainer for a monitor, nor anything heavy for ``--help``.
"""

from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path

from flatminima.errors import UserError

_HOMES = {
    "ConvergenceMonitor": "flatminima.monitor",
    "MonitorError": "flatminima.monitor",
    "paired_standard_error": "flatminima.monitor",
    "ConvergenceCallback": "flatminima.tools.callback",
    "audit": "flatminima.tools.audit",
    "get_cosine_neox_schedule": "flatminima.tools.lr_schedulers",
    "get_cosine_schedule": "flatminima.tools.lr_schedulers",
    "get_oli_schedule": "flatminima.tools.lr_schedulers",
    "get_sgdr_schedule": "flatminima.tools.lr_schedulers",
}
__all__ = sorted([*_HOMES, "AuditOptions"])


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"flatminima.tools has no {name}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def _option(about: str, default: object, least: int | None = None) -> object:
    return field(default=default, metadata={"help": about, "least": least})


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
    sequences: int = _option("validation sequences", 64, 2)
    length: int = _option("tokens of a sequence, at most what the model takes", 512, 2)
    batch_size: int = _option("sequences at a time", 4, 1)
    group_size: int = _option("weights that share a scale at 4 bits", 128, 1)
    resamples: int = _option("bootstrap resamples behind each interval", 1000, 2)
    device: str = _option("auto, cpu, cuda or mps", "auto")
    deployed: bool = _option("also run the last checkpoint as it would ship", False)
    json: bool = _option("print the record as JSON on standard output, for scripts", False)

    def __post_init__(self) -> None:
        for one in fields(self)[1:]:
            value, least = getattr(self, one.name), one.metadata["least"]
            if least is not None and value < least:
                raise UserError(f"--{one.name.replace('_', '-')} {value}: {least} or more")

    @property
    def name(self) -> str:
        """Short name of what is audited."""
        return self.target.rstrip("/").split("/")[-1] or "run"

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.out or f"audit-{self.name}")
