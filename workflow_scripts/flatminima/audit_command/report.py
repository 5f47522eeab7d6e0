"""What an audit shows while it runs, and the files that it leaves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.live import Live
from rich.table import Table

from flatminima.figures import figure_audit, plotting
from flatminima.files import atomic_path
from flatminima.roles import FP32, HIGH_BIT, LOW_BIT

COLUMNS = ("step", "FP32 ppl", "INT4 gap %", "95 % interval", "INT8 gap %", "INT4 ppl", "top-1 %")
TABLES = ("audit.csv", "audit_sequences.parquet")


class LiveTable:
    """A table that grows on a terminal; a line for each checkpoint where there is none."""

    def __init__(self, console: Console, total: int, title: str) -> None:
        self.console, self.total, self.title = console, total, title
        self.rows: list[tuple[str, ...]] = []
        self._live: Live | None = None

    def table(self) -> Table:
        """The table as it stands."""
        table = Table(title=f"{self.title}: {len(self.rows)} of {self.total} checkpoints")
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def add(self, rows: pd.DataFrame) -> None:
        """Show one checkpoint from its rows of the audit."""
        by_role = rows.set_index("role")
        low, high, fp32 = (by_role.loc[role] for role in (LOW_BIT, HIGH_BIT, FP32))
        row = (
            f"{low['step']:,}", f"{fp32['ppl']:.3f}", f"{low['gap_pct']:.3f}",
            f"[{low['gap_low_pct']:.3f}, {low['gap_high_pct']:.3f}]", f"{high['gap_pct']:.3f}",
            f"{low['ppl']:.3f}", f"{low['top1_changed_pct']:.2f}",
        )  # fmt: skip
        self.rows.append(row)
        if self._live:
            self._live.update(self.table())
        else:
            pairs = (f"{n} {v}" for n, v in zip(COLUMNS, row, strict=True))
            line = f"{len(self.rows)}/{self.total}: {', '.join(pairs)}"
            self.console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def shown(self) -> Iterator["LiveTable"]:
        """Keep the table on the screen while the block runs."""
        if not self.console.is_terminal:
            yield self
            return
        with Live(self.table(), console=self.console, auto_refresh=False) as live:
            self._live = live
            yield self
            live.update(self.table(), refresh=True)
        self._live = None


def write_tables(folder: Path, audit: pd.DataFrame, sequences: pd.DataFrame) -> None:
    """Write what is known so far, whole or not at all: an audit that is stopped loses nothing."""
    with atomic_path(folder / TABLES[0]) as path:
        audit.to_csv(path, index=False)
    with atomic_path(folder / TABLES[1]) as path:
        sequences.to_parquet(path, index=False)


def write_figure(folder: Path, audit: pd.DataFrame, phases: dict, label: str) -> list[Path]:
    """Figure 1 of the audit; nothing for a single checkpoint, which is no curve."""
    if audit["step"].nunique() < 2:
        return []
    paths = [folder / f"audit.{suffix}" for suffix in ("pdf", "svg", "png")]
    plotting.save(figure_audit.draw(audit, phases, suite={"label": label}), paths)
    return paths
