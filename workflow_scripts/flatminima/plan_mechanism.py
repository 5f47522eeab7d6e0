"""What rules ask of the measurements beyond the paper: which checkpoints, with which settings."""

import math
from collections.abc import Mapping
from itertools import product

from flatminima.errors import ConfigError, suggest
from flatminima.plan import checkpoint_files, training, weights
from flatminima.plan_forks import fork_measurements
from flatminima.suites import Suite, chunk_names, range_name

_DRAWN = ("pdf", "svg", "png")
# Measurements made in jobs on ranges of checkpoints; each gives a table of its own name.
RANGED = ("factorial", "layers", "sensitivity", "curvature", "activations")
# Tables under mechanism/ that each measurement ends in, and the figures that need them.
FINDING_TABLES = {
    **{measure: [measure] for measure in RANGED},
    "factorial": ["factors"],
    "drift": ["drift", "displacement"],
    "phase_flips": ["phase_flips"],
    "replication": ["replication"],
}
MECHANISM_FIGURES = {
    "fig6_factorial": ["factorial"],
    "fig7_layers": ["layers"],
    "fig9_sensitivity": ["sensitivity"],
    "fig10_curvature": ["curvature"],
    "fig11_drift": ["drift", "phase_flips"],
    "fig12_activations": ["activations"],
    "fig13_replication": ["replication"],
    "fig15_tokens": ["replication"],
}


def mechanism(suite: Suite) -> Mapping:
    """The suite's section ``mechanism``; empty where it has none.

    Without ``phase_flips`` where no fork schedule has phases, without ``replication``
    where the suite is not trained here, and without what looks at the step between
    levels where a quantizer has no such step.
    """
    schedules = suite.section.get("fork", {}).get("schedules", {}).values()
    even = all(spec.get("kind", "affine") == "affine" for spec in probed_quantizers(suite).values())
    possible = {
        **dict.fromkeys(("factorial", "sensitivity", "drift"), even),
        "phase_flips": even and any(kind["kind"] == "oli" for kind in schedules),
        "replication": suite.source in ("pretrain", "published"),
    }
    section = suite.section.get("mechanism", {})
    return {key: value for key, value in section.items() if possible.get(key, True)}


def measurement(suite: Suite, measure: str) -> Mapping:
    """One measurement's entry; one line if the suite has none."""
    section = mechanism(suite)
    if measure not in section:
        has = ", ".join(m for m in section if m in FINDING_TABLES) or "none"
        raise ConfigError(
            f"suite {suite.name} has no mechanism.{measure} in the configuration; it has {has}"
        )
    return section[measure]


def measured_steps(suite: Suite, measure: str) -> list[int]:
    """Checkpoints that a measurement looks at: those listed, or every n-th from the end."""
    entry = measurement(suite, measure)
    return list(entry["steps"]) if "steps" in entry else suite.steps[:: -entry["every"]][::-1]


def measure_ranges(suite: Suite, measure: str) -> list[str]:
    """Names of the ranges that one job of a measurement each works on."""
    size = measurement(suite, measure)["steps_per_job"]
    return chunk_names(measured_steps(suite, measure), size)


def measure_folders(suite: Suite, steps: str, measure: str) -> dict[int, str]:
    """Checkpoints of one job by step: those of its range that the measurement looks at.

    A single step is measured whether it is one of these or not.
    """
    wanted, inside = measured_steps(suite, measure), suite.steps_in(steps)
    chosen = inside if len(inside) == 1 else [step for step in inside if step in wanted]
    if not chosen:
        raise ConfigError(
            f"suite {suite.name}: mechanism.{measure} looks at no step of {steps}; it looks at "
            f"{range_name(wanted)} or a single step"
        )
    return {step: suite.folder(step) for step in chosen}


def measure_files(suite: Suite, steps: str, measure: str) -> list[str]:
    """Weights and configuration of the checkpoints of one job."""
    return checkpoint_files(suite, measure_folders(suite, steps, measure))


def measure_weights(suite: Suite, measure: str) -> dict[int, str]:
    """Weights files of all checkpoints of a measurement that is one job, by step."""
    steps = measured_steps(suite, measure)
    return dict(zip(steps, weights(suite, steps), strict=True))


def measure_settings(suite: Suite, measure: str) -> dict:
    """What a measurement does besides where: its own keys, those of all, its quantizers."""
    unread = ("every", "steps", "steps_per_job")
    settings = {k: v for k, v in measurement(suite, measure).items() if k not in unread}
    if measure == "factorial":
        settings["low"] = probed_cells(suite)["low_bit"]
    elif measure == "sensitivity":
        settings |= probed_quantizers(suite)
    elif measure == "curvature":
        settings["layers"] = suite.key("kurtosis.layers")
    else:
        settings["low_bit"] = probed_quantizer(suite)
    return settings | {
        "batch_size": suite.key("mechanism.batch_size"),
        "resamples": suite.key("probe.resamples"),
        "device": suite.key("device"),
    }


def probed_quantizer(suite: Suite, role: str = "low_bit") -> dict:
    """Definition of the suite's low-bit or high-bit quantizer."""
    return dict(suite.quantizers[suite.section["probe"][role]])


def probed_quantizers(suite: Suite) -> dict[str, dict]:
    """Both of them by role."""
    return {role: probed_quantizer(suite, role) for role in ("low_bit", "high_bit")}


