"""Checkpoints and settings that rules need for the measurements beyond the paper."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from flatminima.config.keys import CONTROL, AnySuite, block_weights
from flatminima.config.plan import (
    checkpoint_files,
    checkpoint_states,
    ledger_facts,
    training,
    weights,
)
from flatminima.config.plan_forks import branch, fork_measurements, fork_point
from flatminima.config.suites import Suite, chunk_names, range_name
from flatminima.config_section import Section
from flatminima.errors import ConfigError, find

# Measurements whose jobs work on ranges of checkpoints. Each gives a table of its own name.
RANGED = ("factorial", "layers", "sensitivity", "curvature", "activations")
# Tables under mechanism/ from which the findings are made, by measurement.
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
    """Measurements that the suite's configuration requests and that are possible.

    ``phase_flips`` needs a fork schedule with phases, and ``replication`` a suite that is trained
    here. Measurements that use the step between levels need affine quantizers.
    """
    config = suite.config
    has_even_levels = all(
        suite.quantizer(role).kind == "affine" for role in ("low_bit", "high_bit")
    )
    is_possible = {
        "factorial": has_even_levels,
        "sensitivity": has_even_levels,
        "drift": has_even_levels,
        "phase_flips": has_even_levels and config.fork and config.fork.oli,
        "replication": suite.source in ("pretrain", "published"),
    }
    requested = [measure for measure in TABLES if getattr(config.mechanism, measure, None)]
    return [measure for measure in requested if is_possible.get(measure, True)]


def measurement(suite: Suite, measure: str) -> Section:
    """The section of one measurement. ``ConfigError`` if the suite has no such measurement."""
    measures = measured(suite)
    if measure not in measures:
        raise ConfigError(
            f"suite {suite.name} has no mechanism.{measure} in the configuration; it has "
            f"{', '.join(measures) or 'none'}"
        )
    return getattr(suite.config.mechanism, measure)


def measured_steps(suite: Suite, measure: str) -> list[int]:
    """Steps of the checkpoints that a measurement uses: a list, or every n-th from the end."""
    section = measurement(suite, measure)
    # Backwards from the last step, then in rising order again.
    return section.steps or suite.steps[:: -section.every][::-1]


def measure_ranges(suite: Suite, measure: str) -> list[str]:
    """Names of ranges of checkpoints. One job of the measurement works on each range."""
    return chunk_names(measured_steps(suite, measure), measurement(suite, measure).steps_per_job)


def measure_folders(suite: Suite, steps: str, measure: str) -> dict[int, str]:
    """Folders of the checkpoints of one job, by step.

    From a range the measurement uses some steps only. A single step is always measured.
    """
    steps_to_measure = measured_steps(suite, measure)
    job_steps = suite.steps_in(steps)
    if len(job_steps) > 1:
        job_steps = [step for step in job_steps if step in steps_to_measure]
    if not job_steps:
        raise ConfigError(
            f"suite {suite.name}: mechanism.{measure} uses no step of {steps}; "
            f"valid: {range_name(steps_to_measure)} or a single step"
        )
    return {step: suite.folder(step) for step in job_steps}


def measure_files(suite: Suite, steps: str, measure: str) -> list[str]:
    """Files of the checkpoints of one job."""
    folders = measure_folders(suite, steps, measure)
    return checkpoint_files(suite, folders, f"mechanism/{measure}/{steps}.csv")


def measure_states(suite: Suite, steps: str, measure: str) -> dict[str, list[int]]:
    """State of each of these files; see ``checkpoint_states``."""
    return checkpoint_states(suite, measure_folders(suite, steps, measure))


def drift_files(suite: Suite) -> list[str]:
    """Files of the checkpoints that the measurement of drift compares."""
    return checkpoint_files(suite, measured_steps(suite, "drift"), "mechanism/drift.csv")


def drift_states(suite: Suite) -> dict[str, list[int]]:
    """State of each of these files; see ``checkpoint_states``."""
    return checkpoint_states(suite, measured_steps(suite, "drift"))


def measure_weights(suite: Suite, measure: str) -> dict[int, str]:
    """Files of the weights of all checkpoints of a measurement, by step."""
    steps = measured_steps(suite, measure)
    return dict(zip(steps, weights(suite, steps), strict=True))


def measure_settings(suite: Suite, measure: str) -> dict:
    """Settings of a measurement, without its steps: its keys, common keys and quantizers."""
    config = suite.config
    section = measurement(suite, measure)
    settings = section.dump(exclude={"every", "steps", "steps_per_job"})
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
    """Cells of the factorial design that contain the suite's quantizers, by role."""
    measurement(suite, "factorial")  # raises for quantizers that are not affine
    cells = {}
    for role in ("low_bit", "high_bit"):
        quantizer = probed_quantizer(suite, role)
        granularity = quantizer["granularity"]
        if granularity == "group":
            granularity = f"g{quantizer['group_size']}"
        cells[role] = {
            "bits": quantizer["bits"],
            "symmetric": quantizer["symmetric"],
            "granularity": granularity,
        }
    return cells


def phase_flip_inputs(suite: Suite) -> dict[str, str | list[str]]:
    """Files of the checkpoint from which forks start, and the training state if it is restored."""
    optimizer_state = suite.key("fork").optimizer_state
    return fork_point(suite, "mechanism/phase_flips.csv", optimizer_state)


