"""What rules ask of the measurements beyond the paper: which checkpoints, with which settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from flatminima.config.keys import CONTROL, block_weights
from flatminima.config.plan import checkpoint_files, checkpoint_states, training, weights
from flatminima.config.plan_forks import branch, fork_measurements, fork_point
from flatminima.config.suites import Suite, chunk_names, range_name
from flatminima.config_section import Section
from flatminima.errors import ConfigError, find

# Measurements made in jobs on ranges of checkpoints; each gives a table of its own name.
RANGED = ("factorial", "layers", "sensitivity", "curvature", "activations")
# Tables under mechanism/ that the findings are made from, by measurement.
TABLES = {
    **{measure: [measure] for measure in RANGED},
    "factorial": ["factors"],
    "drift": ["drift", "displacement"],
    "phase_flips": ["phase_flips"],
    "replication": ["replication"],
}
# Further tables under mechanism/ that only figures read, by measurement.
FIGURE_TABLES = {"factorial": ["factorial"], "replication": ["replication_runs"]}


def measured(suite: Suite) -> list[str]:
    """Measurements that the suite's configuration asks for and that can be made.

    Without ``phase_flips`` where no fork schedule has phases, without ``replication``
    where the suite is not trained here, and without what looks at the step between
    levels where a quantizer has no such step.
    """
    config = suite.config
    even = all(suite.quantizer(role).kind == "affine" for role in ("low_bit", "high_bit"))
    possible = dict.fromkeys(("factorial", "sensitivity", "drift"), even) | {
        "phase_flips": even and config.fork and config.fork.oli,
        "replication": suite.source in ("pretrain", "published"),
    }
    return [m for m in TABLES if getattr(config.mechanism, m, None) and possible.get(m, True)]


def measurement(suite: Suite, measure: str) -> Section:
    """One measurement's entry; one line if the suite has none."""
    if measure not in (known := measured(suite)):
        has = f"has no mechanism.{measure} in the configuration; it has"
        raise ConfigError(f"suite {suite.name} {has} {', '.join(known) or 'none'}")
    return getattr(suite.config.mechanism, measure)


def measured_steps(suite: Suite, measure: str) -> list[int]:
    """Checkpoints that a measurement looks at: those listed, or every n-th from the end."""
    entry = measurement(suite, measure)
    return entry.steps or suite.steps[:: -entry.every][::-1]


def measure_ranges(suite: Suite, measure: str) -> list[str]:
    """Names of the ranges that one job of a measurement each works on."""
    return chunk_names(measured_steps(suite, measure), measurement(suite, measure).steps_per_job)


def measure_folders(suite: Suite, steps: str, measure: str) -> dict[int, str]:
    """Checkpoints of one job by step: those of its range that the measurement looks at.

    A single step is measured whether it is one of these or not.
    """
    wanted, inside = measured_steps(suite, measure), suite.steps_in(steps)
    chosen = inside if len(inside) == 1 else [step for step in inside if step in wanted]
    if not chosen:
        looks = f"looks at no step of {steps}; valid: {range_name(wanted)} or a single step"
        raise ConfigError(f"suite {suite.name}: mechanism.{measure} {looks}")
    return {step: suite.folder(step) for step in chosen}


def measure_files(suite: Suite, steps: str, measure: str) -> list[str]:
    """Files of the checkpoints of one job."""
    looked_at = measure_folders(suite, steps, measure)
    return checkpoint_files(suite, looked_at, f"mechanism/{measure}/{steps}.csv")


def measure_states(suite: Suite, steps: str, measure: str) -> dict[str, list[int]]:
    """State of each of them in a local suite."""
    return checkpoint_states(suite, measure_folders(suite, steps, measure))


def drift_files(suite: Suite) -> list[str]:
    """Files of the checkpoints whose weights are followed."""
    return checkpoint_files(suite, measured_steps(suite, "drift"), "mechanism/drift.csv")


def drift_states(suite: Suite) -> dict[str, list[int]]:
    """State of each of them in a local suite."""
    return checkpoint_states(suite, measured_steps(suite, "drift"))


def measure_weights(suite: Suite, measure: str) -> dict[int, str]:
    """Weights files of all checkpoints of a measurement that is one job, by step."""
    steps = measured_steps(suite, measure)
    return dict(zip(steps, weights(suite, steps), strict=True))


def measure_settings(suite: Suite, measure: str) -> dict:
    """What a measurement does besides where: its own keys, those of all, its quantizers."""
    entry, config = measurement(suite, measure), suite.config
    settings = entry.dump(exclude={"every", "steps", "steps_per_job"})
    if measure == "factorial":
        settings["low"] = probed_cells(suite)["low_bit"]
    elif measure == "sensitivity":
        settings |= {role: probed_quantizer(suite, role) for role in ("low_bit", "high_bit")}
    elif measure == "curvature":
        settings["layers"] = config.kurtosis.layers
    else:
        settings["low_bit"] = probed_quantizer(suite)
    return settings | {
        "batch_size": config.mechanism.batch_size,
        "resamples": config.probe.resamples,
        "device": config.device,
    }


def probed_quantizer(suite: Suite, role: str = "low_bit") -> dict:
    """Definition of the suite's low-bit or high-bit quantizer."""
    return suite.quantizer(role).dump()


def probed_cells(suite: Suite) -> dict[str, dict]:
    """Where the suite's two probes lie in the factorial design, by role."""
    measurement(suite, "factorial")  # takes apart what affine quantizers have
    found = {}
    for role in ("low_bit", "high_bit"):
        spec = probed_quantizer(suite, role)
        group = f"g{spec['group_size']}" if spec["granularity"] == "group" else spec["granularity"]
        found[role] = {"bits": spec["bits"], "symmetric": spec["symmetric"], "granularity": group}
    return found


