"""The audit of one run or one hub model without any configuration: ``flatminima audit``.

Has the INT4 gap of the last checkpoint left its plateau? The rule: the checkpoints after
step 0 that lie evenly (all of them where none do) go through the phases of
``phases.RULE``. If that finds an onset, the plateau is what lies between the end of rapid
learning and the onset, and the last checkpoint has left it if the lower end of its gap's
95 % interval is above the highest gap there. Growth that never sped up has no onset,
however far it went: that is not a plateau left. With too few checkpoints the rule cannot
tell, and says so.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table
from tokenizers import Tokenizer

from flatminima import audit_figure, style
from flatminima.errors import DamagedFile, UserError
from flatminima.files import atomic_path, write_json
from flatminima.hub import HubError, RevisionMissing
from flatminima.intervals import summarise
from flatminima.model import choose_device, load_model
from flatminima.phases import SPARE, describe_phases
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT, printed_names
from flatminima.scoring import Prober, gather_audit
from flatminima.text.batches import encode_stream
from flatminima.text.corpus import deduplicate, package_documents, package_versions, split
from flatminima.text.sources import NotAvailable, TextError, find_file, read_texts
from flatminima.text.tokens import write_tokens
from flatminima.tools.deployed import probe_deployed
from flatminima.tools.options import AuditOptions
from flatminima.tools.sources import Source, open_source

PASSED, BAD_INPUT, LEFT_PLATEAU = 0, 2, 3
FEWEST = 4 + SPARE  # checkpoints that a line with a break takes
PHASE_RESAMPLES = 100
RECORD, VALIDATION, DEPLOYED = "audit.json", "validation.safetensors", "deployed.csv"
TABLES = ("audit.csv", "audit_sequences.parquet")
FIGURES = ("audit.pdf", "audit.svg", "audit.png")
TRAINER_STATE = "trainer_state.json"
PACKAGE, MIN_CHARACTERS = "numpy", 200  # text that every machine has
COLUMNS = ("step", "FP32 ppl", "INT4 gap %", "95 % interval", "INT8 gap %", "INT4 ppl", "top-1 %")


@dataclass(frozen=True)
class Verdict:
    """Whether the plateau is ``left`` (``None``: cannot be told), in words, and the phases."""

    left: bool | None
    words: str
    phases: dict


def audit(options: AuditOptions, console: Console) -> int:
    """Run an audit and return its exit code: ``PASSED``, ``BAD_INPUT`` or ``LEFT_PLATEAU``.

    Whatever a user can put right ends it with one line; what was measured until then stays.
    """
    try:
        verdict, record = _Audit(options, console).run()
    except (UserError, HubError, FloatingPointError, OSError) as error:
        line = " ".join(str(error).split())
        console.print(f"Error: {line}", style="red", markup=False, soft_wrap=True)
        if options.json:
            print(json.dumps({"target": options.target, "error": line}))
        return BAD_INPUT
    if options.json:
        print(json.dumps(record, indent=2, default=str))
    return LEFT_PLATEAU if verdict.left else PASSED


class _Audit:
    """One audit: its options, its source, its folder, and the record that it leaves."""

    def __init__(self, options: AuditOptions, console: Console) -> None:
        check_options(options)
        self.options, self.console = options, console
        self.source = open_source(options.target, options.revisions)
        self.folder = Path(options.out or f"audit-{options.name}")
        self.record: dict = {"target": options.target}

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)

    def run(self) -> tuple[Verdict, dict]:
        for line in self.source.skipped:
            self.say(f"skipped: {line}")
        self._claim_folder()
        prober, words = self._prepare()
        self.say(f"text: {words}")
        audited, sequences = self._probe_all(prober)
        resamples = min(self.options.resamples, PHASE_RESAMPLES)
        verdict = judge(audited, sequences, resamples=resamples)
        written = [*TABLES, *self._draw(audited, verdict.phases, prober), RECORD, VALIDATION]
        self.record |= {"text": words, "left_plateau": verdict.left, "verdict": verdict.words,
                        "phases": verdict.phases, **prober.made_by}  # fmt: skip
        write_json(self.folder / RECORD, self.record)
        if self.options.deployed:
            self._probe_as_shipped(prober, sequences)
            written.append(DEPLOYED)
        self.say(f"{self.folder}: {', '.join(written)}")
        self.say(f"INT4 gap: {verdict.words}")
        rows = audited.astype(object).where(audited.notna(), None).to_dict("records")
        return verdict, {**self.record, "folder": str(self.folder), "rows": rows}

    def _claim_folder(self) -> None:
        """Make the folder of the results, unless it holds those of another run."""
        record = self.folder / RECORD
        if record.is_file():
            try:
                other = str(json.loads(record.read_text(encoding="utf-8"))["target"])
            except (ValueError, KeyError, TypeError):
                other = "something else"
            if os.path.realpath(other) != os.path.realpath(self.options.target):
                raise UserError(
                    f"{self.folder} holds the audit of {other}; name another folder with --out"
                )
        self.folder.mkdir(parents=True, exist_ok=True)

    def _prepare(self) -> tuple[Prober, str]:
        """The prober of all checkpoints, fitted to the last one, and which text it scores."""
        options, source = self.options, self.source
        texts, words = open_text(options.data)
        last = source.steps[-1]
        with source.tokenizer(options.tokenizer) as file, source.checkpoint(last) as place:
            model = load_model(place)
            limit = getattr(model.config, "max_position_embeddings", None) or options.length
            end = model.config.eos_token_id
            length = min(options.length, limit)
            tokens = fixed_batches(
                texts, file, end=end[0] if isinstance(end, list) else end,
                sequences=options.sequences, length=length,
                batch_size=min(options.batch_size, options.sequences), name=words,
            )  # fmt: skip
        self._forget_earlier()
        write_tokens(self.folder / VALIDATION, tokens)
        write_json(self.folder / RECORD, self.record)
        settings = probe_settings(options)
        words += f", {len(tokens)} sequences of {tokens.shape[1]} tokens"
        if length < options.length:
            words += f" (this model takes no more; --length is {options.length})"
        if options.data is None:
            words += "; embedded text, perhaps unlike what this model was trained on: see --data"
        return Prober(str(self.folder / VALIDATION), settings, torch.get_num_threads()), words

    def _forget_earlier(self) -> None:
        """An earlier audit's files, none of which belongs to the numbers that come."""
        for name in (*TABLES, *FIGURES, RECORD, VALIDATION, DEPLOYED):
            (self.folder / name).unlink(missing_ok=True)

    def _probe_all(self, prober: Prober) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Probe every checkpoint; tables on disk hold each as soon as it is done."""
        scores, rows, source = [], [], self.source
        rates = _learning_rates(source)
        with LiveTable(self.console, len(source.steps), self.options.name).shown() as table:
            for step in source.steps:
                try:
                    with source.checkpoint(step) as place:
                        scores.append(prober(load_model(place, prober.device), step))
                except (RevisionMissing, DamagedFile) as error:
                    if step == source.steps[-1]:
                        raise
                    self.say(f"skipped: {error}")
                    continue
                resamples = self.options.resamples
                rows.append(summarise(scores[-1], ["step"], resamples=resamples, seed=0))
                table.add(rows[-1])
                audited = gather_audit(
                    pd.concat(rows), rates.get if rates else None, suite=self.options.name,
                    lr_max=max(rates.values()) if rates else None, tokens_per_step=None,
                )  # fmt: skip
                write_tables(self.folder, audited, pd.concat(scores))
        return audited, pd.concat(scores)

    def _draw(self, audited: pd.DataFrame, phases: dict, prober: Prober) -> list[str]:
        """Figure 1 of the audit; nothing for a single checkpoint, which is no curve."""
        if audited["step"].nunique() < 2:
            return []
        suite = {"label": self.options.name, "quantizers": printed_names(prober.specs)}
        figure = audit_figure.draw(audited, phases, suite=suite)
        style.save(figure, [self.folder / name for name in FIGURES])
        return [*FIGURES]

    def _probe_as_shipped(self, prober: Prober, sequences: pd.DataFrame) -> None:
        """Write ``deployed.csv`` of the last checkpoint and print each format's gap."""
        step = self.source.steps[-1]
        with self.source.checkpoint(step) as place:
            model = load_model(place, prober.device)
        table = probe_deployed(
            model, prober, step, sequences[sequences["step"] == step],
            resamples=self.options.resamples,
        )  # fmt: skip
        table.to_csv(self.folder / DEPLOYED, index=False)
        for row in table[table["status"] == "measured"].itertuples():
            self.say(
                f"{row.format}: gap {row.gap_pct:.3f} % [{row.gap_low_pct:.3f}, "
                f"{row.gap_high_pct:.3f}], simulated {row.counterpart} "
                f"{row.simulated_gap_pct:.3f} %"
            )


