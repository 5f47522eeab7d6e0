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
from torch import nn

from flatminima import audit_figure, style
from flatminima.errors import UserError, one_line
from flatminima.files import atomic_path, weights_digest, write_json
from flatminima.hub import RevisionMissing
from flatminima.intervals import summarise
from flatminima.missing import even_steps
from flatminima.model import (
    INDEX_SUFFIX,
    WEIGHTS_FILE,
    choose_device,
    load_model,
    tensor_digests,
    text_config,
)
from flatminima.phases import SPARE, describe_phases
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT, printed_names
from flatminima.scaling_law import excess_sentence, suite_excess
from flatminima.scoring import Prober, gather_audit
from flatminima.text.batches import encode_stream, read_tokenizer
from flatminima.text.corpus import deduplicate, package_documents, package_versions, split
from flatminima.text.sources import NotAvailable, TextError, find_file, read_texts
from flatminima.text.tokens import end_of_text, leading_ids, write_tokens
from flatminima.tools.deployed import FORMATS, probe_deployed
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
    except (UserError, FloatingPointError, OSError) as error:
        line = one_line(error, 1000)
        console.print(f"Error: {line}", style="red", markup=False, soft_wrap=True)
        if options.json:
            print(json.dumps({"target": options.target, "error": line}))
        return BAD_INPUT
    if options.json:
        print(json.dumps(record, indent=2, default=str))
    return LEFT_PLATEAU if verdict.left else PASSED


