"""Measurements beyond the paper: which checkpoints each one looks at, and its settings."""

from collections.abc import Mapping

from flatminima.errors import ConfigError
from flatminima.planning.facts import FactsPlan
from flatminima.suites import chunk_names, even_steps, range_name

# Measurements made in jobs on ranges of checkpoints; each gives a table of its own name.
RANGED = ("factorial", "layers", "sensitivity", "curvature", "activations")
# Tables under mechanism/ that each measurement ends in, and the figures that need them.
FINDING_TABLES = {
    "factorial": ["factors"],
    "layers": ["layers"],
    "sensitivity": ["sensitivity"],
    "curvature": ["curvature"],
    "activations": ["activations"],
    "drift": ["drift", "displacement"],
    "phase_flips": ["phase_flips"],
    "replication": ["replication"],
}
FIGURES = {
    "fig6_factorial": ["factorial"],
    "fig7_layers": ["layers"],
    "fig9_sensitivity": ["sensitivity"],
    "fig10_curvature": ["curvature"],
    "fig11_drift": ["drift", "phase_flips"],
    "fig12_activations": ["activations"],
    "fig13_replication": ["replication"],
}
_HOW_OFTEN = ("every", "steps", "steps_per_job")


class MechanismPlan(FactsPlan):
    """Measurements beyond the paper: which checkpoints each one looks at, and its settings."""

    @property
    def mechanism(self) -> Mapping:
        """The suite's section ``mechanism``; empty where it has none.

        Without ``phase_flips`` where no fork schedule has phases, without ``replication``
        where the suite is not trained here, and without what looks at the step between
        levels where a quantizer has no such step.
        """
        schedules = self.section.get("fork", {}).get("schedules", {}).values()
        kinds = [spec.get("kind", "affine") for spec in self.probed_quantizers.values()]
        even = set(kinds) == {"affine"}
        possible = {
            **dict.fromkeys(("factorial", "sensitivity", "drift"), even),
            "phase_flips": even and any(schedule["kind"] == "oli" for schedule in schedules),
            "replication": self.section["source"] in ("pretrain", "published"),
        }
        section = self.section.get("mechanism", {})
        return {key: value for key, value in section.items() if possible.get(key, True)}

    def measurement(self, measure: str) -> Mapping:
        """One measurement's entry; one line if the suite has none."""
        if measure not in self.mechanism:
            raise ConfigError(
                f"suite {self.name} has no mechanism.{measure} in the configuration; "
                f"it has {', '.join(m for m in self.mechanism if m != 'batch_size') or 'none'}"
            )
        return self.mechanism[measure]

    def measured_steps(self, measure: str) -> list[int]:
        """Checkpoints that a measurement looks at: those listed, or every n-th from the end."""
        entry = self.measurement(measure)
        if "steps" in entry:
            return list(entry["steps"])
        return self.steps[:: -entry["every"]][::-1]

    def measure_tables(self, measure: str, suffix: str = "csv") -> list[str]:
        """Files of all jobs of a measurement."""
        names = self._job_names(measure)
        return [f"{self.root}/mechanism/{measure}/{name}.{suffix}" for name in names]

    def _job_names(self, measure: str) -> list[str]:
        return chunk_names(self.measured_steps(measure), self.measurement(measure)["steps_per_job"])

    def measure_folders(self, steps: str, measure: str) -> dict[int, str]:
        """Checkpoints of one job by step: those of its range that the measurement looks at.

        A single step is measured whether it is one of these or not.
        """
        wanted, inside = self.measured_steps(measure), self.steps_in(steps)
        chosen = inside if len(inside) == 1 else [s for s in inside if s in wanted]
        if not chosen:
            raise ConfigError(
                f"suite {self.name}: mechanism.{measure} looks at no step of {steps}; "
                f"it looks at {range_name(wanted)} or a single step"
            )
        return {step: self.folder(step) for step in chosen}

    def measure_files(self, steps: str, measure: str) -> list[str]:
        """Weights and configuration of the checkpoints of one job."""
        chosen = self.measure_folders(steps, measure)
        return [path for step in chosen for path in self.checkpoint_files(f"step{step}")]

    def measure_weights(self, *, measure: str) -> dict[int, str]:
        """Weights files of all checkpoints of a measurement that is one job, by step."""
        return {step: self.weights(f"step{step}")[0] for step in self.measured_steps(measure)}

    @property
    def drift_files(self) -> list[str]:
        """Weights of the checkpoints that are followed."""
        return list(self.measure_weights(measure="drift").values())

    @property
    def phase_flip_inputs(self) -> dict[str, str]:
        """Checkpoint that the phases of OLI are followed from."""
        return self._inputs_of("fresh")

    def measure_settings(self, measure: str) -> dict:
        """What a measurement does besides where: its own keys, those of all, its quantizers."""
        entry = self.measurement(measure)
        own = {key: value for key, value in entry.items() if key not in _HOW_OFTEN}
        if measure == "factorial":
            quantizers = {"low": self.probed_cells["low_bit"]}
        elif measure == "sensitivity":
            quantizers = self.probed_quantizers
        elif measure == "curvature":
            quantizers = {"layers": self.kurtosis_layers}
        else:
            quantizers = {"low_bit": self.probed_quantizer(role="low_bit")}
        return {
            **own,
            **quantizers,
            "batch_size": self.mechanism["batch_size"],
            "resamples": self.probe_resamples,
            "device": self.section["device"],
        }

    def probed_quantizer(self, *, role: str) -> dict:
        """Definition of the suite's low-bit or high-bit quantizer."""
        return dict(self.quantizers[self.section["probe"][role]])

    @property
    def probed_quantizers(self) -> dict[str, dict]:
        """Both of them by role."""
        return {role: self.probed_quantizer(role=role) for role in ("low_bit", "high_bit")}

    @property
    def probed_cells(self) -> dict[str, dict]:
        """Where the suite's two probes lie in the factorial design, by role."""
        return {
            role: {"bits": spec["bits"], "symmetric": spec["symmetric"],
                   "granularity": f"g{spec['group_size']}" if spec["granularity"] == "group"
                   else spec["granularity"]}
            for role, spec in self.probed_quantizers.items()
        }  # fmt: skip

    @property
    def phase_flip_settings(self) -> dict:
        """Fork point, schedules and training that the phases of OLI are followed with."""
        fork = self.section["fork"]
        training = {k: v for k, v in self.training.items() if k not in ("seed", "batch_size")}
        return {
            "schedules": {k: dict(v) for k, v in fork["schedules"].items() if v["kind"] == "oli"},
            "start": fork["start"],
            "batch_size": fork["batch_size"],
            "training": training,
            "total_steps": self.last,
            "seeds": fork["seeds"],
            "cycles": self.measurement("phase_flips")["cycles"],
            "device": self.section["device"],
        }

    @property
    def replicas(self) -> list[dict]:
        """Suite, width and seed of all runs of the replication."""
        entry = self.measurement("replication")
        return [
            {"suite": self.name, "width": width, "seed": seed}
            for width in entry["widths"]
            for seed in entry["seeds"]
        ]

    def replica_files(self, suffix: str) -> list[str]:
        """Tables (csv) or per-sequence scores (parquet) of all of them."""
        pattern = f"{self.root}/mechanism/replication/width{{width}}-seed{{seed}}.{suffix}"
        return [pattern.format(**replica) for replica in self.replicas]

    def replica_folders(self, width: str, seed: str) -> dict[int, str]:
        """Checkpoints of one of them by step."""
        folder = f"{self.root}/mechanism/replication/checkpoints/width{width}-seed{seed}"
        return {step: f"{folder}/step{step}" for step in self._replica_steps}

    @property
    def _replica_steps(self) -> list[int]:
        entry = self.measurement("replication")
        return even_steps(spacing=entry["spacing"], last=entry["last"])

    def replica_settings(self, width: str) -> dict:
        """Training of one run of the replication but its seed."""
        entry = self.measurement("replication")
        training = {k: v for k, v in self.training.items() if k != "seed"}
        training["warmup_steps"] = round(training["warmup_steps"] * entry["last"] / self.last)
        return {
            "architecture": {**self.section["architecture"], "hidden_size": int(width)},
            "vocab_size": self.vocab_size,
            "training": training,
            "steps": self._replica_steps,
            "train_sequences": entry["train_sequences"],
        }

    @property
    def replica_probe(self) -> dict:
        """Quantizer and batches that the runs of the replication are probed with."""
        entry = self.measurement("replication")
        name = entry["low_bit"]
        return {
            "quantizers": {name: dict(self.quantizers[name])},
            "roles": {name: "low_bit"},
            "batch_size": self.section["probe"]["batch_size"],
            "device": "cpu",
            "sequences": entry["sequences"],
            "resamples": self.probe_resamples,
        }

    @property
    def replica_spacing(self) -> int:
        """Steps between two probes of a run of the replication."""
        return self.measurement("replication")["spacing"]

    @property
    def low_bit_name(self) -> str:
        """Name of the suite's low-bit quantizer."""
        return self.section["probe"]["low_bit"]

    @property
    def activation_bits(self) -> int:
        """Bits of a rounded activation."""
        return self.measurement("activations")["bits"]

    @property
    def findings_inputs(self) -> dict[str, str]:
        """Tables of the measurements that the suite makes, by name."""
        return {
            name: f"{self.root}/mechanism/{name}.csv"
            for measure, names in FINDING_TABLES.items()
            if measure in self.mechanism
            for name in names
        }

    @property
    def extended_measurements(self) -> dict[str, str]:
        """What the ledger reads beyond `all`, by its name there."""
        found = {"mechanism": f"{self.root}/mechanism/findings.csv"}
        return found | self.fork_measurements

    @property
    def extended_outputs(self) -> list[str]:
        """Everything beyond the paper that the suite's configuration asks for."""
        asked = [m for m in FINDING_TABLES if m in self.mechanism]
        if not asked:
            return self.extended_forks
        figures = [
            f"figures/{figure}.{suffix}"
            for figure, needed in FIGURES.items()
            if set(needed) <= set(asked)
            for suffix in ("pdf", "svg", "png")
        ]
        names = ["mechanism/findings.csv", *figures]
        if self.has_forks and self.is_even:
            names += [f"claims_extended.{suffix}" for suffix in ("csv", "md", "html")]
        if set(asked) == set(FINDING_TABLES) and "rivals" in self.fork_measurements:
            names.append("notebooks/mechanism.html")
        return [*self.extended_forks, *(f"{self.root}/{name}" for name in names)]