def check_options(options: AuditOptions) -> None:
    """Raise ``UserError`` for a number that is too small or a device that is not there."""
    least = {"sequences": 2, "length": 2, "batch_size": 1, "group_size": 1, "resamples": 2}
    for name, lowest in least.items():
        value = getattr(options, name)
        if value < lowest:
            raise UserError(f"--{name.replace('_', '-')} {value}: {lowest} or more")
    try:
        choose_device(options.device)
    except (KeyError, ValueError) as error:
        raise UserError(f"--device {options.device}: not available here") from error


def probe_settings(options: AuditOptions) -> dict:
    """What ``Prober`` is given: the paper's two quantizers; narrow layers get narrow groups."""
    group = options.group_size
    low, high = f"int4_g{group}", "int8_channel"
    return {
        "quantizers": {
            low: {"bits": 4, "granularity": "group", "symmetric": False, "group_size": group},
            high: {"bits": 8, "granularity": "channel", "symmetric": True},
        },
        "roles": {low: LOW_BIT, high: HIGH_BIT},
        "batch_size": options.batch_size,
        "device": options.device,
    }


def _learning_rates(source: Source) -> dict[int, float]:
    """Learning rate by step as the Trainer of a local run logged it; empty if it did not."""
    state = Path(source.places[source.steps[-1]]) / TRAINER_STATE
    if source.repo is not None or not state.is_file():
        return {}
    history = json.loads(state.read_text(encoding="utf-8")).get("log_history", [])
    logged = {e["step"]: e["learning_rate"] for e in history if "learning_rate" in e}
    return {step: logged[step] for step in source.steps if step in logged}


