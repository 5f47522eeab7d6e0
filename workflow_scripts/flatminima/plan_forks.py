"""What rules ask of what leaves a suite's run: a series of checkpoints a condition and seed.

A *series* is ``forks`` (the paper's schedules), ``cycles`` (OLI, every phase probed through
its last cycles), ``variants`` (rivals, other amplitudes, the pilot) or ``cooled`` (the branch
of each fork after its end); a *condition* is one name in it. Rivals that are averages of the
run's own checkpoints are not trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flatminima.errors import ConfigError, suggest
from flatminima.files import CHECKPOINT_FILES
from flatminima.plan import checkpoint_files, frozen_names, training, weights
from flatminima.schedules import AverageKind, Condition, ScheduleKind, read_kind
from flatminima.suites import Suite

_OF_FORK = ("start", "steps", "probe_every", "batch_size", "optimizer_state", "rewarm_steps")
ORDERS = ("bump", "cool")
CALIBRATION_BATCHES = 16  # of the fork's own, over which gradients are averaged


@dataclass(frozen=True)
class Variant:
    """A condition: its schedule, what it changes in the section ``fork``, its labels.

    Equal ones are one trajectory, whatever their labels.
    """

    definition: Mapping
    fork: Mapping = field(default_factory=dict)
    labels: Mapping = field(default_factory=dict, compare=False)


def keeps_forks(section: Mapping) -> bool:
    """Whether a suite's forks keep their weights once they have been measured."""
    return section.get("fork", {}).get("keep_checkpoints", section["source"] == "pretrain")


def _of_schedules(suite: Suite) -> dict[str, Variant]:
    return {name: Variant(kind) for name, kind in suite.key("fork.schedules").items()}


def _of_cycles(suite: Suite) -> dict[str, Variant]:
    """OLI with either order of its phases, probed densely through its last cycles."""
    resolved, found = suite.key("fork.phase_resolved"), {}
    for name, kind in suite.key("fork.schedules").items():
        if kind["kind"] == "oli":
            span = resolved["cycles"] * (kind["bump_steps"] + kind["cool_steps"])
            fork = {"probe_every": resolved["probe_every"], "probe_last": span}
            for order in ORDERS:
                found[f"{name}-{order}first"] = Variant({**kind, "first": order}, fork)
    return found


def _of_rivals(suite: Suite) -> dict[str, Variant]:
    fork, found = suite.key("fork"), {}
    for name, definition in fork.get("rivals", {}).items():
        kind = read_kind(definition)
        if isinstance(kind, ScheduleKind):
            found[name] = Variant(definition, {"probe_at": kind.settled(fork["steps"])})
    return found


def cadences(fork: Mapping) -> dict[int, dict[str, int]]:
    """Cycles of OLI by their period: its own, and the period of each SGDR at the same ratio.

    The fraction of a cycle that is a bump is that of the first OLI schedule; empty without one.
    """
    definitions = list(fork["schedules"].values())
    oli = next((d for d in definitions if d["kind"] == "oli"), None)
    if oli is None:
        return {}
    own = oli["bump_steps"] + oli["cool_steps"]
    found = {}
    for period in (own, *(d["period"] for d in definitions if d["kind"] == "sgdr")):
        bump = max(1, round(period * oli["bump_steps"] / own))
        found[period] = {"bump_steps": bump, "cool_steps": max(1, period - bump)}
    return found


def _of_amplitudes(suite: Suite) -> dict[str, Variant]:
    """OLI at each amplitude and cadence; bump first, so that a fork ends on a cool phase."""
    fork, found = suite.key("fork"), {}
    for value in fork.get("amplitudes", []):
        for period, cycle in cadences(fork).items():
            definition = {"kind": "oli", **cycle, "amplitude": value, "first": "bump"}
            found[f"oli_x{value:g}_p{period}"] = Variant(
                definition,
                {"probe_at": read_kind(definition).settled(fork["steps"])},
                {"amplitude": value, "period": period},
            )
    return found


