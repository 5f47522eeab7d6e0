"""What a row measured, what was asked of it, and the table of all rows."""

import csv
import datetime
import operator
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path

from flatminima.files import atomic_path

TABLE, PAGE = "results.csv", "README.md"
BEGIN, END = "<!-- what follows is written by make bench -->", "<!-- end of what it writes -->"
_RELATIONS = {"≥": operator.ge, "≤": operator.le}
MET, MISSED, NONE = "met", "missed", ""


@dataclass(frozen=True)
class Target:
    """A bound on a result's ratio."""

    relation: str
    bound: float

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"

    def judge(self, value: float) -> str:
        """``met`` or ``missed``."""
        return MET if _RELATIONS[self.relation](value, self.bound) else MISSED


@dataclass(frozen=True)
class Result:
    """One line of the table: ``ours`` and ``theirs`` in ``unit``, and their ``ratio``.

    ``ratio`` says how many times faster, larger or the like; ``means`` puts it in words.
    A line without a target is there for comparison.
    """

    row: str
    what: str
    against: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    means: str
    target: str = ""
    verdict: str = NONE
    note: str = ""


def judged(target: Target | None, **values: object) -> Result:
    """A result with its verdict."""
    if target is None:
        return Result(**values)
    verdict = target.judge(values["ratio"])
    return Result(**values, target=str(target), verdict=verdict)


def describe_machine(threads: int, device: str) -> str:
    """Processor, its cores, the card where one was used, and the versions that matter."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    if device == "cuda":
        import torch

        name = f"{torch.cuda.get_device_name()}, {name}"
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("torch", "transformers"))
    return f"{name}, {os.cpu_count()} cores, {threads} threads; {versions}"


def write(folder: Path, new: Mapping[str, Sequence[Result]], conditions: Mapping[str, str]) -> None:
    """Put the rows that were measured into the table and the page; other rows stay."""
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.date.today().isoformat()
    old = read(folder / TABLE) if (folder / TABLE).exists() else []
    lines = [line for line in old if line["row"] not in new]
    for results in new.values():
        lines += [asdict(result) | dict(conditions) | {"measured": date} for result in results]
    with atomic_path(folder / TABLE) as temporary, temporary.open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(_columns(conditions)), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _short(v) for k, v in line.items()} for line in lines)
    _write_page(folder / PAGE, read(folder / TABLE))


def _columns(conditions: Mapping[str, str]) -> Iterable[str]:
    yield from (field.name for field in fields(Result))
    yield from conditions
    yield "measured"


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def read(path: Path) -> list[dict]:
    """The lines of a table that ``write`` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write_page(path: Path, lines: Sequence[Mapping[str, str]]) -> None:
    text = (
        path.read_text(encoding="utf-8") if path.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    )
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    with atomic_path(path) as temporary:
        content = f"{before}{BEGIN}\n\n{markdown(lines)}\n\n{END}{after}"
        temporary.write_text(content, encoding="utf-8")


def markdown(lines: Sequence[Mapping[str, str]]) -> str:
    """The table for people: one line a comparison, its target and verdict, and where it ran."""
    head = "| row | what | against | ours | theirs | ratio | target | verdict |"
    body = [
        f"| {line['row']} | {line['what']} | {line['against']} | {_value(line, 'ours')} "
        f"| {_value(line, 'theirs')} | {line['means']} {line['ratio']} | {line['target']} "
        f"| {_emphasis(line['verdict'])} |"
        for line in lines
    ]
    notes = [f"- {line['row']}, {line['what']}: {line['note']}" for line in lines if line["note"]]
    machines: dict[str, list[str]] = {}
    for line in lines:
        where = f"{line['machine']}; {line['conditions']}; {line['measured']}"
        rows = machines.setdefault(where, [])
        if line["row"] not in rows:
            rows.append(line["row"])
    places = [f"- {', '.join(rows)}: {where}" for where, rows in machines.items()]
    parts = ["\n".join([head, "|---|---|---|---:|---:|---|---|---|", *body]), "\n".join(notes)]
    return "\n\n".join([*filter(None, parts), "Measured on:\n\n" + "\n".join(places)])


def _value(line: Mapping[str, str], key: str) -> str:
    value = line[key]
    return "–" if value in ("", "nan") else f"{value} {line['unit']}".strip()


def _emphasis(verdict: str) -> str:
    return f"**{verdict}**" if verdict == MISSED else verdict
