"""What rules ask of a suite's own run beyond a key of its configuration: files and settings.

Plain functions of a ``Suite``. Settings hold only the keys that a job reads, so that a change
of another key reruns nothing. A mistake in a target is a ``ConfigError`` of one line. What
leaves the run is in ``plan_forks``, what goes beyond the paper in ``plan_mechanism``.
"""

import glob
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from flatminima.config.keys import Batches, Integrity
from flatminima.config.loading import ROOT, read_yaml
from flatminima.config.suites import Suite
from flatminima.errors import ConfigError, find
from flatminima.files import DIGESTS_FILE, read_digests
from flatminima.quantizer_specs import printed_names
from flatminima.revisions import LocalCheckpoint, file_states
from flatminima.text.corpus import package_versions

# Checkpoints.


Steps = str | Iterable[int]  # a range by its name, or steps one by one


def _checkpoints(suite: Suite, steps: Steps) -> list[LocalCheckpoint]:
    listed = suite.steps_in(steps) if isinstance(steps, str) else steps
    return [suite.checkpoint(step) for step in listed]


def checkpoint_files(suite: Suite, steps: Steps, makes: str) -> list[str]:
    """All files of some checkpoints: configuration, weights or the index of shards, shards.

    ``makes`` is a file that the rule makes of them, below the suite's folder. A published suite
    has no checkpoints; where the file is not frozen either, that is a ``ConfigError``. Where it
    is, there is nothing to refuse: Snakemake asks every rule that could make a frozen file for
    its inputs, and then takes the rule that restores it.
    """
    if suite.source == "published" and makes not in frozen_names(suite):
        folder = suite.config.measurements
        measured_suite = Path(folder).name
        raise ConfigError(
            f"suite {suite.name} has stored measurements only ({folder}), no checkpoints; for "
            f"this file run the suite {measured_suite}: results/{measured_suite}/{makes}"
        )
    return _paths(suite, steps)


def _paths(suite: Suite, steps: Steps) -> list[str]:
    return [
        f"{checkpoint.folder}/{name}"
        for checkpoint in _checkpoints(suite, steps)
        for name in checkpoint.files
    ]


def checkpoint_states(suite: Suite, steps: Steps) -> dict[str, list[int]]:
    """State of each file of a local suite's checkpoints; nothing for other suites.

    As a param it makes a job run again when a file was replaced, whatever the new file's time
    stamp. Files of other suites are made by rules, and Snakemake knows when they change.
    """
    return file_states(_paths(suite, steps)) if suite.source == "local" else {}


def weights(suite: Suite, steps: Steps) -> list[str]:
    """Weights of each checkpoint, or the index of their shards, in step order."""
    return [f"{found.folder}/{found.weights}" for found in _checkpoints(suite, steps)]


def deployed_folders(suite: Suite) -> dict[int, str]:
    """Checkpoints that are probed as they would ship: where the forks begin, and the last."""
    fork = suite.config.fork
    return {step: suite.folder(step) for step in (*([fork.start] if fork else []), suite.last)}


def deployed_files(suite: Suite) -> list[str]:
    """Files of these checkpoints."""
    return checkpoint_files(suite, deployed_folders(suite), "deployed.csv")


def deployed_states(suite: Suite) -> dict[str, list[int]]:
    """State of each of them in a local suite."""
    return checkpoint_states(suite, deployed_folders(suite))


# Text, tokenizer and batches.

TOKENIZER_FILE = "tokenizer.json"


def text(suite: Suite) -> dict:
    """Where documents come from, and for files how much of them is wanted."""
    config = suite.config
    if config.text.source == "packages":
        installed = package_versions(config.text.packages)
        return {"text": config.text.dump(), "installed": installed}
    rate = config.text.characters_per_token
    wanted = {split: _wanted(batches, rate) for split, batches in config.batches if batches}
    return {"text": config.text.dump(exclude={"characters_per_token"}), "wanted": wanted}


def _wanted(batches: Batches, characters_per_token: int) -> dict[str, int]:
    """The text that surely fills ``batches``; see ``up_to`` in text/sources.py."""
    one = batches.length * characters_per_token
    wanted = {"amount": batches.sequences * one}
    if batches.document_start:
        wanted = {"amount": batches.sequences, "document_of": one}
    if longest := batches.longest_document:
        # About half of the documents up to here have more tokens than that.
        wanted |= {"longest": longest * characters_per_token, "amount": 2 * wanted["amount"]}
    return wanted


def text_files(suite: Suite) -> list[str]:
    """Local files that the text is surely taken from: a change makes it anew.

    Raises ``ConfigError`` where a split has nothing but local files and none is there.
    """
    section, found = suite.config.text, []
    cut = [split for split, batches in suite.config.batches if batches]
    for split in cut if section.source == "files" else ():
        paths = [source.path for source in getattr(section, split)]
        there = [path for path in paths if path and Path(path).is_file()]
        if all(paths) and not there:
            raise ConfigError(
                f"config key suites.{suite.name}.text.{split}: no such file: {', '.join(paths)}"
            )
        found += [path for path in takewhile(bool, paths) if path in there][:1]
    return list(dict.fromkeys(found))


