"""The plan of a suite as a table that a person reads before spending a week."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from flatminima.costs.shapes import Shape, describe_shape, read_config, read_local_config
from flatminima.costs.throughput import Throughput
from flatminima.costs.totals import Costs
from flatminima.planning import SuitePlan

CONNECTION_MBIT = 100  # a connection to compare downloads with; nothing is measured of it
UNITS = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]


def model_config(plan: SuitePlan) -> object:
    """The configuration of the suite's model: a local one's from its last checkpoint.

    Raises ``ValueError`` where the suite says no architecture.
    """
    if plan.is_local:
        return read_local_config(plan.folder(plan.steps[-1]))
    if "architecture" not in plan.section:
        raise ValueError(
            f"config key suites.{plan.name} lacks architecture, which costs follow from"
        )
    return read_config(
        plan.section["architecture"], vocab_size=plan.section["tokenizer"].get("vocab_size")
    )


def model_shape(plan: SuitePlan, config: object) -> Shape:
    """What the suite's model is made of."""
    dtype = plan.section.get("architecture", {}).get("dtype", "float16")
    return describe_shape(config, dtype)


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    factor, unit = next(((f, u) for f, u in UNITS if count >= f), (1, "bytes"))
    return f"{count / factor:,.1f} {unit}" if factor > 1 else f"{count:.0f} {unit}"


def duration(hours: float) -> str:
    """Hours as minutes, hours or days."""
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:,.1f} days"


def _rows(costs: Costs, shape: Shape, source: str) -> Iterator[tuple[str, str, str]]:
    """What, how much, and how it is known."""
    yield "model", f"{shape.parameters:,} parameters", "counted on its classes"
    yield "revisions", f"{costs.revisions:,}", "the plan"
    if source == "hub":
        each = f"{size(shape.stored_bytes)} each, the larger of the published forms"
        yield "downloads", size(costs.download_bytes), f"computed: {each}"
        hours = costs.download_bytes * 8 / (CONNECTION_MBIT * 1e6) / 3600
        yield "", duration(hours), f"at {CONNECTION_MBIT} Mbit/s; the connection is not measured"
    yield "disk, at most", size(costs.disk_bytes), "computed: checkpoints and training state"
    yield "audit", f"{costs.audit_flop:.2g} FLOP", "computed: 3 forward passes a revision"
    if costs.pretraining_flop:
        yield "training", f"{costs.pretraining_flop:.2g} FLOP", "computed"
    if costs.forks:
        yield f"{costs.forks} forks", f"{costs.fork_training_flop:.2g} FLOP", "computed: updates"
        yield "", f"{costs.fork_probe_flop:.2g} FLOP", "computed: probes on the way"


def _time_rows(costs: Costs, found: Throughput, whole: int) -> Iterator[tuple[str, str, str]]:
    part = "" if found.layers == whole else f", {found.layers} of {whole} layers"
    for name, rate, batch in (
        ("forward", found.forward_rate, found.forward),
        ("update", found.training_rate, found.update),
    ):
        what = f"measured: {batch[0]} x {batch[1]} tokens{part}, float32, TF32 off"
        yield name, f"{rate / 1e9:.3g} GFLOP/s", what
    audit = costs.audit_flop / found.forward_rate / 3600
    yield "time, audit", duration(audit), "estimated from what was measured"
    if costs.training_flop:
        total = costs.hours(found.forward_rate, found.training_rate)
        yield "time, all", duration(total), "estimated; one job at a time, no downloads"
        if found.side_by_side > 1:
            total = costs.hours(found.forward_rate, found.training_rate, found.side_by_side)
            yield "", duration(total), f"estimated; {found.side_by_side} jobs at a time"


def report(
    plan: SuitePlan,
    costs: Costs,
    shape: Shape,
    *,
    jobs: Mapping[str, int],
    throughput: Throughput | None,
) -> Table:
    """The plan as a table; ``jobs`` are those left by rule, empty where nothing is."""
    where = f" on {throughput.device}" if throughput else ""
    table = Table(title=f"{plan.section['label']}{where}", title_justify="left")
    for heading in ("what", "how much", "how it is known"):
        table.add_column(heading)
    rows: Sequence = [*_rows(costs, shape, plan.section["source"])]
    if throughput:
        rows += [*_time_rows(costs, throughput, shape.layers)]
    for row in rows:
        table.add_row(*row)
    table.add_row("jobs left", f"{sum(jobs.values()):,}", _largest(jobs) or "everything is done")
    return table


def _largest(jobs: Mapping[str, int]) -> str:
    most = sorted(jobs.items(), key=lambda item: (-item[1], item[0]))[:4]
    return ", ".join(f"{count} {rule}" for rule, count in most)
