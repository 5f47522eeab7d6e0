"""What rules ask of a suite's own run beyond a key of its configuration: files and settings.

Plain functions of a ``Suite``. Settings hold only the keys that a job reads, so that a change
of another key reruns nothing. A mistake in a target is a ``ConfigError`` of one line. What
leaves the run is in ``plan_forks``, what goes beyond the paper in ``plan_mechanism``.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path

from flatminima.config import ROOT, find_suite, read_config
from flatminima.errors import ConfigError, DamagedFile, suggest
from flatminima.files import CHECKPOINT_FILES, DIGESTS_FILE
from flatminima.integrity import DEFAULT_SEVERITY
from flatminima.published import missing_file, read_digests
from flatminima.quantizer_specs import printed_names, read_spec, read_specs
from flatminima.revisions import LocalCheckpoint
from flatminima.suites import Suite, chunk_names, read_yaml
from flatminima.text.corpus import package_versions


def read_suite(name: str | None, files: Sequence[str | Path]) -> Suite:
    """A suite, or the one that the configuration names, for commands outside Snakemake."""
    config = read_config(files)
    name = name or config["suite"]
    tables = (ROOT / "resources/revisions").as_posix()
    return Suite(name, find_suite(config, name), config["quantizers"], tables)


# Checkpoints.


def ranges(suite: Suite) -> list[str]:
    """Names of the ranges of revisions that one job each works on."""
    return chunk_names(suite.steps, suite.key("probe.steps_per_job"))


def folders(suite: Suite, steps: str) -> dict[int, str]:
    """Checkpoints of a range, by step."""
    return {step: suite.folder(step) for step in suite.steps_in(steps)}


def _checkpoints(suite: Suite, steps: str | Iterable[int]) -> list[LocalCheckpoint]:
    wanted = suite.steps_in(steps) if isinstance(steps, str) else steps
    return [suite.checkpoint(step) for step in wanted]


def checkpoint_files(suite: Suite, steps: str | Iterable[int]) -> list[str]:
    """Weights and configuration of each checkpoint of a range, or of some steps.

    One line where nothing frozen was made of it: Snakemake asks for the inputs of every rule
    that could make a frozen file.
    """
    if suite.source == "published":
        names = [steps] if isinstance(steps, str) else [f"step{step}" for step in steps]
        frozen = {*frozen_names(suite)}
        if not frozen.issuperset(f"probes/{n}.csv" for n in names) and "deployed.csv" not in frozen:
            folder = suite.section["measurements"]
            raise ConfigError(
                f"suite {suite.name} has no checkpoints, only what is frozen in {folder}; what it "
                f"lacks is measured under results/{Path(folder).name}/"
            )
    found = _checkpoints(suite, steps)
    return [f"{checkpoint.folder}/{name}" for checkpoint in found for name in checkpoint.files]


def weights(suite: Suite, steps: str | Iterable[int]) -> list[str]:
    """Weights of each checkpoint, or the index of their shards, in step order."""
    return [f"{found.folder}/{found.weights}" for found in _checkpoints(suite, steps)]


def shards(suite: Suite, steps: str) -> list[str]:
    """Files of a range that an index in ``weights`` names."""
    named = {*weights(suite, steps)}
    files = checkpoint_files(suite, steps)
    return [path for path in files if path.endswith(".safetensors") and path not in named]


def branches(suite: Suite, steps: str) -> dict[int, str]:
    """Hub branches of a range, by step."""
    return {step: suite.branch(step) for step in suite.steps_in(steps)}


def deployed_folders(suite: Suite) -> dict[int, str]:
    """Checkpoints that are probed as they would ship: where the forks begin, and the last."""
    start = suite.section.get("fork", {}).get("start", suite.last)
    return {step: suite.folder(step) for step in dict.fromkeys((start, suite.last))}


def deployed_files(suite: Suite) -> list[str]:
    """Weights and configuration of these checkpoints."""
    return checkpoint_files(suite, deployed_folders(suite))


# Text, tokenizer and batches.

TOKENIZER_FILE = "tokenizer.json"


def text(suite: Suite) -> dict:
    """Where documents come from, and for files how much of them is wanted."""
    section = copy.deepcopy(dict(suite.section["text"]))
    if section["source"] == "packages":
        return {"text": section, "installed": package_versions(section["packages"])}
    # A subword token of English or code stands for three to five characters; eight leave room.
    rate = section.pop("characters_per_token", 8)
    splits = suite.section["batches"]
    return {"text": section, "wanted": {s: _wanted(b, rate) for s, b in splits.items()}}


def _wanted(batches: Mapping, characters_per_token: int) -> dict[str, int]:
    """The text that surely fills ``batches``; see ``up_to`` in text/sources.py."""
    tokens = batches["sequences"] * batches["length"]
    wanted = {"amount": tokens * characters_per_token}
    if batches.get("document_start"):
        shortest = batches["length"] * characters_per_token
        wanted = {"amount": batches["sequences"], "document_of": shortest}
    if longest := batches.get("longest_document"):
        # About half of the documents up to here have more tokens than that.
        wanted |= {"longest": longest * characters_per_token, "amount": 2 * wanted["amount"]}
    return wanted


def text_files(suite: Suite) -> list[str]:
    """Local files that the text is surely taken from: a change makes it anew.

    Raises ``ConfigError`` where a split has nothing but local files and none is there.
    """
    section, found = suite.section["text"], []
    for split in suite.section["batches"] if section["source"] == "files" else ():
        paths = [source.get("path") for source in section[split]]
        there = [path for path in paths if path is not None and Path(path).is_file()]
        if None not in paths and not there:
            raise ConfigError(
                f"config key suites.{suite.name}.text.{split}: no such file: {', '.join(paths)}"
            )
        leading = takewhile(lambda path: path is not None, paths)
        found += [path for path in leading if path in there][:1]
    return list(dict.fromkeys(found))


def tokenizer_source(suite: Suite) -> dict[str, str]:
    """Hub model whose tokenizer the suite takes, and its revision."""
    tokenizer = suite.section["tokenizer"]
    return {"repo": tokenizer["repo"], "revision": tokenizer.get("revision", "main")}


def tokenizer_file(suite: Suite) -> str:
    """The file a local suite's tokenizer is taken from; one line where there is none."""
    path, last = suite.section["tokenizer"].get("path"), Path(suite.folder(suite.last))
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


