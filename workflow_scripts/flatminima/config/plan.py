"""Files and settings that rules need for the checkpoints of a suite's own run.

All functions take a ``Suite``. Settings contain only the keys that a job reads, so that a change
of another key reruns nothing. A mistake in a target raises ``ConfigError`` with one line. Forks
are in ``plan_forks``, measurements beyond the paper in ``plan_mechanism``.
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
from flatminima.config.loading import ROOT, own_path, read_yaml
from flatminima.config.suites import Suite
from flatminima.errors import ConfigError, find
from flatminima.files import DIGESTS_FILE, read_digests
from flatminima.paper import PAPER_LAST_STEP, PAPER_SPACING
from flatminima.quantizer_specs import printed_names
from flatminima.revisions import LocalCheckpoint, file_states
from flatminima.text.corpus import package_versions

# Checkpoints.


Steps = str | Iterable[int]  # the name of a range, or a list of steps


def _checkpoints(suite: Suite, steps: Steps) -> list[LocalCheckpoint]:
    listed = suite.steps_in(steps) if isinstance(steps, str) else steps
    return [suite.checkpoint(step) for step in listed]


def checkpoint_files(suite: Suite, steps: Steps, makes: str) -> list[str]:
    """All files of some checkpoints: configuration, weights or the index of shards, shards.

    ``makes`` is the output of the calling rule, below the suite's folder. A published suite has
    no checkpoints, so a rule cannot make a file that is not stored: that is a ``ConfigError``.
    For a stored file, paths are returned although nothing is there. Snakemake evaluates the
    inputs of every rule that could make the file before it takes the rule that restores it.
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
    """State of each file of a local suite's checkpoints. Empty for other suites.

    As a param, the states rerun a job when a file is replaced, even by a file with an older time
    stamp. Files of other suites are made by rules, and Snakemake knows when they change.
    """
    return file_states(_paths(suite, steps)) if suite.source == "local" else {}


def weights(suite: Suite, steps: Steps) -> list[str]:
    """Path of each checkpoint's weights, or of the index of its shards, in step order."""
    return [
        f"{checkpoint.folder}/{checkpoint.weights}" for checkpoint in _checkpoints(suite, steps)
    ]


def deployed_folders(suite: Suite) -> dict[int, str]:
    """Checkpoints that are probed in deployed formats: the start of the forks, and the last."""
    steps = [suite.last]
    if suite.config.fork:
        steps.insert(0, suite.config.fork.start)
    return {step: suite.folder(step) for step in steps}


def deployed_files(suite: Suite) -> list[str]:
    """Files of the checkpoints that are probed in deployed formats."""
    return checkpoint_files(suite, deployed_folders(suite), "deployed.csv")


def deployed_states(suite: Suite) -> dict[str, list[int]]:
    """State of each file of these checkpoints (see ``checkpoint_states``)."""
    return checkpoint_states(suite, deployed_folders(suite))


# Text, tokenizer and batches.

TOKENIZER_FILE = "tokenizer.json"


def package_text(suite: Suite) -> dict:
    """Packages from which the documents of both splits are taken, and their versions."""
    # The versions are a param, so that another version of a package reruns the rule.
    installed = package_versions(suite.config.text.packages)
    return {"text": suite.config.text.dump(), "installed": installed}


def split_text(suite: Suite, split: str) -> dict:
    """Sources of one split's documents, for text from files, and the amount of text."""
    sources = suite.key(f"text.{split}")
    amount = _text_amount(suite.key(f"batches.{split}"), suite.config.text.characters_per_token)
    # The name ``wanted`` is that of the script's parameter; see ``up_to`` in text/sources.py.
    return {"sources": [source.dump() for source in sources], "wanted": amount}


def held_out_text(suite: Suite, split: str) -> list[str]:
    """Documents that are left out of a split: those of the validation text, out of training."""
    return [f"{suite.root}/data/validation.jsonl"] if split == "train" else []


def _text_amount(batches: Batches, characters_per_token: int) -> dict[str, int]:
    """An amount of text that is enough for ``batches``; see ``up_to`` in text/sources.py."""
    characters_per_sequence = batches.length * characters_per_token
    amount = {"amount": batches.sequences * characters_per_sequence}
    if batches.document_start:
        amount = {"amount": batches.sequences, "document_of": characters_per_sequence}
    if batches.longest_document:
        # About half of the documents of this many characters have too many tokens and will be
        # left out. So twice the amount is collected.
        amount["longest"] = batches.longest_document * characters_per_token
        amount["amount"] *= 2
    return amount


