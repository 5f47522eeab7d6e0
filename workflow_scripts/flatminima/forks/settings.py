"""What one condition of a fork is: when it starts, stops and is probed, at which rate."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flatminima.schedules import ForkSchedule, fork_schedule, pretraining_schedule


@dataclass(frozen=True)
class ForkSettings:
    """One condition.

    ``definition`` is an entry of ``fork.schedules`` or ``fork.rivals``; ``fork`` and
    ``training`` are the sections of the suite with what the condition changes in them;
    ``total_steps`` is the last step of the suite's own run; ``compute`` says how gradients
    are computed. ``fork`` may hold, beyond the keys of the configuration, ``length``
    (tokens per training sequence) and ``probe_at`` or ``probe_last`` (updates).
    """

    definition: Mapping
    fork: Mapping
    training: Mapping
    total_steps: int
    compute: Mapping = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Step of the checkpoint that the fork leaves from."""
        return self.fork["start"]

    @property
    def stop(self) -> int:
        """Step after the fork's last update."""
        return self.start + self.fork["steps"]

    @property
    def probed_steps(self) -> list[int]:
        """Steps at which the fork is probed, counted back from its end.

        All of the fork, or where ``fork`` has ``probe_last`` that many steps of its end,
        or where it has ``probe_at`` after exactly these numbers of updates.
        """
        if "probe_at" in self.fork:
            return [self.start + done for done in self.fork["probe_at"]]
        every = self.fork["probe_every"]
        span = self.fork.get("probe_last", self.fork["steps"])
        return list(range(self.stop - span + every, self.stop + 1, every))

    @property
    def schedule(self) -> ForkSchedule:
        """Learning rate by absolute step."""
        training = self.training
        baseline = pretraining_schedule(
            training["schedule"], lr_max=training["lr_max"], lr_min=training["lr_min"],
            warmup_steps=training["warmup_steps"], total_steps=self.total_steps,
        )  # fmt: skip
        warm_up = self.fork.get("rewarm_steps", 0)
        return fork_schedule(
            self.definition,
            baseline=baseline,
            start=self.start,
            stop=self.stop,
            rewarm_steps=warm_up if self.fork["optimizer_state"] == "rewarmed" else 0,
        )