def batches(suite: Suite) -> dict:
    """How each split is cut into sequences, none longer than a local suite's model takes."""
    found = {split: dict(section) for split, section in suite.key("batches").items()}
    if suite.source != "local":
        return found
    file = Path(suite.folder(suite.steps[-1]), "config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a damaged one is named where the checkpoint is loaded
        return found
    # The names that transformers has for the same thing in different families.
    limits = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    most = min((limit for limit in limits if isinstance(limit, int)), default=None)
    for split, section in found.items():
        if most is not None and section["length"] > most:
            raise ConfigError(
                f"config key suites.{suite.name}.batches.{split}.length: {section['length']} is "
                f"longer than the model takes ({most}, {file}); valid: 2 to {most}"
            )
    return found


def vocabulary(suite: Suite) -> dict:
    """The token that ends a document and the size of the model's vocabulary, where given."""
    tokenizer, architecture = suite.section["tokenizer"], suite.section.get("architecture", {})
    found = {"end_token": tokenizer.get("end_of_text")}
    found["model_vocabulary"] = architecture.get("vocab_size")
    return {key: value for key, value in found.items() if value is not None}


# Probes, and the learning rate of the suite's own run.


def gpus(suite: Suite) -> int:
    """GPUs that a training or probing job asks for: one, unless the device can be none.

    With ``auto`` a cluster is to give one; a machine without any runs such jobs one by one.
    """
    return int(suite.key("device") in ("cuda", "auto"))


def probe(suite: Suite) -> dict:
    """Definitions and roles of the quantizers, and how a probe is run."""
    section = suite.section["probe"]
    roles = {section[role]: role for role in ("low_bit", "high_bit")}
    return {
        "quantizers": {name: dict(suite.quantizers[name]) for name in roles},
        "roles": roles,
        "batch_size": section["batch_size"],
        "device": suite.key("device"),
    }


def integrity(suite: Suite) -> dict:
    """What is done about each kind of finding."""
    return {**DEFAULT_SEVERITY, **suite.section.get("integrity", {})}


_OF_SCHEDULE = ("schedule", "lr_max", "lr_min", "warmup_steps")


def schedule(suite: Suite) -> dict | None:
    """What decides the learning rate of the suite's own run; nothing where it is not known."""
    known = suite.section.get("training")
    return known and {key: known[key] for key in _OF_SCHEDULE}


def tokens_per_step(suite: Suite) -> int | None:
    """Training tokens per update of the suite's own run; nothing where it is not known."""
    section = suite.section
    trained = "training" in section and "train" in section["batches"]
    if "tokens_per_step" in section or not trained:
        return section.get("tokens_per_step")
    return section["training"]["batch_size"] * section["batches"]["train"]["length"]


# Training.


def training(suite: Suite) -> dict:
    """How the suite is trained, without how its training is cut into jobs."""
    unread = ("jobs_end_at", "save_every")
    return {k: v for k, v in suite.key("training").items() if k not in unread}


@dataclass(frozen=True)
class PretrainingJob:
    """One training job of a suite that is trained here: from ``start`` to ``stop``.

    ``inputs`` are batches and the state that the job before has left, ``checkpoints`` the
    folders that are due on the way, by step; ``settings`` decide the weights besides the batches.
    """

    suite: Suite
    start: int
    stop: int
    inputs: dict[str, str]
    checkpoints: dict[int, str]
    settings: dict

    @property
    def files(self) -> list[str]:
        """What is in the folders."""
        names = (*CHECKPOINT_FILES, DIGESTS_FILE)
        return [f"{folder}/{name}" for folder in self.checkpoints.values() for name in names]


def pretraining_jobs(suite: Suite) -> list[PretrainingJob]:
    """The jobs that train the suite one after another; none where it is trained elsewhere."""
    if suite.source != "pretrain":
        return []
    section, jobs = suite.section, []
    for start, stop in pairwise([0, *suite.key("training")["jobs_end_at"]]):
        inputs = {"train": f"{suite.root}/data/train.safetensors"}
        if start:
            inputs["initial_state"] = f"{suite.root}/training/step{start}.safetensors"
        due = [s for s in suite.steps if start < s <= stop or s == start == 0]
        settings = {
            "architecture": dict(section["architecture"]),
            "vocab_size": section["tokenizer"]["vocab_size"],
            "training": training(suite),
            "total_steps": suite.last,
            "start": start,
            "stop": stop,
        }
        folders = {step: suite.folder(step) for step in due}
        jobs.append(PretrainingJob(suite, start, stop, inputs, folders, settings))
    return jobs


# What tables, figures, notebooks and the ledger need to know of a suite.


def facts(suite: Suite) -> dict:
    """What tables, figures and notebooks need to know of the suite."""
    known, section = suite.quantizers, suite.section
    other = section.get("mechanism", {}).get("replication", {}).get("low_bit")
    printed = {other: read_spec(known[other]).label} if other in known else {}
    found = {
        "name": suite.name,
        "label": section["label"],
        "is_paper_model": section["is_paper_model"],
        "spacing": suite.spacing,
        "quantizers": printed | printed_names(read_specs(probe(suite)["quantizers"])),
    }
    return found if suite.is_even else {**found, "last": suite.last}


def index_files(suite: Suite) -> dict[str, str]:
    """What the front page shows; forks and claims only where the suite has them."""
    names = ["audit.csv", "phases.json", "kurtosis.csv"]
    if "fork" in suite.section:
        names += ["forks.csv", "claims.csv"] if suite.is_even else ["forks.csv"]
    return {name.partition(".")[0]: f"{suite.root}/{name}" for name in names}


def fork_facts(suite: Suite) -> dict:
    """What a drawing of the forks needs besides: every schedule, at every update."""
    read = ("start", "steps", "probe_every", "schedules")
    fork = {key: suite.key(f"fork.{key}") for key in read}
    return {**facts(suite), "training": schedule(suite), "fork": fork, "last": suite.last}


def ledger_facts(suite: Suite) -> dict:
    """What the ledger of claims needs to know of the suite."""
    read = ("start", "steps", "probe_every", "batch_size", "seeds", "schedules")
    return {
        **facts(suite),
        **suite.section["grid"],
        **{key: suite.key(f"training.{key}") for key in _OF_SCHEDULE},
        "tokens_per_step": tokens_per_step(suite),
        "fork": {key: suite.key(f"fork.{key}") for key in read},
    }


def claim_facts(suite: Suite, claim: str, ledger: str) -> dict:
    """The same for one claim; one line where the ledger never had it."""
    rows = read_yaml(ROOT / ledger)["rows"]
    known = sorted(name for row in rows for name in (row["id"], *row.get("merges", ())))
    if claim not in known:
        raise ConfigError(f"{ledger} has no claim {claim!r}; {suggest(claim, known)}")
    return ledger_facts(suite)


def final_outputs(suite: Suite, outputs: Mapping[str, Sequence[str]]) -> list[str]:
    """Files of ``outputs``, which are listed by what a suite must have for them."""
    has_forks = "fork" in suite.section
    has = {
        "checkpoints": True,
        "forks": has_forks,
        "learning rate": "training" in suite.section,
        "ledger": has_forks and suite.is_even,
    }
    return [f"{suite.root}/{name}" for kind in outputs if has[kind] for name in outputs[kind]]


def page_links(suite: Suite, outputs: Mapping[str, Sequence[str]]) -> list[str]:
    """What the front page of a suite leads to, by names beside it, folder by folder."""
    names = [path.removeprefix(f"{suite.root}/") for path in final_outputs(suite, outputs)]
    shown = [n for n in names if n != "index.html" and not n.endswith((".svg", ".tex"))]
    order = ("", "tables", "figures", "notebooks")
    return sorted(shown, key=lambda name: order.index(name.rpartition("/")[0]))


# A suite that has nothing but frozen measurements.


def frozen_names(suite: Suite) -> list[str]:
    """What is frozen, by its name below the suite's folder; one line if the list is lost."""
    try:
        return list(read_digests(Path(suite.section["measurements"])))
    except DamagedFile as error:
        raise ConfigError(f"suite {suite.name}: {error}") from error


def frozen_files(suite: Suite) -> list[str]:
    """The frozen files and the list of their digests; one line if one of them is lost."""
    folder, names = suite.section["measurements"], frozen_names(suite)
    if line := missing_file(Path(folder), names):
        raise ConfigError(f"suite {suite.name}: {line}")
    return [f"{folder}/{name}" for name in (DIGESTS_FILE, *names)]