def phase_flip_settings(suite: Suite) -> dict:
    """Settings of the forks with phases and of the control, as they are trained."""
    section = measurement(suite, "phase_flips")
    fork = suite.key("fork")
    return {
        "oli": {name: branch(suite, "forks", name).settings() for name in fork.oli},
        "control": branch(suite, "forks", CONTROL).settings(),
        "seeds": fork.seeds,
        "cycles": section.cycles,
        "device": suite.config.device,
    }


# The replication: small runs like the suite's own.


@dataclass(frozen=True)
class Replica:
    """One small run with its own width, seed and weight decay."""

    suite: Suite
    width: int
    seed: int
    decay: float | None  # weight decay; None: that of the suite

    @property
    def name(self) -> str:
        """``width64-seed0``, followed by ``-decay0.1`` if the run has its own weight decay."""
        suffix = "" if self.decay is None else f"-decay{self.decay:g}"
        return f"width{self.width}-seed{self.seed}{suffix}"

    @property
    def labels(self) -> dict:
        """Labels of the run's rows, and its tokens per step.

        ``weights`` is the number of weights in the linear layers of its blocks.
        """
        training_section = self.suite.config.training
        decay = training_section.weight_decay if self.decay is None else self.decay
        return {
            "suite": self.suite.name,
            "width": self.width,
            "seed": self.seed,
            "weight_decay": decay,
            "weights": block_weights(self.width, self.suite.config.architecture.num_layers),
            "tokens_per_step": training_section.batch_size * self.suite.key("batches.train.length"),
        }

    @property
    def steps(self) -> list[int]:
        """Steps of the probes. Without ``last``, they end when the run has seen enough tokens."""
        section = measurement(self.suite, "replication")
        last = section.last
        if last is None:
            updates = section.steps_of(self.suite.config, self.width)
            # Rounded up to a probe, so that the run ends with one.
            last = section.spacing * math.ceil(updates / section.spacing)
        return list(range(section.spacing, last + 1, section.spacing))

    def folders(self) -> dict[int, str]:
        """Folders of the checkpoints, by step."""
        folder = f"{self.suite.root}/mechanism/replication/checkpoints/{self.name}"
        return {step: f"{folder}/step{step}" for step in self.steps}

    def settings(self) -> dict:
        """Settings that train the run: the suite's own, scaled to its length and width."""
        training_settings = training(self.suite)
        warmup_steps = training_settings["warmup_steps"]
        # The warm-up is the same share of a short run as of the suite's.
        scaled_warmup = round(warmup_steps * self.steps[-1] / self.suite.last)
        training_settings["warmup_steps"] = scaled_warmup
        training_settings |= {key: self.labels[key] for key in ("seed", "weight_decay")}
        return {
            "architecture": self.suite.config.architecture.dump() | {"hidden_size": self.width},
            "vocab_size": self.suite.config.tokenizer.vocab_size,
            "training": training_settings,
            "steps": self.steps,
            "train_sequences": measurement(self.suite, "replication").train_sequences,
        }


def replicas(suite: Suite) -> dict[str, Replica]:
    """All small runs of the replication, by name."""
    section = measurement(suite, "replication")
    combinations = product(section.widths, section.seeds, section.weight_decays or [None])
    runs = [Replica(suite, width, seed, decay) for width, seed, decay in combinations]
    return {run.name: run for run in runs}


def replica(suite: Suite, name: str) -> Replica:
    """A small run by its name. Raises ``ConfigError``."""
    return find(name, replicas(suite), f"suite {suite.name}: small run")


def replica_probe(suite: Suite) -> dict:
    """Settings of the probes of the replication: quantizer, batches and device."""
    section = measurement(suite, "replication")
    return {
        "quantizers": {section.low_bit: suite.quantizers[section.low_bit].dump()},
        "roles": {section.low_bit: "low_bit"},
        "batch_size": suite.config.probe.batch_size,
        "device": "cpu",
        "sequences": section.sequences,
    }


# Findings, and the target extended.


def findings_inputs(suite: Suite) -> dict[str, str]:
    """Tables of the suite's measurements, by name."""
    names = [name for measure in measured(suite) for name in TABLES[measure]]
    return {name: f"{suite.root}/mechanism/{name}.csv" for name in names}


def ledger_tables(suite: Suite) -> dict[str, str]:
    """The factorial for the extended ledger, where the suite measures it."""
    if "factorial" not in measured(suite):
        return {}
    return {"factorial": f"{suite.root}/mechanism/factorial.csv"}


def extended_ledger_facts(suite: Suite) -> dict:
    """``ledger_facts``, with the cell of the factorial that the low-bit quantizer fills."""
    facts = ledger_facts(suite)
    if "factorial" in measured(suite):
        facts["low_bit_cell"] = probed_cells(suite)["low_bit"]
    return facts


def control_outputs(suites: Mapping[str, AnySuite], run: str) -> list[str]:
    """Figure 1, phases and power law of the planted suites that scale the checkpoints of ``run``.

    What was planted is known, so these show whether the measurement finds it.
    """
    names = ["phases.json", "scaling_law.json"]
    names += [f"figures/fig1_audit.{suffix}" for suffix in ("pdf", "svg", "png")]
    return [
        f"results/{suite_name}/{name}"
        for suite_name, suite in suites.items()
        if suite.source == "planted" and suite.scales.run == run
        for name in names
    ]


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
        # Other inputs, such as audit.csv, exist in every suite.
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