def _of_pilot(suite: Suite) -> dict[str, Variant]:
    """The paper's pilot and the four or six arms that take it apart (appendix B)."""
    own_fork, whole = suite.key("fork"), suite.key("batches.train.length")
    pilot = own_fork.get("pilot")
    if pilot is None:
        return {}
    states = ["fresh", "rewarmed"]
    if own_fork["start"] in suite.key("training").get("jobs_end_at", []):
        states += ["restored"]
    # Sequences per update: the fork's own, and as many short ones as have the same tokens.
    short, own = pilot["length"], own_fork["batch_size"]
    arms = [(short, own, "fresh")]
    arms += [
        (length, batch, state)
        for length, batch in ((short, own * whole // short), (whole, own))
        for state in states
    ]
    found = {}
    for length, batch, state in arms:
        labels = {"length": length, "batch_size": batch, "optimizer_state": state}
        times = {key: pilot[key] for key in ("steps", "probe_every")}
        fork = {**times, **labels, "rewarm_steps": pilot["rewarm_steps"]}
        found[f"pilot_{length}x{batch}_{state}"] = Variant({"kind": "cosine"}, fork, labels)
    return found


def _of_variants(suite: Suite) -> dict[str, Variant]:
    return _of_rivals(suite) | _of_amplitudes(suite) | _of_pilot(suite)


def _of_cooled(suite: Suite) -> dict[str, Variant]:
    """The common cool-down from the last checkpoint of each fork, measured at its end."""
    fork = suite.key("fork")
    steps = fork.get("cooldown_steps")
    if steps is None:
        return {}
    change = {"start": fork["start"] + fork["steps"], "steps": steps, "probe_at": [steps],
              "optimizer_state": "fresh"}  # fmt: skip
    return {name: Variant({"kind": "cooldown"}, change) for name in fork["schedules"]}


_SERIES = {
    "forks": _of_schedules, "cycles": _of_cycles, "variants": _of_variants, "cooled": _of_cooled,
}  # fmt: skip


def _condition(suite: Suite, series: str, name: str) -> Variant:
    known = _SERIES[series](suite)
    if name not in known:
        hint = suggest(name, list(known))
        raise ConfigError(f"suite {suite.name}: {series} {name!r} is not known; {hint}")
    return known[name]


def condition_settings(suite: Suite, series: str, name: str) -> dict:
    """What a condition's weights depend on besides its seed and its inputs."""
    condition, section = _condition(suite, series, name), suite.key("fork")
    own = {k: v for k, v in training(suite).items() if k not in ("seed", "batch_size")}
    sections = {"training": own, "compute": dict(suite.section.get("compute", {}))}
    definition = dict(condition.definition)
    for changed, keys in ScheduleKind.modifiers.items():
        sections[changed] |= {key: definition.pop(key) for key in keys if key in definition}
    return {
        "definition": definition,
        "fork": {key: section[key] for key in _OF_FORK if key in section} | dict(condition.fork),
        "total_steps": suite.last,
        **sections,
    }


def condition_inputs(suite: Suite, series: str, name: str) -> dict[str, str]:
    """The checkpoint that a condition leaves from, and the run's state if it is restored."""
    return fork_point(suite, condition_settings(suite, series, name)["fork"]["optimizer_state"])


def fork_point(suite: Suite, optimizer_state: str = "fresh") -> dict[str, str]:
    """The checkpoint that forks leave from, and the run's state where moments are restored."""
    start = suite.key("fork.start")
    (path,) = weights(suite, f"step{start}")
    inputs = {"weights": path, "config": f"{suite.folder(start)}/config.json"}
    if optimizer_state == "restored":
        inputs["state"] = f"{suite.root}/training/step{start}.safetensors"
    return inputs


def condition_steps(suite: Suite, series: str, name: str) -> list[int]:
    """Steps whose weights are measured."""
    return Condition(**condition_settings(suite, series, name)).saved_steps


def condition_folders(suite: Suite, series: str, name: str, seed: str) -> dict[int, str]:
    """Checkpoints of a condition by their step."""
    folder = f"{suite.root}/{series}/checkpoints/{name}-seed{seed}"
    return {step: f"{folder}/step{step}" for step in condition_steps(suite, series, name)}


def condition_weights(suite: Suite, series: str, name: str, seed: str) -> list[str]:
    """Weights of a condition in step order."""
    found = condition_folders(suite, series, name, seed).values()
    return [f"{folder}/{CHECKPOINT_FILES[0]}" for folder in found]


def condition_labels(suite: Suite, series: str, name: str) -> dict:
    """Columns that tell a condition from the others of its table."""
    return dict(_condition(suite, series, name).labels)


def condition_length(suite: Suite, series: str, name: str) -> int:
    """Tokens per training sequence of a condition."""
    whole = suite.key("batches.train.length")
    return _condition(suite, series, name).fork.get("length", whole)


def condition_key(suite: Suite, series: str, name: str) -> str:
    """The key of the configuration that decides how fast a condition learns."""
    if series == "cooled":
        return "training.lr_max"
    if series != "variants":
        return f"fork.schedules.{name.rpartition('-')[0] if series == 'cycles' else name}"
    if name in _of_rivals(suite):
        return f"fork.rivals.{name}"
    return "fork.amplitudes" if name in _of_amplitudes(suite) else "training.lr_max"


def trajectory(suite: Suite, series: str, name: str, seed: str) -> dict[str, str]:
    """Scores and losses of a condition; two that train alike are trained once."""
    own = _condition(suite, series, name)
    if series == "variants":
        known = _of_amplitudes(suite) | _of_variants(suite)  # the amplitudes come first
        name = next(first for first, other in known.items() if other == own)
    folder = f"{suite.root}/{series}"
    return {
        "sequences": f"{folder}/{name}-seed{seed}.parquet",
        "losses": f"{folder}/losses/{name}-seed{seed}.csv",
    }


def source_folder(suite: Suite, series: str, name: str, seed: str) -> str:
    """The checkpoint that a condition leaves from: the run's, or for ``cooled`` the fork's last."""
    if series != "cooled":
        return suite.folder(suite.key("fork.start"))
    return list(condition_folders(suite, "forks", name, seed).values())[-1]


def cooled_table(suite: Suite) -> list[str]:
    """cooled.csv where the suite has it."""
    if "cooldown_steps" not in suite.section.get("fork", {}):
        return []
    frozen = suite.source != "published" or "cooled.csv" in frozen_names(suite)
    return [f"{suite.root}/cooled.csv"] if frozen else []


def runs(suite: Suite, series: str) -> list[str]:
    """Names of all conditions of a series with all seeds: ``cosine-seed0``."""
    seeds = suite.key("fork.seeds")
    return [f"{name}-seed{seed}" for name in _SERIES[series](suite) for seed in seeds]


def trajectories(suite: Suite, gathered: str) -> list[str]:
    """Tables of all conditions of one gathered table: a series, pilot, amplitudes or rivals."""
    if gathered in ("forks", "cycles", "cooled"):
        return [f"{suite.root}/{gathered}/{run}.csv" for run in runs(suite, gathered)]
    fork, of_kind = suite.key("fork"), {"pilot": _of_pilot, "amplitudes": _of_amplitudes}
    known = of_kind.get(gathered, _of_rivals)(suite)
    beside = averages(suite) if gathered == "rivals" else {}
    if not known and not beside:
        raise ConfigError(
            f"suite {suite.name}: config key fork.{gathered} is needed for this target"
        )
    seeds = fork.get("rival_seeds", fork["seeds"])
    trained = [f"{suite.root}/variants/{name}-seed{seed}.csv" for name in known for seed in seeds]
    return trained + [f"{suite.root}/averages/{name}.csv" for name in beside]


def averages(suite: Suite) -> dict[str, Mapping]:
    """Rivals that are averages of the run's checkpoints, by name."""
    rivals = suite.key("fork").get("rivals", {})
    return {n: r for n, r in rivals.items() if isinstance(read_kind(r), AverageKind)}


def average_definition(suite: Suite, name: str) -> dict:
    """A rival without training; one line where there is none of this name."""
    known = averages(suite)
    if name not in known:
        hint = suggest(name, list(known))
        raise ConfigError(f"suite {suite.name}: average {name!r} is not known; {hint}")
    return dict(known[name])


def average_steps(suite: Suite, name: str) -> list[int]:
    """Revisions that a rival without training is made from, in order."""
    fork, kind = suite.key("fork"), read_kind(average_definition(suite, name))
    span = (suite.steps, fork["start"], fork["start"] + fork["steps"])
    for _, mistake in kind.mistakes(*span):
        raise ConfigError(f"suite {suite.name}: fork.rivals.{name}: {mistake}")
    return kind.steps(*span)


def average_files(suite: Suite, name: str) -> list[str]:
    """Checkpoints that a rival without training is made from."""
    return checkpoint_files(suite, average_steps(suite, name))


def average_folders(suite: Suite, name: str) -> list[str]:
    """The same as folders, in step order."""
    return [suite.folder(step) for step in average_steps(suite, name)]


def calibration_inputs(suite: Suite) -> dict[str, str]:
    """The checkpoint of the fork point, and the run's moments there if they exist."""
    ends = suite.key("training").get("jobs_end_at", [])
    return fork_point(suite, "restored" if suite.key("fork.start") in ends else "fresh")


def calibration_settings(suite: Suite) -> dict:
    """What the amplitude of the first OLI schedule is derived from."""
    fork, own = suite.key("fork"), suite.key("training")
    bumps = [d["bump_steps"] for d in fork["schedules"].values() if d["kind"] == "oli"]
    if not bumps:
        raise ConfigError(f"suite {suite.name}: fork.schedules has no schedule of kind oli")
    condition = Condition({"kind": "cosine"}, fork, own, suite.last)
    return {
        "quantizer": dict(suite.quantizers[suite.key("probe.low_bit")]),
        "start": fork["start"],
        "batch_size": fork["batch_size"],
        "batches": CALIBRATION_BATCHES,
        "rate": condition.schedule(fork["start"]),
        "bump": bumps[0],
        "training": {key: own[key] for key in ("beta1", "beta2", "eps")},
    }


def fork_measurements(suite: Suite) -> dict[str, str]:
    """What the ledger reads of conditions beyond the paper, by its name there.

    Of a published suite only what is frozen.
    """
    if "fork" not in suite.section:
        return {}
    keys = [key for key in ("pilot", "amplitudes", "rivals") if key in suite.key("fork")]
    names = {key: f"{key}.csv" for key in keys} | {"calibration": "calibration.json"}
    frozen = frozen_names(suite) if suite.source == "published" else names.values()
    return {key: f"{suite.root}/{name}" for key, name in names.items() if name in frozen}
