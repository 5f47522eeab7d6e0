"""A condition of the forks: start, stop, saved steps and learning rate of one fork.

A fork starts from one checkpoint of a suite's run and trains on under another schedule. The
configuration makes one ``Condition`` per trained entry. Every job on the fork reads the same one.
"""

from typing import Any

from pydantic import ConfigDict

from flatminima.config_section import Section
from flatminima.schedules import AnySchedule, ForkSchedule, read_schedule


class Condition(Section):
    """Everything that a job needs to know of one fork.

    ``definition`` is an entry of ``fork.schedules`` or ``fork.rivals`` that is trained.
    ``fork``, ``training`` and ``compute`` are the suite's sections of these names, with the
    condition's own changes. ``fork`` may also have ``length`` (tokens per training sequence) and
    either ``probe_at`` or ``probe_last`` (updates). ``total_steps`` is the last step of the
    suite's own run.
    """

    model_config = ConfigDict(frozen=True)

    definition: AnySchedule
    fork: dict[str, Any]
    training: dict[str, Any]
    total_steps: int
    compute: dict[str, Any] = {}

    @property
    def start(self) -> int:
        """Step of the checkpoint that the fork leaves from."""
        return self.fork["start"]

    @property
    def stop(self) -> int:
        """Step after the fork's last update."""
        return self.start + self.fork["steps"]

    @property
    def saved_steps(self) -> list[int]:
        """Steps whose weights are saved and measured.

        ``probe_at`` lists numbers of updates after the start. Without it, every
        ``probe_every`` steps are saved: over the last ``probe_last`` steps, or over the entire
        fork.
        """
        if "probe_at" in self.fork:
            return [self.start + updates for updates in self.fork["probe_at"]]
        probe_every = self.fork["probe_every"]
        probed_steps = self.fork.get("probe_last", self.fork["steps"])
        first_step = self.stop - probed_steps + probe_every
        return list(range(first_step, self.stop + 1, probe_every))

    @property
    def schedule(self) -> ForkSchedule:
        """Learning rate by absolute step."""
        run = read_schedule(self.training, self.total_steps)
        is_rewarmed = self.fork["optimizer_state"] == "rewarmed"
        rewarm_steps = self.fork["rewarm_steps"] if is_rewarmed else 0
        return ForkSchedule(self.definition, run, self.start, self.stop, rewarm_steps)