def text_files(suite: Suite, split: str) -> list[str]:
    """Local files from which a split is certainly taken. Changes in them rerun ``collect_split``.

    A local file counts if all sources before it are local files too: a hub source before it may
    be available or not. Raises ``ConfigError`` for a split with only local files that are all
    missing.
    """
    paths = [source.path for source in suite.key(f"text.{split}")]
    existing = [path for path in paths if path and Path(path).is_file()]
    if all(paths) and not existing:
        raise ConfigError(
            f"config key suites.{suite.name}.text.{split}: no such file: {', '.join(paths)}"
        )
    paths_before_hub_sources = takewhile(bool, paths)
    return [path for path in paths_before_hub_sources if path in existing][:1]


def text_states(suite: Suite, split: str) -> dict[str, list[int]]:
    """State of each of the files in ``text_files``."""
    return file_states(text_files(suite, split))


def tokenizer_file(suite: Suite) -> str:
    """The file of a local suite's tokenizer. ``ConfigError`` if there is none."""
    path = suite.config.tokenizer.path
    last_checkpoint = Path(suite.folder(suite.last))
    folders = [Path(path)] if path else [last_checkpoint, last_checkpoint.parent]
    for folder in folders:
        for candidate in (folder, folder / TOKENIZER_FILE):  # ``path`` may name the file itself
            if candidate.is_file():
                return candidate.as_posix()
    raise ConfigError(
        f"config key suites.{suite.name}.tokenizer: no {TOKENIZER_FILE} in "
        f"{' or '.join(folder.as_posix() for folder in folders)}; "
        'add "tokenizer: {path: FOLDER}" to the suite, or "{repo: OWNER/NAME}" of the hub'
    )


def tokenizer_states(suite: Suite) -> dict[str, list[int]]:
    """State of the tokenizer's file."""
    return file_states([tokenizer_file(suite)])


