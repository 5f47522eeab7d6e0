"""Checks of the forks beyond the paper's, and of how gradients are computed."""

from collections.abc import Iterator, Mapping, Sequence

from flatminima.schedules import AverageKind, ScheduleKind, read_kind

_KINDS = {
    kind.model_fields["kind"].default: kind
    for base in (ScheduleKind, AverageKind)
    for kind in base.__subclasses__()
}


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


def fork_mistakes(name: str, suite: Mapping, steps: Sequence[int] | None) -> Iterator[str]:
    """One line per mistake in how forks start, compute and differ from the paper's.

    ``steps`` are the suite's revisions, ``None`` where they are not known yet.
    """
    fork, key = suite["fork"], f"suites.{name}.fork"
    yield from _state_mistakes(key, suite)
    yield from _compute_mistakes(f"suites.{name}.compute", suite)
    yield from _pilot_mistakes(f"{key}.pilot", suite)
    if fork.get("amplitudes") and not cadences(fork):
        yield f"config key {key}.amplitudes needs a schedule of kind oli in fork.schedules"
    for rival, definition in fork.get("rivals", {}).items():
        if rival in fork["schedules"] or rival.startswith(("pilot_", "oli_x")):
            yield (
                f"config key {key}.rivals.{rival}: this name is taken; valid: a name that is not "
                "in fork.schedules and begins neither with pilot_ nor with oli_x"
            )
        yield from _rival_mistakes(f"{key}.rivals.{rival}", definition, fork)
        if steps is not None and isinstance(made := _read(definition), AverageKind):
            end = fork["start"] + fork["steps"]
            for part, mistake in made.mistakes(steps, fork["start"], end):
                yield f"config key {key}.rivals.{rival}.{part}: {mistake}"


def _state_mistakes(key: str, suite: Mapping) -> Iterator[str]:
    fork = suite["fork"]
    state, start = fork["optimizer_state"], fork["start"]
    if (state == "rewarmed") != ("rewarm_steps" in fork):
        yield (
            f"config key {key}.rewarm_steps goes with optimizer_state rewarmed, and always with "
            f"it; optimizer_state is {state}"
        )
    if state != "restored" or start in suite["training"].get("jobs_end_at", []):
        return
    if suite["source"] != "pretrain":
        yield (
            f"config key {key}.optimizer_state: restored needs a training state at step {start}, "
            f"which a suite with source {suite['source']} does not have; valid: fresh, rewarmed"
        )
    yield (
        f"config key {key}.optimizer_state: restored needs a training state at step "
        f"{start}; add it to training.jobs_end_at or use fresh"
    )


def _compute_mistakes(key: str, suite: Mapping) -> Iterator[str]:
    processes, batch = suite.get("compute", {}).get("processes", 1), suite["fork"]["batch_size"]
    if batch % processes:
        yield f"config key {key}.processes: {processes} does not divide fork.batch_size {batch}"
    if processes > 1 and suite["device"] == "mps":
        yield f"config key {key}.processes: {processes} with device mps; valid: 1"


def _pilot_mistakes(key: str, suite: Mapping) -> Iterator[str]:
    pilot = suite["fork"].get("pilot")
    if pilot is None:
        return
    length, whole = pilot["length"], suite["batches"]["train"]["length"]
    if whole % length or length == whole:
        yield (
            f"config key {key}.length: {length} must divide batches.train.length {whole} and be "
            "shorter"
        )
    if pilot["steps"] % pilot["probe_every"]:
        yield (
            f"config key {key}.probe_every: {pilot['probe_every']} does not divide pilot.steps "
            f"{pilot['steps']}"
        )


def _rival_mistakes(key: str, rival: Mapping, fork: Mapping) -> Iterator[str]:
    kind, fields = rival["kind"], _KINDS[rival["kind"]].model_fields
    needed = [name for name, field in fields.items() if field.is_required()]
    missing = [name for name in needed if name not in rival]
    if missing:
        yield f"config key {key} lacks {', '.join(missing)}, needed with kind {kind}"
        return
    extra = sorted(set(rival) - set(fields))
    if extra:
        others = [name for name in fields if name not in ("kind", *needed)]
        valid = ", ".join((*needed, *others)) or "no other key"
        yield f"config key {key}.{extra[0]} does not go with kind {kind}; valid with it: {valid}"
        return
    made = read_kind(rival)
    if isinstance(made, ScheduleKind):
        for name, mistake in made.mistakes(fork["steps"]):
            yield f"config key {key}.{name}: {mistake}"


def _read(definition: Mapping) -> ScheduleKind | AverageKind | None:
    try:
        return read_kind(definition)
    except ValueError:
        return None  # said above