def phase_flip_inputs(suite: Suite) -> dict[str, str | list[str]]:
    """Files of the checkpoint that the forks leave from, and the run's state if it is restored."""
    optimizer_state = suite.key("fork").optimizer_state
    return fork_point(suite, "mechanism/phase_flips.csv", optimizer_state)


def phase_flip_settings(suite: Suite) -> dict:
    """The forks whose phases are followed, as they are trained, and the control."""
    entry = measurement(suite, "phase_flips")
    fork = suite.key("fork")
    return {
        "oli": {name: branch(suite, "forks", name).settings() for name in fork.oli},
        "control": branch(suite, "forks", CONTROL).settings(),
        "seeds": fork.seeds,
        "cycles": entry.cycles,
        "device": suite.config.device,
    }


# The replication: small runs like the suite's own.


@dataclass(frozen=True)
class Replica:
    """One small run, of another width, seed or weight decay."""

    suite: Suite
    width: int
    seed: int
    decay: float | None  # in place of the suite's own

    @property
    def name(self) -> str:
        """``width64-seed0``, with ``-decay0.1`` where that is asked for."""
        decay = "" if self.decay is None else f"-decay{self.decay:g}"
        return f"width{self.width}-seed{self.seed}{decay}"

    @property
    def about(self) -> dict:
        """What its rows are labelled with, and its tokens per step.

        ``weights`` are those of the linear layers of its blocks.
        """
        own = self.suite.config.training
        return {
            "suite": self.suite.name,
            "width": self.width,
            "seed": self.seed,
            "weight_decay": own.weight_decay if self.decay is None else self.decay,
            "weights": block_weights(self.width, self.suite.config.architecture.num_layers),
            "tokens_per_step": own.batch_size * self.suite.key("batches.train.length"),
        }

    @property
    def steps(self) -> list[int]:
        """Steps that are probed: up to ``last``, or the first that has seen enough tokens."""
        entry = measurement(self.suite, "replication")
        last = entry.last
        if last is None:
            updates = entry.steps_of(self.suite.config, self.width)
            last = entry.spacing * math.ceil(updates / entry.spacing)
        return list(range(entry.spacing, last + 1, entry.spacing))

    def folders(self) -> dict[int, str]:
        """Checkpoints by step."""
        folder = f"{self.suite.root}/mechanism/replication/checkpoints/{self.name}"
        return {step: f"{folder}/step{step}" for step in self.steps}

    def settings(self) -> dict:
        """Its training."""
        own, about = training(self.suite), self.about
        own["warmup_steps"] = round(own["warmup_steps"] * self.steps[-1] / self.suite.last)
        return {
            "architecture": self.suite.config.architecture.dump() | {"hidden_size": self.width},
            "vocab_size": self.suite.config.tokenizer.vocab_size,
            "training": own | {key: about[key] for key in ("seed", "weight_decay")},
            "steps": self.steps,
            "train_sequences": measurement(self.suite, "replication").train_sequences,
        }


def replicas(suite: Suite) -> dict[str, Replica]:
    """All runs of the replication by name."""
    entry = measurement(suite, "replication")
    runs = product(entry.widths, entry.seeds, entry.weight_decays or [None])
    return {run.name: run for run in (Replica(suite, *one) for one in runs)}


def replica(suite: Suite, name: str) -> Replica:
    """One of them; one line where there is none of that name."""
    return find(name, replicas(suite), f"suite {suite.name}: small run")


def replica_probe(suite: Suite) -> dict:
    """Quantizer and batches that the runs of the replication are probed with."""
    entry = measurement(suite, "replication")
    return {
        "quantizers": {entry.low_bit: suite.quantizers[entry.low_bit].dump()},
        "roles": {entry.low_bit: "low_bit"},
        "batch_size": suite.config.probe.batch_size,
        "device": "cpu",
        "sequences": entry.sequences,
    }


# Findings, and the target extended.


def findings_inputs(suite: Suite) -> dict[str, str]:
    """Tables of the measurements that the suite makes, by name."""
    names = [name for measure in measured(suite) for name in TABLES[measure]]
    return {name: f"{suite.root}/mechanism/{name}.csv" for name in names}


def extended_outputs(suite: Suite, figures: Mapping[str, list[str]]) -> list[str]:
    """Everything beyond the paper that the suite's configuration requests.

    ``figures`` maps the stems of figures beyond the paper to the files they are drawn from.
    """
    config = suite.config
    measures = measured(suite)
    paths_of_forks = fork_measurements(suite)
    tables = {f"{name}.csv" for name in paths_of_forks}
    for measure in measures:
        names = [*TABLES[measure], *FIGURE_TABLES.get(measure, ())]
        tables |= {f"mechanism/{name}.csv" for name in names}

    # A figure is made if all its inputs beyond the paper are.
    stems = []
    for stem, files in figures.items():
        needed = [file for file in files if file.startswith(("mechanism/", "rivals"))]
        if tables.issuperset(needed):
            stems.append(f"{suite.root}/figures/{stem}")
    if measures and config.mechanism.second_arm:
        stems.append(f"results/{config.mechanism.second_arm}/figures/fig15_tokens")

    names = []
    if measures:
        names.append("mechanism/findings.csv")
    if measures and config.fork and suite.is_even:
        names += [f"claims_extended.{suffix}" for suffix in ("csv", "md", "html")]
    if set(measures) == set(TABLES) and "rivals" in paths_of_forks:
        names.append("notebooks/mechanism.html")

    figure_files = [f"{stem}.{suffix}" for stem in stems for suffix in ("pdf", "svg", "png")]
    other_files = [f"{suite.root}/{name}" for name in names]
    return [*paths_of_forks.values(), *figure_files, *other_files]
