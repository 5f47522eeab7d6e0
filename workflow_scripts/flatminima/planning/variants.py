"""Conditions that the paper does not have: rivals, other amplitudes, its pilot."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from flatminima.errors import ConfigError, suggest
from flatminima.planning.forks import ForkPlan, seeded
from flatminima.schedules import AverageKind, Condition, ScheduleKind, read_kind
from flatminima.suite import CHECKPOINT_FILES

CALIBRATION_BATCHES = 16  # of the fork's own, over which gradients are averaged


@dataclass(frozen=True)
class Variant:
    """A trained condition: its schedule, what it changes in the suite's sections, its labels."""

    definition: Mapping
    fork: Mapping
    labels: Mapping

    def trains_as(self, other: "Variant") -> bool:
        """Whether both are one trajectory: alike in all but their labels."""
        return replace(self, labels={}) == replace(other, labels={})


class VariantPlan(ForkPlan):
    """Conditions that the paper does not have: rivals, other amplitudes, its pilot."""

    @property
    def variant_seeds(self) -> list[int]:
        """Data orders of these conditions."""
        fork = self.section["fork"]
        return list(fork.get("rival_seeds", fork["seeds"]))

    @cached_property
    def _rivals(self) -> dict[str, Variant]:
        found = {}
        for name, rival in self.section["fork"].get("rivals", {}).items():
            kind = read_kind(rival)
            if isinstance(kind, ScheduleKind):
                offsets = kind.settled(self.section["fork"]["steps"])
                found[name] = Variant(rival, {"probe_at": offsets}, {})
        return found

    @cached_property
    def _amplitudes(self) -> dict[str, Variant]:
        """OLI at each amplitude and cadence; bump first, so that a fork ends on a cool phase."""
        fork = self.section["fork"]
        found = {}
        for value in fork.get("amplitudes", []):
            for period, cycle in cadences(fork).items():
                definition = {"kind": "oli", **cycle, "amplitude": value, "first": "bump"}
                found[f"oli_x{value:g}_p{period}"] = Variant(
                    definition,
                    {"probe_at": read_kind(definition).settled(fork["steps"])},
                    {"amplitude": value, "period": period},
                )
        return found

    @cached_property
    def _pilot(self) -> dict[str, Variant]:
        """The paper's pilot and the four or six arms that take it apart (appendix B)."""
        fork = self.section["fork"]
        pilot = fork.get("pilot")
        if pilot is None:
            return {}
        states = ["fresh", "rewarmed"]
        if fork["start"] in self.section["training"].get("jobs_end_at", []):
            states += ["restored"]
        own, equal = pilot_batches(fork, pilot["length"], self.train_length)
        arms = [(pilot["length"], own, "fresh")]
        arms += [
            (length, batch, state)
            for length, batch in ((pilot["length"], equal), (self.train_length, own))
            for state in states
        ]
        times = {key: pilot[key] for key in ("steps", "probe_every")}
        return {
            f"pilot_{length}x{batch}_{state}": Variant(
                {"kind": "cosine"},
                {
                    **times, "length": length, "batch_size": batch, "optimizer_state": state,
                    "rewarm_steps": pilot["rewarm_steps"],
                },
                {"length": length, "batch_size": batch, "optimizer_state": state},
            )
            for length, batch, state in arms
        }  # fmt: skip

    @cached_property
    def _variants(self) -> dict[str, Variant]:
        return self._rivals | self._amplitudes | self._pilot

    def _variant(self, name: str) -> Variant:
        known = self._variants
        if name not in known:
            raise ConfigError(
                f"suite {self.name}: condition {name!r} is not known; {suggest(name, list(known))}"
            )
        return known[name]

    # What rules ask of a condition: the schedules of the forks, the cycles, or a variant.

    def condition_settings(self, series: str, condition: str) -> dict:
        """What a condition's weights depend on besides its seed and its inputs."""
        if series == "forks":
            return self.fork_settings(condition)
        if series == "cycles":
            return self.cycle_settings(condition)
        variant = self._variant(condition)
        return self._settings_of(variant.definition, variant.fork)

    def condition_inputs(self, series: str, condition: str) -> dict[str, str]:
        """The checkpoint that a condition leaves from, and the run's state if it is restored."""
        return self._inputs_of(
            self.condition_settings(series, condition)["fork"]["optimizer_state"]
        )

    def condition_key(self, series: str, condition: str) -> str:
        """The key of the configuration that decides how fast a condition learns."""
        fork = self.section["fork"]
        if series != "variants":
            schedules = [name for name in fork["schedules"] if condition.startswith(name)]
            return f"fork.schedules.{max(schedules, key=len)}"
        if condition in fork.get("rivals", {}):
            return f"fork.rivals.{condition}"
        return "fork.amplitudes" if condition in self._amplitudes else "training.lr_max"

    def condition_steps(self, series: str, condition: str) -> list[int]:
        """Steps whose weights are measured."""
        return Condition(**self.condition_settings(series, condition)).saved_steps

    def condition_folders(self, series: str, condition: str, seed: str) -> dict[int, str]:
        """Checkpoints of a condition by their step."""
        folder = f"{self.root}/{series}/checkpoints/{condition}-seed{seed}"
        return {s: f"{folder}/step{s}" for s in self.condition_steps(series, condition)}

    def condition_weights(self, series: str, condition: str, seed: str) -> list[str]:
        """Weights of a condition in step order."""
        folders = self.condition_folders(series, condition, seed).values()
        return [f"{folder}/{CHECKPOINT_FILES[0]}" for folder in folders]

    def condition_labels(self, series: str, condition: str) -> dict:
        """Columns that tell a condition from the others of its table."""
        return dict(self._variant(condition).labels) if series == "variants" else {}

    def condition_length(self, series: str, condition: str) -> int:
        """Tokens per training sequence of a condition."""
        fork = self.condition_settings(series, condition)["fork"]
        return fork.get("length", self.train_length)

    def trajectory(self, series: str, condition: str, seed: str) -> dict[str, str]:
        """Scores and losses of a condition; two that train alike are trained once."""
        if series == "variants":
            own, known = self._variant(condition), self._amplitudes | self._variants
            # The amplitudes come first.
            condition = next(name for name, other in known.items() if other.trains_as(own))
        folder = f"{self.root}/{series}"
        return {
            "sequences": f"{folder}/{condition}-seed{seed}.parquet",
            "losses": f"{folder}/losses/{condition}-seed{seed}.csv",
        }

    def trajectories(self, gathered: str) -> list[str]:
        """Tables of all conditions of one gathered table."""
        tables = {"forks": "forks", "cycles": "cycles", "pilot": "pilot_tables"}
        return getattr(self, tables.get(gathered, "amplitude_tables"))

    def _tables(self, key: str, variants: Mapping[str, Variant]) -> list[str]:
        if not variants:
            raise ConfigError(f"suite {self.name}: config key fork.{key} is needed for this target")
        return seeded(
            f"{self.root}/variants/{{name}}-seed{{seed}}.csv", variants, self.variant_seeds
        )

    @property
    def pilot_tables(self) -> list[str]:
        """Trajectories of the pilot's arms."""
        return self._tables("pilot", self._pilot)

    @property
    def amplitude_tables(self) -> list[str]:
        """Trajectories of OLI at all amplitudes and cadences."""
        return self._tables("amplitudes", self._amplitudes)

    @property
    def rival_tables(self) -> list[str]:
        """Trajectories of the trained rivals, and what the averages come to."""
        rivals = self.section["fork"].get("rivals", {})
        averages = [n for n, rival in rivals.items() if isinstance(read_kind(rival), AverageKind)]
        trained = self._tables("rivals", self._rivals) if self._rivals or not averages else []
        return trained + [f"{self.root}/averages/{name}.csv" for name in averages]

    def average_steps(self, name: str) -> list[int]:
        """Revisions that a rival without training is made from, in order."""
        fork, kind = self.section["fork"], read_kind(self.average_definition(name))
        end = fork["start"] + fork["steps"]
        for _, mistake in kind.mistakes(self.steps, fork["start"], end):
            raise ConfigError(f"suite {self.name}: fork.rivals.{name}: {mistake}")
        return kind.steps(self.steps, fork["start"], end)

    def average_definition(self, name: str) -> dict:
        """A rival without training; one line where there is none of this name."""
        rivals = self.section["fork"].get("rivals", {})
        known = {n: r for n, r in rivals.items() if isinstance(read_kind(r), AverageKind)}
        if name not in known:
            raise ConfigError(
                f"suite {self.name}: average {name!r} is not known; {suggest(name, list(known))}"
            )
        return dict(known[name])

    def average_files(self, name: str) -> list[str]:
        """Checkpoints that a rival without training is made from."""
        steps = self.average_steps(name)
        return [path for step in steps for path in self.checkpoint_files(f"step{step}")]

    def average_folders(self, name: str) -> list[str]:
        """The same as folders, in step order."""
        return [self.folder(step) for step in self.average_steps(name)]

    @property
    def calibration_inputs(self) -> dict[str, str]:
        """The checkpoint of the fork point, and the run's moments there if they exist."""
        start = self.section["fork"]["start"]
        has_state = start in self.section["training"].get("jobs_end_at", [])
        return self._inputs_of("restored" if has_state else "fresh")

    @property
    def calibration_settings(self) -> dict:
        """What the amplitude of the first OLI schedule is derived from."""
        fork, training = self.section["fork"], self.section["training"]
        bumps = [d["bump_steps"] for d in fork["schedules"].values() if d["kind"] == "oli"]
        if not bumps:
            raise ConfigError(f"suite {self.name}: fork.schedules has no schedule of kind oli")
        settings = Condition({"kind": "cosine"}, fork, training, self.last)
        return {
            "quantizer": dict(self.quantizers[self.section["probe"]["low_bit"]]),
            "start": fork["start"],
            "batch_size": fork["batch_size"],
            "batches": CALIBRATION_BATCHES,
            "rate": settings.schedule(fork["start"]),
            "bump": bumps[0],
            "training": {key: training[key] for key in ("beta1", "beta2", "eps")},
        }

    @property
    def fork_measurements(self) -> dict[str, str]:
        """What the ledger reads of these conditions, by its name there."""
        if not self.has_forks:
            return {}
        keys = [key for key in ("pilot", "amplitudes", "rivals") if key in self.section["fork"]]
        found = {key: f"{self.root}/{key}.csv" for key in keys}
        return found | {"calibration": f"{self.root}/calibration.json"}

    @property
    def extended_forks(self) -> list[str]:
        """What the target `extended` has of the forks."""
        names = list(self.fork_measurements.values())
        if "rivals" in self.fork_measurements:
            figure = f"{self.root}/figures/fig8_rivals"
            names += [f"{figure}.{suffix}" for suffix in ("pdf", "svg", "png")]
        return names


def cadences(fork: Mapping) -> dict[int, dict[str, int]]:
    """Cycles of OLI by their period: its own, and the period of each SGDR at the same share.

    The share of a cycle that is a bump is that of the first OLI schedule; empty without one.
    """
    definitions = list(fork["schedules"].values())
    oli = next((d for d in definitions if d["kind"] == "oli"), None)
    if oli is None:
        return {}
    own = oli["bump_steps"] + oli["cool_steps"]
    periods = [own, *(d["period"] for d in definitions if d["kind"] == "sgdr")]
    found = {}
    for period in periods:
        bump = max(1, round(period * oli["bump_steps"] / own))
        found[period] = {"bump_steps": bump, "cool_steps": max(1, period - bump)}
    return found


def pilot_batches(fork: Mapping, length: int, train_length: int) -> tuple[int, int]:
    """Sequences per update: the fork's own, and as many of ``length`` as have the same tokens."""
    return fork["batch_size"], fork["batch_size"] * train_length // length