class _Audit:
    """One audit: its options, its source, its folder, and the record that it leaves.

    ``record`` has what was asked, ``checkpoints`` (identity by step), ``left_out`` (reasons by
    step), ``notes`` (what a reader of the numbers should know, a line each), what the prober
    knows of itself, the verdict and its phases.
    """

    def __init__(self, options: AuditOptions, console: Console) -> None:
        check_options(options)
        self.options, self.console = options, console
        self.source = open_source(options.target, options.revisions)
        self.folder = Path(options.out or f"audit-{options.name}")
        self.prober: Prober | None = None
        self.record: dict = {
            "target": options.target, "checkpoints": {}, "left_out": {}, "notes": [],
        }  # fmt: skip

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)

    def note(self, line: str) -> None:
        """Say a line and keep it in the record."""
        self.say(line)
        self.record["notes"].append(line)

    def run(self) -> tuple[Verdict, dict]:
        for line in self.source.skipped:
            self.say(f"skipped: {line}")
        for line in self.source.notes:
            self.note(line)
        self._claim_folder()
        audited, sequences = self._measure_all()
        verdict = self._judge(audited, sequences)
        told = answers(audited, verdict.phases)
        self.record |= {"left_plateau": verdict.left, "verdict": verdict.words, "answers": told,
                        "phases": verdict.phases, **self.prober.made_by}  # fmt: skip
        self._compare_weights()
        write_json(self.folder / RECORD, self.record)
        written = [*TABLES, RECORD, VALIDATION, *self._draw(audited, verdict.phases)]
        if self.options.deployed:
            self._probe_as_shipped(sequences)
            written.append(DEPLOYED)
        self.say(f"{self.folder}: {', '.join(written)}")
        self._refuse_one_model_under_many_steps()
        self.say(f"INT4 gap: {verdict.words}")
        for line in told:
            self.say(line)
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
        elif any((self.folder / name).exists() for name in (*TABLES, *FIGURES)):
            raise UserError(
                f"{self.folder} holds results of something else; name another folder with --out"
            )
        self.folder.mkdir(parents=True, exist_ok=True)

    def _measure_all(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Probe every checkpoint; tables on disk hold each as soon as it is done."""
        source, scores, rows = self.source, [], []
        texts, words = open_text(self.options.data)
        rates, line = learning_rates(source)
        if line:
            self.note(line)
        with (
            source.tokenizer(self.options.tokenizer) as file,
            LiveTable(self.console, len(source.steps), self.options.name).shown() as table,
        ):
            for step in source.steps:
                try:
                    measured, summary = self._measure(step, texts, words, file)
                except _LeftOut as reason:
                    self.record["left_out"][step] = str(reason)
                    table.leave_out(step, str(reason))
                    continue
                scores.append(measured)
                rows.append(summary)
                table.add(summary)
                audited = gather_audit(
                    pd.concat(rows), (lambda s: rates.get(s, np.nan)) if rates else None,
                    suite=self.options.name, lr_max=max(rates.values(), default=None),
                    tokens_per_step=None,
                )  # fmt: skip
                write_tables(self.folder, audited, pd.concat(scores))
        if not scores:
            reasons = [*self.record["left_out"].values()]
            rest = f" (none of {len(reasons)} checkpoints is measured)" if len(reasons) > 1 else ""
            raise UserError(reasons[0] + rest)
        return audited, pd.concat(scores)

    def _measure(
        self, step: int, texts: Iterable[str], words: str, tokenizer_file: Path
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Scores of one checkpoint by sequence, and their summary. Raises ``_LeftOut``."""
        try:
            with self.source.checkpoint(step) as (place, origin):
                with self._leaving_out(step):
                    model = load_model(place)
                    digest = weights_digest(tensor_digests(weights_path(place)))
                if self.prober is None:  # what it raises ends the audit
                    self.prober = self._prepare(model, texts, words, tokenizer_file)
                with self._leaving_out(step):
                    scores = self.prober(model.to(self.prober.device), step)
                    resamples = self.options.resamples
                    summary = summarise(scores, ["step"], resamples=resamples, seed=0)
        except RevisionMissing as error:
            raise _LeftOut(str(error)) from error
        self.record["checkpoints"][step] = {
            "place": self.source.places[step], **origin, "weights_sha256": digest,
        }  # fmt: skip
        gap = summary.set_index("role")["gap_pct"][LOW_BIT]
        if gap == 0.0:
            self.note(f"step {step}: a 4-bit gap of exactly 0 %: does the model use its weights?")
        return scores, summary

    @contextmanager
    def _leaving_out(self, step: int) -> Iterator[None]:
        """Whatever a library raises over a checkpoint is a line with place, step and reason."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            place = self.source.places[step]
            where = f"{self.source.repo} at {place}" if self.source.repo else place
            reason = one_line(error)
            for known in (f"step {step}: ", f"{place}: "):
                reason = reason.removeprefix(known)
            raise _LeftOut(f"{where}: step {step}: {reason}") from error

    def _prepare(
        self, model: nn.Module, texts: Iterable[str], words: str, tokenizer_file: Path
    ) -> Prober:
        """The prober of all checkpoints, fitted to a model of theirs."""
        options, config = self.options, text_config(model)
        tokenizer = read_tokenizer(tokenizer_file)
        tokens, made = fixed_batches(
            texts, tokenizer, sequences=options.sequences, length=shortened(options, config),
            batch_size=min(options.batch_size, options.sequences), name=words,
            configured_end=getattr(config, "eos_token_id", None),
        )  # fmt: skip
        self._forget_earlier()
        write_tokens(self.folder / VALIDATION, tokens)
        words += f", {len(tokens)} sequences of {tokens.shape[1]} tokens, {made}"
        if tokens.shape[1] < options.length:
            words += f"; this model takes no more (--length is {options.length})"
        if options.data is None:
            words += "; embedded text, perhaps unlike what this model was trained on: see --data"
        self.record["text"] = words
        write_json(self.folder / RECORD, self.record)
        self.say(f"text: {words}")
        settings = probe_settings(options)
        return Prober(str(self.folder / VALIDATION), settings, torch.get_num_threads())

    def _forget_earlier(self) -> None:
        """An earlier audit's files, none of which belongs to the numbers that come."""
        for name in (*TABLES, *FIGURES, RECORD, VALIDATION, DEPLOYED):
            (self.folder / name).unlink(missing_ok=True)

    def _judge(self, audited: pd.DataFrame, sequences: pd.DataFrame) -> Verdict:
        resamples = min(self.options.resamples, PHASE_RESAMPLES)
        verdict = judge(audited, sequences, resamples=resamples)
        last = self.source.steps[-1]
        if last in self.record["left_out"]:
            words = f"{verdict.words}; step {last:,}, the last, could not be measured"
            return Verdict(verdict.left, words, verdict.phases)
        return verdict

    def _same_weights(self) -> list[list[int]]:
        """Steps that hold the same weights; 0 and 1 may, where the first rate is zero."""
        by_digest: dict[str, list[int]] = {}
        for step, known in self.record["checkpoints"].items():
            by_digest.setdefault(known["weights_sha256"], []).append(step)
        return [steps for steps in by_digest.values() if len(steps) > 1 and max(steps) > 1]

    def _compare_weights(self) -> None:
        for steps in self._same_weights():
            named = ", ".join(f"{step:,}" for step in steps)
            self.note(f"steps {named} hold the same weights")

    def _refuse_one_model_under_many_steps(self) -> None:
        steps = self._same_weights()
        if steps and len(steps[0]) == len(self.record["checkpoints"]):
            hub = "; the hub, or a mirror of it, ignores the revision" if self.source.repo else ""
            raise UserError(
                f"{self.options.target}: all {len(steps[0])} checkpoints hold the same weights, "
                f"so there is no curve{hub}"
            )

    def _draw(self, audited: pd.DataFrame, phases: dict) -> list[str]:
        """Figure 1 of the audit; nothing for a single checkpoint, which is no curve."""
        if audited["step"].nunique() < 2:
            return []
        label = self.options.name.replace("$", r"\$")  # mathematics to matplotlib
        try:
            suite = {"label": label, "quantizers": printed_names(self.prober.specs)}
            figure = audit_figure.draw(audited, phases, suite=suite)
            style.save(figure, [self.folder / name for name in FIGURES])
        except (ArithmeticError, LookupError, RuntimeError, ValueError) as error:
            self.note(f"no figure: {one_line(error)}")
            return []
        return [*FIGURES]

    def _probe_as_shipped(self, sequences: pd.DataFrame) -> None:
        """Write ``deployed.csv`` of the last checkpoint and print each format's gap."""
        step, prober = max(self.record["checkpoints"]), self.prober
        with self.source.checkpoint(step) as (place, _):
            model = load_model(place, prober.device)
        table = probe_deployed(
            model, prober, step, sequences[sequences["step"] == step],
            resamples=self.options.resamples,
        )  # fmt: skip
        table.to_csv(self.folder / DEPLOYED, index=False)
        for row in table[table["status"] == "measured"].itertuples():
            self.say(
                f"{row.format} ({FORMATS[row.format].description}): gap {row.gap_pct:.3f} % "
                f"[{row.gap_low_pct:.3f}, {row.gap_high_pct:.3f}], simulated {row.counterpart} "
                f"{row.simulated_gap_pct:.3f} %"
            )


class _LeftOut(Exception):
    """Why one checkpoint was not measured; the others go on."""


def weights_path(folder: Path) -> Path:
    """The file of a checkpoint's weights, or the index of its shards."""
    index = folder / f"{WEIGHTS_FILE}{INDEX_SUFFIX}"
    return index if index.is_file() else folder / WEIGHTS_FILE


def shortened(options: AuditOptions, config: object) -> int:
    """Tokens of a sequence: what is asked for, or what the model takes."""
    most = getattr(config, "max_position_embeddings", None)
    return min(options.length, most) if isinstance(most, int) and most > 1 else options.length


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


def learning_rates(source: Source) -> tuple[dict[int, float], str]:
    """Learning rate by step as the Trainer of a local run logged it, and what is wrong with it."""
    state = Path(source.places[source.steps[-1]]) / TRAINER_STATE
    if source.repo is not None or not state.is_file():
        return {}, ""
    found, odd = {}, 0
    try:
        for entry in json.loads(state.read_text(encoding="utf-8"))["log_history"]:
            if "learning_rate" not in entry:
                continue
            step, rate = entry.get("step"), entry["learning_rate"]
            if isinstance(step, int) and isinstance(rate, int | float) and 0 <= rate < np.inf:
                found[step] = float(rate)
            else:
                odd += 1
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"{state}: cannot be read ({one_line(error)}); learning rates are left empty"
    rates = {step: found[step] for step in source.steps if step in found}
    line = f"{state}: {odd} entries without a step or a number as learning rate are left empty"
    return (rates if any(rates.values()) else {}), line if odd else ""


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

    def leave_out(self, step: int, reason: str) -> None:
        """A row for a checkpoint that could not be measured, and the reason above the table."""
        self.rows.append((f"{step:,}", "not measured", *[""] * (len(COLUMNS) - 2)))
        if self.total == 1:  # it ends the audit, and is said there
            return
        self.console.print(f"not measured: {reason}", markup=False, soft_wrap=True)
        if self._live:
            self._live.update(self.table())

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
        return documents, f"docstrings of {PACKAGE} {version}"
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
    tokenizer: Tokenizer,
    *,
    sequences: int,
    length: int,
    batch_size: int,
    name: str,
    configured_end: int | list[int] | None = None,
) -> tuple[np.ndarray, str]:
    """``[sequences, length]`` int32 token ids, fewer where the text is shorter, and how they are.

    Documents are concatenated, each followed by the tokenizer's end of text, or where it has
    none by the configuration's (``configured_end``) if that is an id of it. Where the
    tokenizer begins a text with a token such as ``<bos>``, so does every sequence. Raises
    ``UserError`` where there is not even one batch of ``batch_size`` sequences.
    """
    configured = configured_end[0] if isinstance(configured_end, list) else configured_end
    own, before = end_of_text(tokenizer), leading_ids(tokenizer)
    fits = configured is not None and tokenizer.id_to_token(configured) is not None
    end = own if own is not None else configured if fits else None
    taken = length - len(before)
    if taken < 2:
        raise UserError(f"--length {length}: {2 + len(before)} or more, {len(before)} of which are "
                        "the tokenizer's own at the start")  # fmt: skip
    ids: list[int] = []
    try:
        for document in encode_stream(tokenizer, texts, end, sequences * taken):
            ids += document
            if len(ids) >= sequences * taken:
                break
    except TextError as error:
        raise UserError(f"--data {error}") from error
    whole = min(len(ids) // taken, sequences)
    if whole < batch_size:
        raise UserError(
            f"{name}: {len(ids):,} tokens are fewer than one batch of {batch_size} sequences of "
            f"{length} ({batch_size * taken:,}); give more text, or a smaller --batch-size or "
            "--length"
        )
    cut = np.asarray(ids[: whole * taken], dtype=np.int32).reshape(whole, taken)
    words = "nothing between documents"
    if end is not None:
        words = f"{tokenizer.id_to_token(end)} (id {end}) between documents"
        if configured is not None and configured != end:
            words += f" (eos_token_id of the configuration is {configured})"
    if before:
        words += f", {' '.join(tokenizer.id_to_token(i) for i in before)} before each sequence"
    start = np.tile(np.asarray(before, dtype=np.int32), (whole, 1))
    return np.hstack([start, cut]), words


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
    even = even_steps(steps, spacing)
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


def answers(audited: pd.DataFrame, phases: dict) -> list[str]:
    """What a trainer asks: the cost at the end, FP32's convergence, the trend, what to ship."""
    low = audited[audited["role"] == LOW_BIT].set_index("step").sort_index()
    end, best = low.iloc[-1], low.loc[low["ppl"].idxmin()]
    found = phases["convergence"]
    fp32 = f"FP32 perplexity was best at step {found['step']:,}"
    if found["step"] == low.index[-1]:
        fp32 = "FP32 perplexity is still improving at the last checkpoint"
    elif "rise_pct" in found:
        fp32 += f" and has risen by {found['rise_pct']:.1f} % since"
    try:
        trend = suite_excess(audited, phases, spacing=even_spacing(low.index.to_numpy()))
        trend = excess_sentence(trend)
    except (UserError, KeyError, IndexError) as error:
        trend = f"no trend to hold the end against: {error}"
        if not isinstance(error, UserError):
            trend = "no trend to hold the end against: too few checkpoints for phases"
    return [
        f"at step {low.index[-1]:,} INT4 costs {end['gap_pct']:.2f} % of perplexity "
        f"[{end['gap_low_pct']:.2f}, {end['gap_high_pct']:.2f}], "
        f"{end['delta_nll_nats_per_token']:.4f} nats per token",
        fp32,
        trend,
        f"to ship at INT4: step {best.name:,}, whose INT4 perplexity of {best['ppl']:.2f} is the "
        "lowest measured",
    ]


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