def text_states(suite: Suite) -> dict[str, list[int]]:
    """State of each of these files."""
    return file_states(text_files(suite))


def tokenizer_file(suite: Suite) -> str:
    """The file a local suite's tokenizer is taken from; one line where there is none."""
    path, last = suite.config.tokenizer.path, Path(suite.folder(suite.last))
    looked = [Path(path)] if path else [last, last.parent]
    for folder in looked:
        for candidate in (folder, folder / TOKENIZER_FILE):
            if candidate.is_file():
                return candidate.as_posix()
    raise ConfigError(
        f"config key suites.{suite.name}.tokenizer: no {TOKENIZER_FILE} in "
        f"{' or '.join(folder.as_posix() for folder in looked)}; "
        'add "tokenizer: {path: FOLDER}" to the suite, or "{repo: OWNER/NAME}" of the hub'
    )


def tokenizer_states(suite: Suite) -> dict[str, list[int]]:
    """State of that file."""
    return file_states([tokenizer_file(suite)])


def batches(suite: Suite) -> dict:
    """How each split is cut into sequences, none longer than a local suite's model takes."""
    cuts = suite.config.batches.dump()
    if suite.source != "local":
        return cuts
    file = Path(suite.folder(suite.steps[-1]), "config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a damaged one is named where the checkpoint is loaded
        return cuts
    # The names that transformers has for the same thing in different families.
    limits = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    most = min((limit for limit in limits if isinstance(limit, int)), default=None)
    for split, cut in cuts.items():
        if most is not None and cut["length"] > most:
            raise ConfigError(
                f"config key suites.{suite.name}.batches.{split}.length: {cut['length']} is "
                f"longer than the model takes ({most}, {file}); valid: 2 to {most}"
            )
    return cuts


def vocabulary(suite: Suite) -> dict:
    """The token that ends a document and the size of the model's vocabulary, where given."""
    end = getattr(suite.config.tokenizer, "end_of_text", None)
    size = getattr(suite.config.architecture, "vocab_size", None)
    found = {"end_token": end, "model_vocabulary": size}
    return {key: value for key, value in found.items() if value is not None}


# Probes, and the learning rate of the suite's own run.


# Where the drivers of NVIDIA, of AMD and of Windows below Linux put a machine's GPUs.
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")


def has_gpu() -> bool:
    """Whether this machine has a GPU that jobs may see; torch takes seconds to say it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    is_mac = platform.system() == "Darwin" and platform.machine() == "arm64"
    return is_mac or any(glob.glob(pattern) for pattern in _GPU_FILES)


def gpus(suite: Suite, is_cluster: bool) -> int:
    """GPUs that a training or probing job asks for: one where its model may be on one.

    With ``auto`` a cluster is to give one. A machine that has none asks for none, so that its
    jobs run side by side.
    """
    device = suite.config.device
    return int(device == "cuda" or (device == "auto" and (is_cluster or has_gpu())))


def probe(suite: Suite) -> dict:
    """Definitions and roles of the quantizers, and how a probe is run."""
    section = suite.config.probe
    roles = {section.low_bit: "low_bit", section.high_bit: "high_bit"}
    return {
        "quantizers": {name: suite.quantizers[name].dump() for name in roles},
        "roles": roles,
        "batch_size": section.batch_size,
        "device": suite.config.device,
    }


def integrity(suite: Suite) -> dict:
    """What is done about each kind of finding."""
    return (suite.config.integrity or Integrity()).model_dump()


def schedule(suite: Suite) -> dict | None:
    """What decides the learning rate of the suite's own run; nothing where it is not known."""
    own = suite.config.training
    return own and own.dump(include={"schedule", "lr_max", "lr_min", "warmup_steps"})


def tokens_per_step(suite: Suite) -> int | None:
    """Training tokens per update of the suite's own run; nothing where it is not known."""
    config = suite.config
    if config.tokens_per_step or not (config.training and config.batches.train):
        return config.tokens_per_step
    return config.training.batch_size * config.batches.train.length


# Training.


def training(suite: Suite, *unread: str) -> dict:
    """How the suite is trained, without how its training is cut into jobs."""
    return suite.key("training").dump(exclude={"jobs_end_at", "save_every", *unread})


class PretrainingJob(NamedTuple):
    """One training job of a suite that is trained here: from ``start`` to ``stop``."""

    suite: Suite
    start: int
    stop: int
    inputs: dict[str, str]  # batches, and the state that the job before has left
    checkpoints: dict[int, str]  # folders that are due on the way, by step
    settings: dict  # what decides the weights besides the batches


def pretraining_jobs(suite: Suite) -> list[PretrainingJob]:
    """The jobs that train the suite one after another; none where it is trained elsewhere."""
    if suite.source != "pretrain":
        return []
    jobs: list[PretrainingJob] = []
    settings = {
        "architecture": suite.config.architecture.dump(),
        "vocab_size": suite.config.tokenizer.vocab_size,
        "training": training(suite),
        "total_steps": suite.last,
    }
    for start, stop in pairwise([0, *suite.config.training_states]):
        inputs = {"train": f"{suite.root}/data/train.safetensors"}
        if start:
            inputs["initial_state"] = f"{suite.root}/training/step{start}.safetensors"
        due = [step for step in suite.steps if start < step <= stop or step == start == 0]
        folders = {step: suite.folder(step) for step in due}
        span = {"start": start, "stop": stop}
        jobs.append(PretrainingJob(suite, start, stop, inputs, folders, settings | span))
    return jobs


# What tables, figures, notebooks and the ledger need to know of a suite.


def facts(suite: Suite) -> dict:
    """What tables, figures and notebooks need to know of the suite."""
    mechanism = suite.config.mechanism
    other = mechanism and mechanism.replication and mechanism.replication.low_bit
    printed = {other: suite.quantizers[other].label} if other else {}
    probed = {name: suite.quantizers[name] for name in probe(suite)["roles"]}
    return {
        "name": suite.name,
        "label": suite.config.label,
        "is_paper_model": suite.config.is_paper_model,
        "spacing": suite.spacing,
        "last": suite.last,
        "quantizers": printed | printed_names(probed),
    }


def index_files(suite: Suite) -> dict[str, str]:
    """What the front page shows; forks and claims only where the suite has them."""
    names = ["audit.csv", "phases.json", "kurtosis.csv"]
    if suite.config.fork:
        names += ["forks.csv", "claims.csv"] if suite.is_even else ["forks.csv"]
    return {name.partition(".")[0]: f"{suite.root}/{name}" for name in names}


def ledger_facts(suite: Suite) -> dict:
    """What the ledger of claims needs to know of the suite; one line where it cannot be held."""
    read = {"start", "steps", "probe_every", "batch_size", "seeds", "schedules"}
    fork = suite.key("fork").dump(include=read)
    if not suite.is_even:
        needed = "powers_of_two, spacing and last"
        raise ConfigError(
            f"config key suites.{suite.name}.grid: the ledger of claims needs {needed}"
        )
    return {
        **facts(suite),
        **suite.config.grid.dump(),
        **schedule(suite),
        "tokens_per_step": tokens_per_step(suite),
        "fork": fork,
    }


def claim_facts(suite: Suite, claim: str, ledger: str) -> dict:
    """The same for one claim; one line where the ledger never had it."""
    rows = read_yaml(ROOT / ledger)["rows"]
    known = sorted(name for row in rows for name in (row["id"], *row.get("merges", ())))
    find(claim, dict.fromkeys(known), f"{ledger}: claim")
    return ledger_facts(suite)


def final_outputs(suite: Suite, outputs: Mapping[str, Sequence[str]]) -> list[str]:
    """Files of ``outputs``, which are listed by what a suite must have for them."""
    config = suite.config
    has = {
        "checkpoints": True,
        "forks": config.fork,
        "learning rate": config.training,
        "ledger": config.fork and suite.is_even,
    }
    return [f"{suite.root}/{name}" for kind in outputs if has[kind] for name in outputs[kind]]


def page_links(suite: Suite, outputs: Mapping[str, Sequence[str]]) -> list[str]:
    """What the front page of a suite leads to, by names beside it, folder by folder."""
    names = [path.removeprefix(f"{suite.root}/") for path in final_outputs(suite, outputs)]
    shown = [n for n in names if n != "index.html" and not n.endswith((".svg", ".tex"))]
    order = ("", "tables", "figures", "notebooks")
    return sorted(shown, key=lambda name: order.index(name.rpartition("/")[0]))


# A suite that has nothing but frozen measurements.

PUBLISHED = ROOT / "resources/published"


def frozen_names(suite: Suite) -> list[str]:
    """What is frozen, by its name below the suite's folder; one line if the list is lost."""
    if names := list(read_digests(Path(suite.config.measurements))):
        return names
    raise _lost(suite, DIGESTS_FILE)


def frozen_files(suite: Suite) -> list[str]:
    """The frozen files and the list of their digests; one line if one of them is lost."""
    folder, names = suite.config.measurements, [DIGESTS_FILE, *frozen_names(suite)]
    for name in names:
        if not Path(folder, name).is_file():
            raise _lost(suite, name)
    return [f"{folder}/{name}" for name in names]


def _lost(suite: Suite, name: str) -> ConfigError:
    folder = Path(suite.config.measurements)
    if not folder.is_dir():
        published = sorted(path.parent for path in PUBLISHED.glob("*/suite.yaml"))
        valid = ", ".join(path.relative_to(ROOT).as_posix() for path in published)
        return ConfigError(
            f"config key suites.{suite.name}.measurements: no such folder: {folder}; valid: "
            f"one that make publish wrote, such as {valid}"
        )
    cure = "copy the folder anew from where it was published"
    if folder.resolve().is_relative_to(PUBLISHED):
        cure = f"git checkout -- {folder} brings back what was committed"
    return ConfigError(f"suite {suite.name}: {folder}/{name} is missing; {cure}")
