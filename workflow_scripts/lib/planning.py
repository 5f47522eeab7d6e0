"""What a suite of the configuration means in files and settings.

A ``SuitePlan`` turns one checked entry of ``config.yaml`` into the paths and the
parameter values of its rules. Parameters hold only the keys that the job reads, so
that a change of another key reruns nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from workflow_scripts.lib.config import ConfigError, find_schedule, suite_steps
from workflow_scripts.lib.corpus import package_versions
from workflow_scripts.lib.suite import CHECKPOINT_FILES, chunk_names, parse_range

SCHEDULE_KEYS = ("schedule", "lr_max", "lr_min", "warmup_steps")


@dataclass(frozen=True)
class PretrainingJob:
    """One training job of a suite that is trained here: from ``start`` to ``stop``."""

    suite: str
    start: int
    stop: int
    inputs: dict[str, str]
    files: list[str]
    checkpoints: dict[int, str]
    settings: dict
    threads: int


@dataclass(frozen=True)
class SuitePlan:
    """One suite: ``name`` and its section of the configuration; ``quantizers`` by name."""

    name: str
    section: Mapping
    quantizers: Mapping[str, Mapping]

    @property
    def root(self) -> str:
        """Folder of everything the suite has."""
        return f"results/{self.name}"

    @cached_property
    def steps(self) -> list[int]:
        """Revisions in order."""
        return suite_steps(self.section)

    @property
    def last(self) -> int:
        """Last step of the suite's run."""
        return self.section["grid"]["last"]

    @property
    def spacing(self) -> int:
        """Steps between the evenly spaced revisions."""
        return self.section["grid"]["spacing"]

    @property
    def probe_resamples(self) -> int:
        """Bootstrap resamples of gap intervals."""
        return self.section["probe"]["resamples"]

    @property
    def phase_resamples(self) -> int:
        """Bootstrap resamples of the steps of convergence and onset."""
        return self.section["phases"]["resamples"]

    @property
    def threads(self) -> int:
        """CPU threads of a training or probing job."""
        return self.section["threads"]

    @property
    def gpus(self) -> int:
        """GPUs that a training or probing job asks for: one where the device is cuda."""
        return int(self.section["device"] == "cuda")

    # Ranges of revisions

    def steps_in(self, name: str) -> list[int]:
        """Steps of ``step70000`` or ``step60000-step75000``; one line if it is off the grid."""
        try:
            return parse_range(name, self.steps)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

    def _each_range(self, pattern: str) -> list[str]:
        """``pattern`` for each range of revisions that one job works on."""
        names = chunk_names(self.steps, self.section["probe"]["steps_per_job"])
        return [f"{self.root}/{pattern.format(steps=name)}" for name in names]

    @property
    def probe_tables(self) -> list[str]:
        """Probes of all revisions."""
        return self._each_range("probes/{steps}.csv")

    @property
    def probe_sequences(self) -> list[str]:
        """Per-sequence scores of all revisions."""
        return self._each_range("probes/{steps}.parquet")

    @property
    def kurtosis_tables(self) -> list[str]:
        """Kurtosis of all revisions."""
        return self._each_range("kurtosis/{steps}.csv")

    @property
    def revision_tables(self) -> list[str]:
        """Descriptions of all revisions."""
        return self._each_range("revisions/{steps}.csv")

    def folder(self, step: int) -> str:
        """Checkpoint of one step, in Hugging Face format."""
        return f"{self.root}/checkpoints/step{step}"

    def folders(self, steps: str) -> dict[int, str]:
        """Checkpoints of a range, by step."""
        return {step: self.folder(step) for step in self.steps_in(steps)}

    def checkpoint_files(self, steps: str) -> list[str]:
        """Weights and configuration of each checkpoint of a range."""
        return [f"{path}/{f}" for path in self.folders(steps).values() for f in CHECKPOINT_FILES]

    def weights(self, steps: str) -> list[str]:
        """Weights of each checkpoint of a range, in step order."""
        return [f"{path}/model.safetensors" for path in self.folders(steps).values()]

    def commits(self, steps: str) -> list[str]:
        """Records of the hub commits of a range; none where the suite is trained here."""
        if self.section["source"] != "hub":
            return []
        return [f"{self.root}/revisions/commits/step{s}.json" for s in self.steps_in(steps)]

    # Settings that jobs read

    @property
    def text(self) -> dict:
        """Where documents come from, and how many tokens a hub source must give."""
        text = dict(self.section["text"])
        if text["source"] == "packages":
            return {"text": text, "installed": package_versions(text["packages"])}
        wanted = {s: b["sequences"] * b["length"] for s, b in self.section["batches"].items()}
        return {"text": text, "tokens": wanted}

    @property
    def vocab_size(self) -> int:
        """Entries of the tokenizer that is trained for the suite."""
        return self.section["tokenizer"]["vocab_size"]

    @property
    def tokenizer_repo(self) -> str:
        """Hub model whose tokenizer the suite takes."""
        return self.section["tokenizer"]["repo"]

    def repo(self, step: str) -> str:
        """Hub model that the revision of ``step`` is in; one line if the step is off the grid."""
        self.steps_in(f"step{step}")
        return self.section["repo"]

    @property
    def batches(self) -> dict:
        """Sequences and length of each split."""
        return {split: dict(batches) for split, batches in self.section["batches"].items()}

    @property
    def kurtosis_layers(self) -> str:
        """Layers whose kurtosis is measured."""
        return self.section["kurtosis"]["layers"]

    @property
    def training(self) -> dict:
        """How the suite is trained, without how its training is cut into jobs."""
        unread = ("jobs_end_at", "save_every")
        return {k: v for k, v in self.section["training"].items() if k not in unread}

    @property
    def schedule(self) -> dict:
        """What decides the learning rate of the suite's own run."""
        return {k: self.section["training"][k] for k in SCHEDULE_KEYS}

    @property
    def save_every(self) -> int:
        """Updates between two saved states of a training job."""
        return self.section["training"]["save_every"]

    @property
    def tokens_per_step(self) -> int:
        """Training tokens per update of the suite's own run."""
        return self.section["training"]["batch_size"] * self.section["batches"]["train"]["length"]

    @property
    def probe(self) -> dict:
        """Definitions and roles of the quantizers, and how a probe is run."""
        probe = self.section["probe"]
        roles = {probe["low_bit"]: "low_bit", probe["high_bit"]: "high_bit"}
        return {
            "quantizers": {name: dict(self.quantizers[name]) for name in roles},
            "roles": roles,
            "batch_size": probe["batch_size"],
            "resamples": probe["resamples"],
            "device": self.section["device"],
        }

    @property
    def facts(self) -> dict:
        """What tables, figures and notebooks need to know of the suite."""
        return {
            "name": self.name,
            "label": self.section["label"],
            "is_paper_model": self.section["is_paper_model"],
            "spacing": self.spacing,
        }

    @property
    def fork_facts(self) -> dict:
        """What a drawing of the forks needs besides: every schedule, at every update."""
        read = ("start", "steps", "probe_every", "schedules")
        fork = {key: self.section["fork"][key] for key in read}
        return {**self.facts, "training": self.schedule, "fork": fork, "last": self.last}

    @property
    def ledger_facts(self) -> dict:
        """What the ledger of claims needs to know of the suite."""
        unread = ("optimizer_state", "phase_resolved")
        return {
            **self.facts,
            **self.section["grid"],
            **self.schedule,
            "tokens_per_step": self.tokens_per_step,
            "fork": {k: v for k, v in self.section["fork"].items() if k not in unread},
        }

    @property
    def search_settings(self) -> dict:
        """What the search for the embedded suite's free numbers holds fixed."""
        return {
            "architecture": dict(self.section["architecture"]),
            "vocab_size": self.vocab_size,
            "training": self.training,
            "grid": dict(self.section["grid"]),
        }

    # Training jobs

    @property
    def pretraining_jobs(self) -> list[PretrainingJob]:
        """The jobs that train the suite one after another; none for a hub suite."""
        if self.section["source"] != "pretrain":
            return []
        ends = [0, *self.section["training"]["jobs_end_at"]]
        return [self._pretraining_job(start, stop) for start, stop in pairwise(ends)]

    def _pretraining_job(self, start: int, stop: int) -> PretrainingJob:
        due = [s for s in self.steps if start < s <= stop or s == start == 0]
        inputs = {"train": f"{self.root}/data/train.safetensors"}
        if start:
            inputs["state"] = f"{self.root}/training/step{start}.safetensors"
        return PretrainingJob(
            suite=self.name,
            start=start,
            stop=stop,
            inputs=inputs,
            files=[f"{self.folder(step)}/{file}" for step in due for file in CHECKPOINT_FILES],
            checkpoints={step: self.folder(step) for step in due},
            settings={
                "architecture": dict(self.section["architecture"]),
                "vocab_size": self.vocab_size,
                "training": self.training,
                "total_steps": self.last,
                "start": start,
                "stop": stop,
            },
            threads=self.threads,
        )

    # Forks

    @property
    def forks(self) -> list[str]:
        """Trajectories of all schedules and seeds of the configuration."""
        fork = self.section["fork"]
        return [
            f"{self.root}/forks/{schedule}-seed{seed}.csv"
            for schedule in fork["schedules"]
            for seed in fork["seeds"]
        ]

    def fork_inputs(self, schedule: str) -> dict[str, str]:
        """The checkpoint that a fork leaves from, and the run's state where moments are restored.

        Raises ``ConfigError`` for an unknown schedule.
        """
        find_schedule(self.section, schedule)
        fork = self.section["fork"]
        folder = self.folder(fork["start"])
        inputs = {"weights": f"{folder}/model.safetensors", "config": f"{folder}/config.json"}
        if fork["optimizer_state"] == "restored":
            inputs["state"] = f"{self.root}/training/step{fork['start']}.safetensors"
        return inputs

    @property
    def fork_sequences(self) -> list[str]:
        """Per-sequence scores of all forks of the configuration."""
        return [path.removesuffix(".csv") + ".parquet" for path in self.forks]

    @property
    def cycles(self) -> list[str]:
        """Phase-resolved probes of every OLI schedule, both orders and all seeds."""
        fork = self.section["fork"]
        return [
            f"{self.root}/cycles/{schedule}-{order}first-seed{seed}.csv"
            for schedule, definition in fork["schedules"].items()
            if definition["kind"] == "oli"
            for order in ("bump", "cool")
            for seed in fork["seeds"]
        ]

    def cycle_settings(self, schedule: str, order: str) -> dict:
        """A fork of OLI with one order of its phases, probed densely through its last cycles.

        Raises ``ConfigError`` for a schedule without phases.
        """
        settings = self.fork_settings(schedule)
        definition = settings["definition"]
        if definition["kind"] != "oli":
            raise ConfigError(f"fork.schedules: {schedule!r} has no phases; only kind oli has")
        period = definition["bump_steps"] + definition["cool_steps"]
        resolved = self.section["fork"]["phase_resolved"]
        fork = settings["fork"] | {
            "probe_every": resolved["probe_every"],
            "probe_last": resolved["cycles"] * period,
        }
        return settings | {"definition": definition | {"first": order}, "fork": fork}

    def fork_settings(self, schedule: str) -> dict:
        """What one fork's trajectory depends on besides its seed and its inputs."""
        unread = ("seeds", "schedules", "phase_resolved")
        fork = {k: v for k, v in self.section["fork"].items() if k not in unread}
        training = {k: v for k, v in self.training.items() if k not in ("seed", "batch_size")}
        return {
            "definition": dict(find_schedule(self.section, schedule)),
            "fork": fork,
            "training": training,
            "total_steps": self.last,
        }


def final_outputs(plan: SuitePlan, *, tables: list, figures: list, notebooks: list) -> list[str]:
    """Everything of a suite that a reader looks at."""
    names = ["suite.csv", "audit.csv", "kurtosis.csv", "phases.json", "forks.csv", "statistics.csv"]
    names += ["early_warning.csv", "claims.csv", "claims.md"]
    names += [f"tables/{table}.{suffix}" for table in tables for suffix in ("csv", "md", "tex")]
    names += [
        f"figures/{figure}.{suffix}" for figure in figures for suffix in ("pdf", "svg", "png")
    ]
    names += [f"notebooks/{notebook}.html" for notebook in notebooks]
    return [f"{plan.root}/{name}" for name in names]