def probed_cells(suite: Suite) -> dict[str, dict]:
    """Where the suite's two probes lie in the factorial design, by role."""
    found = {}
    for role, spec in probed_quantizers(suite).items():
        if spec.get("kind", "affine") != "affine":
            raise ConfigError(
                f"suite {suite.name}: mechanism.factorial takes apart bits, symmetry and "
                f"granularity, which probe.{role} of kind {spec['kind']} does not have"
            )
        group = f"g{spec['group_size']}" if spec["granularity"] == "group" else spec["granularity"]
        found[role] = {"bits": spec["bits"], "symmetric": spec["symmetric"], "granularity": group}
    return found


def phase_flip_settings(suite: Suite) -> dict:
    """Fork point, schedules and training that the phases of OLI are followed with."""
    fork = suite.key("fork")
    own = {k: v for k, v in training(suite).items() if k not in ("seed", "batch_size")}
    return {
        "schedules": {k: dict(v) for k, v in fork["schedules"].items() if v["kind"] == "oli"},
        "start": fork["start"],
        "batch_size": fork["batch_size"],
        "training": own,
        "total_steps": suite.last,
        "seeds": fork["seeds"],
        "cycles": measurement(suite, "phase_flips")["cycles"],
        "device": suite.key("device"),
    }


def replicas(suite: Suite) -> dict[str, dict]:
    """All runs of the replication by name: ``width64-seed0``, with ``-decay0.1`` where asked for.

    Each with suite, width, seed, weight_decay, weights (of the linear layers of its blocks)
    and tokens_per_step.
    """
    entry, own = measurement(suite, "replication"), training(suite)
    of_all = {"tokens_per_step": own["batch_size"] * suite.key("batches.train.length")}
    decays = entry.get("weight_decays")
    found = {}
    for width, seed, decay in product(entry["widths"], entry["seeds"], decays or [None]):
        name = f"width{width}-seed{seed}" + ("" if decay is None else f"-decay{decay:g}")
        found[name] = {
            "suite": suite.name,
            "width": width,
            "seed": seed,
            "weight_decay": own["weight_decay"] if decay is None else decay,
            "weights": 12 * width**2 * suite.key("architecture.num_layers"),
        } | of_all
    return found


def _replica(suite: Suite, run: str) -> dict:
    """One of them; one line where there is none of that name."""
    known = replicas(suite)
    if run not in known:
        raise ConfigError(f"suite {suite.name} has no small run {run}; {suggest(run, list(known))}")
    return known[run]


def _replica_steps(suite: Suite, run: str) -> list[int]:
    entry, about = measurement(suite, "replication"), _replica(suite, run)
    spacing = entry["spacing"]
    if "last" in entry:
        last = entry["last"]
    else:  # the first checkpoint that has seen that much
        updates = entry["tokens_per_weight"] * about["weights"] / about["tokens_per_step"]
        last = spacing * math.ceil(updates / spacing)
    return list(range(spacing, last + 1, spacing))


def replica_folders(suite: Suite, run: str) -> dict[int, str]:
    """Checkpoints of one of them by step."""
    folder = f"{suite.root}/mechanism/replication/checkpoints/{run}"
    return {step: f"{folder}/step{step}" for step in _replica_steps(suite, run)}


def replica_settings(suite: Suite, run: str) -> dict:
    """Training of one run of the replication."""
    entry, about = measurement(suite, "replication"), _replica(suite, run)
    steps = _replica_steps(suite, run)
    own = training(suite)
    own["warmup_steps"] = round(own["warmup_steps"] * steps[-1] / suite.last)
    return {
        "architecture": {**suite.section["architecture"], "hidden_size": about["width"]},
        "vocab_size": suite.key("tokenizer.vocab_size"),
        "training": own | {"seed": about["seed"], "weight_decay": about["weight_decay"]},
        "steps": steps,
        "train_sequences": entry.get("train_sequences"),
    }


def replica_probe(suite: Suite) -> dict:
    """Quantizer and batches that the runs of the replication are probed with."""
    entry = measurement(suite, "replication")
    name = entry["low_bit"]
    return {
        "quantizers": {name: dict(suite.quantizers[name])},
        "roles": {name: "low_bit"},
        "batch_size": suite.key("probe.batch_size"),
        "device": "cpu",
        "sequences": entry["sequences"],
    }


def findings_inputs(suite: Suite) -> dict[str, str]:
    """Tables of the measurements that the suite makes, by name."""
    made = mechanism(suite)
    names = [n for measure, tables in FINDING_TABLES.items() if measure in made for n in tables]
    return {name: f"{suite.root}/mechanism/{name}.csv" for name in names}


def extended_measurements(suite: Suite) -> dict[str, str]:
    """What the ledger reads beyond `all`, by its name there."""
    return {"mechanism": f"{suite.root}/mechanism/findings.csv"} | fork_measurements(suite)


def extended_outputs(suite: Suite) -> list[str]:
    """Everything beyond the paper that the suite's configuration asks for."""
    of_forks, made = fork_measurements(suite), mechanism(suite)
    figures = ["fig8_rivals"] if "rivals" in of_forks else []
    asked, names = [measure for measure in FINDING_TABLES if measure in made], []
    if asked:
        names.append("mechanism/findings.csv")
        figures += [f for f, needed in MECHANISM_FIGURES.items() if set(needed) <= set(asked)]
        if "fork" in suite.section and suite.is_even:
            names += [f"claims_extended.{suffix}" for suffix in ("csv", "md", "html")]
        if set(asked) == set(FINDING_TABLES) and "rivals" in of_forks:
            names.append("notebooks/mechanism.html")
    names += [f"figures/{figure}.{suffix}" for figure in figures for suffix in _DRAWN]
    arm = made.get("second_arm")
    of_arm = [f"results/{arm}/figures/fig15_tokens.{suffix}" for suffix in _DRAWN] if arm else []
    return [*of_forks.values(), *(f"{suite.root}/{name}" for name in names), *of_arm]