def batches(suite: Suite) -> dict:
    """Settings that cut each split into sequences.

    Raises ``ConfigError`` for sequences that are longer than a local suite's model accepts.
    """
    cuts = suite.config.batches.dump()
    if suite.source != "local":
        return cuts
    file = Path(suite.folder(suite.steps[-1]), "config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a damaged file is reported when the checkpoint is loaded
        return cuts
    # Families of transformers have different names for the longest sequence.
    limits = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    longest = min((limit for limit in limits if isinstance(limit, int)), default=None)
    for split, cut in cuts.items():
        if longest is not None and cut["length"] > longest:
            raise ConfigError(
                f"config key suites.{suite.name}.batches.{split}.length: {cut['length']} is "
                f"longer than the model accepts ({longest}, {file}); valid: 2 to {longest}"
            )
    return cuts


def split_batches(suite: Suite, split: str) -> dict:
    """``batches`` of one split. Raises ``ConfigError`` if the suite does not have it."""
    suite.key(f"batches.{split}")
    return batches(suite)[split]


def vocabulary(suite: Suite) -> dict:
    """The token that ends a document and the size of the model's vocabulary, if configured."""
    settings = {}
    end_token = getattr(suite.config.tokenizer, "end_of_text", None)
    if end_token is not None:
        settings["end_token"] = end_token
    vocabulary_size = getattr(suite.config.architecture, "vocab_size", None)
    if vocabulary_size is not None:
        settings["model_vocabulary"] = vocabulary_size
    return settings


# Probes, and the learning rate of the suite's own run.


# Device files of GPUs: NVIDIA, AMD, and Windows Subsystem for Linux.
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")


def has_gpu() -> bool:
    """Whether jobs on this machine can use a GPU. Importing torch for this would take seconds."""
    # Both values hide every GPU.
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    is_mac = platform.system() == "Darwin" and platform.machine() == "arm64"
    return is_mac or any(glob.glob(pattern) for pattern in _GPU_FILES)


def gpus(suite: Suite, is_cluster: bool) -> int:
    """Number of GPUs that a training or probing job requests: 0 or 1.

    With the device ``auto`` a job on a cluster requests one. On this machine it requests one only
    if there is a GPU. Otherwise jobs would wait for each other without need.
    """
    if suite.config.device == "auto":
        return int(is_cluster or has_gpu())
    return int(suite.config.device == "cuda")


def probe(suite: Suite) -> dict:
    """Settings of a probe: definitions and roles of the quantizers, batch size, device."""
    section = suite.config.probe
    # One name for both roles is refused when the configuration is read.
    roles = {section.low_bit: "low_bit", section.high_bit: "high_bit"}
    roles |= {name: name for name in section.also}
    return {
        "quantizers": {name: suite.quantizers[name].dump() for name in roles},
        "roles": roles,
        "batch_size": section.batch_size,
        "device": suite.config.device,
    }


def integrity(suite: Suite) -> dict:
    """Reaction to each kind of finding: stop, warn or ignore."""
    return (suite.config.integrity or Integrity()).model_dump()


def schedule(suite: Suite) -> dict | None:
    """Settings of the learning rate in the suite's own run; ``None`` if they are not configured."""
    run = suite.config.training
    return run and run.dump(include={"schedule", "lr_max", "lr_min", "warmup_steps"})


def tokens_per_step(suite: Suite) -> int | None:
    """Training tokens per update of the suite's own run; ``None`` if they are not configured."""
    config = suite.config
    if config.tokens_per_step:
        return config.tokens_per_step
    if config.training and config.batches.train:
        return config.training.batch_size * config.batches.train.length
    return None


# Training.


def training(suite: Suite, *unread: str) -> dict:
    """Settings of the suite's training, without ``unread`` and how it is divided into jobs."""
    return suite.key("training").dump(exclude={"jobs_end_at", "save_every", *unread})


class PretrainingJob(NamedTuple):
    """One training job of a suite that is trained here: from ``start`` to ``stop``."""

    suite: Suite
    start: int
    stop: int
    inputs: dict[str, str]  # batches, and the training state that the previous job saved
    checkpoints: dict[int, str]  # folders of the checkpoints that the job writes, by step
    settings: dict  # everything that decides the weights, except the batches


def pretraining_jobs(suite: Suite) -> list[PretrainingJob]:
    """The jobs that train the suite, one after another. None if it is not trained here."""
    if suite.source != "pretrain":
        return []
    settings = {
        "architecture": suite.config.architecture.dump(),
        "vocab_size": suite.config.tokenizer.vocab_size,
        "training": training(suite),
        "total_steps": suite.last,
    }
    jobs: list[PretrainingJob] = []
    for start, stop in pairwise([0, *suite.config.training_states]):
        inputs = {"train": f"{suite.root}/data/train.safetensors"}
        if start:
            inputs["initial_state"] = f"{suite.root}/training/step{start}.safetensors"
        # The first job also writes step 0. Every other start belongs to the job before.
        # Written by this job: the checkpoints after its start, up to its end.
        steps = [step for step in suite.steps if start < step <= stop or step == start == 0]
        folders = {step: suite.folder(step) for step in steps}
        job_settings = {**settings, "start": start, "stop": stop}
        jobs.append(PretrainingJob(suite, start, stop, inputs, folders, job_settings))
    return jobs


class PlantingJob(NamedTuple):
    """The job that scales channels of another suite's checkpoints."""

    suite: Suite
    sources: dict[int, str]  # folders of the checkpoints that are read, by step
    folders: dict[int, str]  # folders of the checkpoints that are written, by step
    scales: dict[int, float]  # scale of the channels, by step
    channels: int  # number of channels behind each normalization


def planting_jobs(suite: Suite) -> list[PlantingJob]:
    """The job that makes a planted suite's checkpoints. None for other suites."""
    if suite.source != "planted":
        return []
    planted = suite.config.scales
    rise = suite.last - planted.start
    scales = {
        step: 1.0 + (planted.largest - 1.0) * max(0, step - planted.start) / rise
        for step in suite.steps
    }
    sources = {step: f"results/{planted.run}/checkpoints/step{step}" for step in suite.steps}
    folders = {step: suite.folder(step) for step in suite.steps}
    return [PlantingJob(suite, sources, folders, scales, planted.channels)]


# Facts of a suite for tables, figures, notebooks and the ledger of claims.


def facts(suite: Suite) -> dict:
    """Facts of the suite that tables, figures and notebooks print."""
    printed_quantizers = {}
    mechanism = suite.config.mechanism
    if mechanism and mechanism.replication:
        name = mechanism.replication.low_bit
        printed_quantizers[name] = suite.quantizers[name].label
    probed = {name: suite.quantizers[name] for name in probe(suite)["roles"]}
    printed_quantizers |= printed_names(probed)
    return {
        "name": suite.name,
        "label": suite.config.label,
        "is_paper_model": suite.config.is_paper_model,
        "spacing": suite.spacing,
        "last": suite.last,
        "quantizers": printed_quantizers,
    }


def index_files(suite: Suite) -> dict[str, str]:
    """Tables that the front page shows. Forks and claims only if the suite has them."""
    names = ["audit.csv", "phases.json", "kurtosis.csv"]
    if suite.config.fork:
        names.append("forks.csv")
    if has_ledger(suite):
        names.append("claims.csv")
    return {name.partition(".")[0]: f"{suite.root}/{name}" for name in names}


def has_ledger(suite: Suite) -> bool:
    """Whether a suite's front page and ``all`` include the ledger of the paper's claims."""
    return suite.config.is_paper_model or bool(suite.config.fork and suite.is_even)


def ledger_files(suite: Suite) -> dict[str, str]:
    """The suite's files that the ledger reads, by the names that claims.yaml uses."""
    names = ["audit.csv", "kurtosis.csv", "phases.json", "scaling_law.json"]
    if suite.config.fork:
        names += ["forks.csv", "statistics.csv"]
    if suite.config.training:
        names.append("early_warning.csv")
    files = {name.partition(".")[0]: f"{suite.root}/{name}" for name in names}
    return {"suite_table": f"{suite.root}/suite.csv", **files}


def ledger_facts(suite: Suite) -> dict:
    """Facts of the suite that the ledger of the paper's claims needs.

    For chosen revisions of the paper's own run, ``spacing`` is that of the complete run, so that
    the ledger can tell which revisions are lacking. Raises ``ConfigError`` for another suite
    without an evenly spaced grid.
    """
    config = suite.config
    is_part_of_papers_run = config.is_paper_model and suite.last == PAPER_LAST_STEP
    if not suite.is_even and not is_part_of_papers_run:
        raise ConfigError(
            f"config key suites.{suite.name}.grid: the ledger of claims needs powers_of_two, "
            "spacing and last"
        )
    fork_keys = {"start", "steps", "probe_every", "batch_size", "seeds", "schedules"}
    return {
        **facts(suite),
        **config.grid.dump(),
        **(schedule(suite) or {}),
        "spacing": suite.spacing if suite.is_even else PAPER_SPACING,
        "tokens_per_step": tokens_per_step(suite),
        "fork": config.fork and config.fork.dump(include=fork_keys),
    }


def claim_facts(suite: Suite, claim: str, ledger: str) -> dict:
    """``ledger_facts`` for one claim. ``ConfigError`` if the ledger has no claim of this name."""
    names = set()
    for row in read_yaml(ROOT / ledger)["rows"]:
        names |= {row["id"], *row.get("merges", ())}  # former claims that the row includes
    find(claim, dict.fromkeys(sorted(names)), f"{ledger}: claim")
    return ledger_facts(suite)


def final_outputs(suite: Suite, outputs: Mapping[str, Sequence[str]]) -> list[str]:
    """The final files of a suite. ``outputs`` lists files by the part of a suite they need."""
    config = suite.config
    has_part = {
        "checkpoints": True,
        "forks": config.fork,
        "learning rate": config.training,
        "ledger": has_ledger(suite),
    }
    return [
        f"{suite.root}/{name}"
        for part, names in outputs.items()
        if has_part[part]
        for name in names
    ]


def page_links(suite: Suite, outputs: Mapping[str, Sequence[str]]) -> list[str]:
    """Files to which the front page links, relative to it, folder by folder."""
    names = [path.removeprefix(f"{suite.root}/") for path in final_outputs(suite, outputs)]
    names = [name for name in names if name != "index.html" and not name.endswith((".svg", ".tex"))]
    folders = ("", "tables", "figures", "notebooks")
    return sorted(names, key=lambda name: folders.index(name.rpartition("/")[0]))


# Published suites, which have stored measurements only.

PUBLISHED = ROOT / "resources/published"


def frozen_names(suite: Suite) -> list[str]:
    """Names of the stored files, below the suite's folder. ``ConfigError`` if there are none."""
    names = list(read_digests(Path(own_path(suite.config.measurements))))
    if not names:
        raise _missing_file(suite, DIGESTS_FILE)
    return names


def frozen_files(suite: Suite) -> list[str]:
    """Paths of the stored files and of their list. ``ConfigError`` if one of them is missing."""
    folder = own_path(suite.config.measurements)
    names = [DIGESTS_FILE, *frozen_names(suite)]
    for name in names:
        if not Path(folder, name).is_file():
            raise _missing_file(suite, name)
    return [f"{folder}/{name}" for name in names]


def _missing_file(suite: Suite, name: str) -> ConfigError:
    folder = Path(own_path(suite.config.measurements))
    if not folder.is_dir():
        published = sorted(path.parent for path in PUBLISHED.glob("*/suite.yaml"))
        valid = ", ".join(path.relative_to(ROOT).as_posix() for path in published)
        return ConfigError(
            f"config key suites.{suite.name}.measurements: no such folder: {folder}; valid: a "
            f"folder that make publish wrote, such as {valid}"
        )
    if folder.resolve().is_relative_to(PUBLISHED):
        cure = f"restore it with git checkout -- {folder}"
    else:
        cure = "copy the folder again from where it was published"
    return ConfigError(f"suite {suite.name}: {folder}/{name} is missing; {cure}")