def write_tables(folder: Path, audited: pd.DataFrame, sequences: pd.DataFrame) -> None:
    """Write what is known so far, whole or not at all: an audit that is stopped loses nothing."""
    with atomic_path(folder / TABLES[0]) as path:
        audited.to_csv(path, index=False)
    with atomic_path(folder / TABLES[1]) as path:
        sequences.to_parquet(path, index=False)


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


def open_text(data: str | None) -> tuple[Iterable[str], str]:
    """The documents of ``data``, or docstrings that every machine has, and what they are."""
    if data is None:
        version = package_versions([PACKAGE])[PACKAGE]
        found = deduplicate(package_documents(PACKAGE, MIN_CHARACTERS))
        _, documents = split(found, validation_fraction=1.0, seed=0)  # all of them, shuffled
        return (document.text for document in documents), f"docstrings of {PACKAGE} {version}"
    path = Path(data)
    if not path.is_file():
        raise UserError(f"--data {data}: {'is no file' if path.exists() else 'no such file'}")
    if not path.stat().st_size:
        raise UserError(f"--data {data}: the file is empty")
    try:
        return read_texts(find_file({"path": data})), data
    except (NotAvailable, ValueError) as error:
        raise UserError(f"--data {data}: {error}") from error


def fixed_batches(
    texts: Iterable[str],
    tokenizer_file: Path,
    *,
    end: int | None,
    sequences: int,
    length: int,
    batch_size: int,
    name: str,
) -> np.ndarray:
    """``[sequences, length]`` int32 token ids, fewer sequences where the text is shorter.

    Documents are concatenated, each followed by the id ``end`` unless that is ``None``.
    Raises ``UserError`` where there is not even one batch of ``batch_size`` sequences.
    """
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{tokenizer_file}: cannot be read as a tokenizer ({error})") from error
    ids: list[int] = []
    try:
        for document in encode_stream(tokenizer, texts, end, sequences * length):
            ids += document
            if len(ids) >= sequences * length:
                break
    except TextError as error:
        raise UserError(f"--data {error}") from error
    whole = min(len(ids) // length, sequences)
    if whole < batch_size:
        raise UserError(
            f"{name}: {len(ids):,} tokens are fewer than one batch of {batch_size} sequences of "
            f"{length} ({batch_size * length:,}); give more text, or a smaller --batch-size or "
            "--length"
        )
    return np.asarray(ids[: whole * length], dtype=np.int32).reshape(whole, length)


def even_spacing(steps: np.ndarray) -> int:
    """The commonest distance of steps after 0 if most of them are multiples of it, else 1."""
    steps = np.sort(steps[steps > 0])
    if len(steps) < 2:
        return 1
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    spacing = int(distances[np.argmax(counts)])
    return spacing if 2 * np.sum(steps % spacing == 0) > len(steps) else 1


def judge(audited: pd.DataFrame, sequences: pd.DataFrame, *, resamples: int) -> Verdict:
    """Apply the rule to an audit and its per-sequence scores (``phases.describe_phases``)."""
    steps = audited["step"].unique()
    spacing = even_spacing(steps)
    even = steps[(steps > 0) & (steps % spacing == 0)]
    if len(even) < FEWEST:
        words = f"undecided: {len(even)} checkpoints after step 0 are too few, {FEWEST} are needed"
        return Verdict(None, words, _without_phases(audited))
    phases = describe_phases(audited, sequences, spacing=spacing, resamples=resamples, seed=0)
    onset = phases["onset"]
    if onset["step"] is None:
        too_few = onset["delta_bic"] is None
        words = f"{'undecided' if too_few else 'no onset, so no plateau left'}: {onset['reason']}"
        return Verdict(None if too_few else False, words, phases)
    gaps = audited[audited["role"] == LOW_BIT].set_index("step").sort_index()
    plateau = gaps.loc[phases["rapid_learning_end"]["step"] : onset["step"], "gap_pct"]
    last, highest = gaps.iloc[-1], plateau.max()
    left = bool(last["gap_low_pct"] > highest)
    words = (
        f"{'has left its plateau' if left else 'on its plateau'}: onset at step "
        f"{onset['step']:,}; gap of step {gaps.index[-1]:,} {last['gap_pct']:.2f} % "
        f"[{last['gap_low_pct']:.2f}, {last['gap_high_pct']:.2f}], highest before {highest:.2f} %"
    )
    return Verdict(left, words, phases)


def _without_phases(audited: pd.DataFrame) -> dict:
    """As much of phases.json as a figure needs, for an audit that is too short for phases."""
    fp32 = audited[audited["role"] == FP32].sort_values("step")
    best, none = fp32.loc[fp32["ppl"].idxmin()], {"step_low": None, "step_high": None}
    first, last = int(fp32["step"].iloc[0]), int(fp32["step"].iloc[-1])
    return {
        "convergence": {"step": int(best["step"]), "ppl": float(best["ppl"]), **none},
        "onset": {"step": None, **none},
        "segments": [
            {"phase": 1, "name": "all checkpoints", "first_step": first, "last_step": last}
        ],
    }
