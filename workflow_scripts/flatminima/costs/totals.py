"""What a suite costs before it is run: downloads, disk, floating-point operations.

Operations are counted as multiplications and additions of the matrix products: 2 for
each weight and token, and for attention 2 L T d for each token of a sequence of T, the
causal half of its two products over L layers of width d. Backward costs twice forward.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flatminima.costs.shapes import Shape

ADAM_BYTES = 12  # of one parameter in a saved training state: weight and two moments, float32
CHECKPOINT_BYTES = 4  # of one parameter in a checkpoint that is written here
MAX_ON_DISK = 2


def forward_flop(shape: Shape, sequences: int, length: int) -> float:
    """Operations of one forward pass over ``[sequences, length]`` tokens."""
    each = 2 * shape.multiplied + 2 * shape.layers * length * shape.width
    return float(sequences * length * each)


def training_flop(shape: Shape, sequences: int, length: int) -> float:
    """Operations of forward and backward passes over ``[sequences, length]`` tokens."""
    return 3 * forward_flop(shape, sequences, length)


@dataclass(frozen=True)
class Costs:
    """Totals of one suite. Bytes, and floating-point operations by kind of pass."""

    revisions: int
    forks: int
    download_bytes: int
    disk_bytes: int
    audit_flop: float
    fork_probe_flop: float
    fork_training_flop: float
    pretraining_flop: float

    @property
    def forward_flop(self) -> float:
        """All passes without gradients."""
        return self.audit_flop + self.fork_probe_flop

    @property
    def training_flop(self) -> float:
        """All passes with gradients."""
        return self.fork_training_flop + self.pretraining_flop

    def hours(self, forward_rate: float, training_rate: float, side_by_side: int = 1) -> float:
        """Hours at so many operations a second without and with gradients.

        With several jobs ``side_by_side`` all is shared among them but the run itself.
        """
        shared = self.forward_flop / forward_rate + self.fork_training_flop / training_rate
        return (shared / side_by_side + self.pretraining_flop / training_rate) / 3600


def batch_shapes(section: Mapping) -> tuple[tuple[int, int], tuple[int, int]]:
    """Sequences and tokens of a batch of the suite's probes and of its updates."""
    batches = section["batches"]
    probe = (section["probe"]["batch_size"], batches["validation"]["length"])
    run = section.get("fork") or (section["training"] if section["source"] == "pretrain" else None)
    return probe, (run["batch_size"], batches["train"]["length"]) if run else probe


def suite_costs(section: Mapping, shape: Shape, *, revisions: int, last: int) -> Costs:
    """Costs of a suite's section of the configuration with ``revisions`` checkpoints.

    Disk is the most that lies there at one time: checkpoints and one state of training.
    """
    source, fork = section["source"], section.get("fork")
    validation = section["batches"]["validation"]
    probe = 3 * forward_flop(shape, validation["sequences"], validation["length"])
    forks = len(fork["schedules"]) * len(fork["seeds"]) if fork else 0
    fork_probes = forks * (fork["steps"] // fork["probe_every"]) if fork else 0
    return Costs(
        revisions=revisions,
        forks=forks,
        download_bytes=shape.stored_bytes * (revisions + bool(fork)) * (source == "hub"),
        disk_bytes=_disk_bytes(section, shape, revisions),
        audit_flop=revisions * probe,
        fork_probe_flop=fork_probes * probe,
        fork_training_flop=forks * _run_flop(section, shape, fork, fork["steps"]) if fork else 0.0,
        pretraining_flop=(
            _run_flop(section, shape, section["training"], last) if source == "pretrain" else 0.0
        ),
    )


def _run_flop(section: Mapping, shape: Shape, run: Mapping, steps: int) -> float:
    """Operations of ``steps`` updates with the batch size of ``run``."""
    return steps * training_flop(shape, run["batch_size"], section["batches"]["train"]["length"])


def _disk_bytes(section: Mapping, shape: Shape, revisions: int) -> int:
    state = ADAM_BYTES * shape.parameters * ("fork" in section or section["source"] == "pretrain")
    if section["source"] == "pretrain":
        return revisions * CHECKPOINT_BYTES * shape.parameters + state
    if section["source"] == "local":
        return state
    kept = section.get("keep_checkpoints", False)
    there = revisions if kept else min(revisions, section.get("max_on_disk", MAX_ON_DISK))
    return (there + ("fork" in section and not kept)) * shape.stored_bytes + state
