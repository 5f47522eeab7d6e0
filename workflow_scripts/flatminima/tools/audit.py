"""The audit of one run or one hub model without any configuration: ``flatminima audit``.

Has the INT4 gap of the last checkpoint left its plateau? The rule: the checkpoints after
step 0 that lie evenly (all of them where none do) go through the phases of
``phases.RULE``. If that finds an onset, the plateau is what lies between the end of rapid
learning and the onset, and the last checkpoint has left it if the lower end of its gap's
95 % interval is above the highest gap there. Growth that never sped up has no onset,
however far it went: that is not a plateau left. With too few checkpoints the rule cannot
tell, and says so.
"""

import html
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from torch import nn
from tqdm import tqdm

from flatminima import audit_figure, style
from flatminima.errors import UserError, one_line
from flatminima.files import atomic_path, weights_digest, write_json
from flatminima.hub import RevisionMissing
from flatminima.intervals import summarise
from flatminima.jobs import progress
from flatminima.layers import count_weights
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
from flatminima.quantizers import coverage_line
from flatminima.scaling_law import excess_sentence, suite_excess
from flatminima.scoring import Forward, Prober, SequenceScores, gather_audit
from flatminima.text.batches import read_tokenizer
from flatminima.text.tokens import write_tokens
from flatminima.tools.deployed import FORMATS, probe_deployed
from flatminima.tools.options import AuditOptions
from flatminima.tools.sources import fixed_batches, learning_rates, open_source, open_text

PASSED, BAD_INPUT, LEFT_PLATEAU = 0, 2, 3
FEWEST = 4 + SPARE  # checkpoints that a line with a break takes
PHASE_RESAMPLES = 100
TABLES = ("audit.csv", "audit_sequences.parquet")
RECORD, VALIDATION, DEPLOYED = "audit.json", "validation.safetensors", "deployed.csv"
FIGURES, PAGE = ("audit.pdf", "audit.svg", "audit.png"), "audit.html"
# What is printed of a checkpoint, and how wide.
COLUMNS = {"step": 9, "FP32 ppl": 11, "INT4 ppl": 11, "INT4 gap %": 12, "95 % interval": 20,
           "INT8 gap %": 12, "top-1 %": 9}  # fmt: skip
_SVG = '<svg role="img" aria-label="gaps, FP32 perplexity and learning rate over training steps" '
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em}}
svg {{width: 100%; height: auto}} .wide {{overflow-x: auto}} table {{border-collapse: collapse}}
th, td {{text-align: right; padding: .1em .8em; border-bottom: 1px solid #ddd}}</style></head>
<body><h1>{title}</h1>
<ul>{answers}</ul>
{figure}
<h2>Checkpoints</h2><div class="wide">{table}</div>
<h2>What was measured</h2><ul>{notes}</ul></body></html>
"""


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


class _LeftOut(Exception):
    """Why one checkpoint was not measured; the others go on."""


class _Watched(Prober):
    """A prober that calls ``after_batch`` for each batch that is scored."""

    after_batch: Callable[[], object]

    def score(self, forwards: Mapping[str, Forward]) -> dict[str, SequenceScores]:
        last = list(forwards)[-1]

        def counted(ids: torch.Tensor) -> Iterator[torch.Tensor]:
            found = forwards[last](ids)
            self.after_batch()
            return found

        return super().score({**forwards, last: counted})


class _Audit:
    """One audit: its options, its source, its folder, and the record that it leaves.

    ``record`` has what was asked, ``checkpoints`` (identity by step), ``left_out`` (reasons by
    step), ``notes`` (what a reader of the numbers should know, a line each), what the prober
    knows of itself, the verdict, its answers and its phases.
    """

    def __init__(self, options: AuditOptions, console: Console) -> None:
        check_options(options)
        self.options, self.console = options, console
        self.source = open_source(options.target, options.revisions)
        self.folder = Path(options.out or f"audit-{options.name}")
        self.prober: _Watched | None = None
        self.kind = ""  # of the first model that was measured
        self.record: dict = {
            "target": options.target, "checkpoints": {}, "left_out": {}, "notes": [],
        }  # fmt: skip

    def say(self, line: str) -> None:
        with tqdm.external_write_mode() if self.console.is_terminal else nullcontext():
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def note(self, line: str) -> None:
        """Say a line and keep it in the record."""
        self.say(line)
        self.record["notes"].append(line)

    def run(self) -> tuple[Verdict, dict]:
        for line in self.source.skipped:
            self.note(f"skipped: {line}")
        for line in self.source.notes:
            self.note(line)
        self._claim_folder()
        audited, sequences = self._measure_all()
        verdict = judge(audited, sequences, min(self.options.resamples, PHASE_RESAMPLES))
        words, last = f"INT4 gap: {verdict.words}", self.source.steps[-1]
        if last in self.record["left_out"]:
            words += f"; step {last:,}, the last, could not be measured"
        told = [words, *answers(audited, verdict.phases)]
        self.record |= {"left_plateau": verdict.left, "verdict": verdict.words, "answers": told,
                        "phases": verdict.phases, **self.prober.made_by}  # fmt: skip
        same = self._same_weights()
        for steps in same:
            self.note(f"steps {', '.join(f'{s:,}' for s in steps)} hold the same weights")
        written = [*TABLES, RECORD, VALIDATION, *self._draw(audited, verdict.phases), PAGE]
        write_json(self.folder / RECORD, self.record)
        self._write_page(audited)
        if self.options.deployed:
            self._probe_as_shipped(sequences)
            written.append(DEPLOYED)
        self.say(f"{self.folder}: {', '.join(written)}")
        if same and len(same[0]) == len(self.record["checkpoints"]):
            hub = "; the hub, or a mirror of it, ignores the revision" if self.source.repo else ""
            raise UserError(f"{self.options.target}: all {len(same[0])} checkpoints hold the same "
                            f"weights, so there is no curve{hub}")  # fmt: skip
        for line in told:
            self.say(line)
        rows = audited.astype(object).where(audited.notna(), None).to_dict("records")
        return verdict, {**self.record, "folder": str(self.folder), "rows": rows}

    def _claim_folder(self) -> None:
        """Make the folder of the results, unless it holds those of another run."""
        other = None
        if (self.folder / RECORD).is_file():
            try:
                other = str(json.loads((self.folder / RECORD).read_text("utf-8"))["target"])
            except (ValueError, KeyError, TypeError):
                other = "something else"
        elif any((self.folder / name).exists() for name in (*TABLES, *FIGURES)):
            other = "something else"
        if other and os.path.realpath(other) != os.path.realpath(self.options.target):
            raise UserError(
                f"{self.folder} holds the audit of {other}; name another folder with --out"
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
            progress(None, "scored", total=len(source.steps)) as bar,
        ):
            for done, step in enumerate(source.steps, start=1):
                try:
                    measured, summary = self._measure(step, texts, words, file, bar)
                except _LeftOut as reason:
                    self.record["left_out"][step] = str(reason)
                    if len(source.steps) > 1:  # else it ends the audit, and is said there
                        self.say(f"not measured: {reason}")
                    continue
                finally:
                    bar.update(done * bar.total // len(source.steps) - bar.n)
                if not scores:
                    self.say(_line(COLUMNS))
                self.say(_line(cells(summary)))
                scores.append(measured)
                rows.append(summary)
                audited = gather_audit(
                    pd.concat(rows), (lambda s: rates.get(s, np.nan)) if rates else None,
                    suite=self.options.name, lr_max=max(rates.values(), default=None),
                    tokens_per_step=None,
                )  # fmt: skip
                # Whole or not at all: an audit that is stopped loses nothing.
                with atomic_path(self.folder / TABLES[0]) as path:
                    audited.to_csv(path, index=False)
                with atomic_path(self.folder / TABLES[1]) as path:
                    pd.concat(scores).to_parquet(path, index=False)
        if not scores:
            reasons = [*self.record["left_out"].values()]
            rest = f" (none of {len(reasons)} checkpoints is measured)" if len(reasons) > 1 else ""
            raise UserError(reasons[0] + rest)
        return audited, pd.concat(scores)

    def _measure(
        self, step: int, texts: Iterable[str], words: str, tokenizer_file: Path, bar: tqdm
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Scores of one checkpoint by sequence, and their summary. Raises ``_LeftOut``."""
        try:
            with self.source.checkpoint(step) as (place, origin):
                with self._leaving_out(step):
                    model = load_model(place)
                    weights = place / WEIGHTS_FILE  # which transformers takes, else the shards
                    if not weights.is_file():
                        weights = place / f"{WEIGHTS_FILE}{INDEX_SUFFIX}"
                    digest = weights_digest(tensor_digests(weights))
                if self.prober is None:  # what it raises ends the audit
                    self.prober = self._prepare(model, texts, words, tokenizer_file)
                    bar.total *= self._batches()
                    self.prober.after_batch = bar.update
                with self._leaving_out(step):
                    scores = self.prober(model.to(self.prober.device), step)
                    resamples = self.options.resamples
                    summary = summarise(scores, ["step"], resamples=resamples, seed=0)
        except RevisionMissing as error:
            raise _LeftOut(str(error)) from error
        self.record["checkpoints"][step] = {
            "place": self.source.places[step], **origin, "weights_sha256": digest,
        }  # fmt: skip
        kind = f"{model.config.model_type} of {count_weights(model):,} weights"
        self.kind = self.kind or kind
        if kind != self.kind:
            self.note(f"step {step}: {kind}, not {self.kind} as before it")
        if summary.set_index("role")["gap_pct"][LOW_BIT] == 0.0:
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

    def _batches(self) -> int:
        return math.ceil(len(self.prober.tokens) / self.prober.batch_size)

    def _prepare(
        self, model: nn.Module, texts: Iterable[str], words: str, tokenizer_file: Path
    ) -> _Watched:
        """The prober of all checkpoints, fitted to a model of theirs."""
        options, config = self.options, text_config(model)
        most = getattr(config, "max_position_embeddings", None)
        fits = not (isinstance(most, int) and 1 < most < options.length)
        tokens, made = fixed_batches(
            texts, read_tokenizer(tokenizer_file), sequences=options.sequences,
            length=options.length if fits else most,
            batch_size=min(options.batch_size, options.sequences), name=words,
            configured_end=getattr(config, "eos_token_id", None),
        )  # fmt: skip
        # An earlier audit's files, none of which belongs to the numbers that come.
        for name in (*TABLES, *FIGURES, RECORD, VALIDATION, DEPLOYED, PAGE):
            (self.folder / name).unlink(missing_ok=True)
        write_tokens(self.folder / VALIDATION, tokens)
        words += f", {len(tokens)} sequences of {tokens.shape[1]} tokens, {made}"
        if not fits:
            words += f"; this model takes no more (--length is {options.length})"
        if options.data is None:
            words += "; embedded text, perhaps unlike what this model was trained on: see --data"
        self.record["text"] = words
        write_json(self.folder / RECORD, self.record)
        self.say(f"text: {words}")
        return _Watched(
            str(self.folder / VALIDATION), probe_settings(options), torch.get_num_threads()
        )

    def _same_weights(self) -> list[list[int]]:
        """Steps that hold the same weights; 0 and 1 may, where the first rate is zero."""
        by_digest: dict[str, list[int]] = {}
        for step, known in self.record["checkpoints"].items():
            by_digest.setdefault(known["weights_sha256"], []).append(step)
        return [steps for steps in by_digest.values() if len(steps) > 1 and max(steps) > 1]

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

    def _write_page(self, audited: pd.DataFrame) -> None:
        """All of it in one file that needs no other."""
        found, figure = self.record, self.folder / "audit.svg"
        drawn = figure.read_text("utf-8") if figure.is_file() else ""
        drawn = drawn[drawn.find("<svg") :].replace("<svg ", _SVG, 1)
        left = found["left_out"].values()
        covered = (f"{n}: {coverage_line(part)}" for n, part in found["coverage"].items())
        notes = [f"{found['target']}, {found['text']}", *covered, *found["notes"],
                 *found["peculiarities"], *(f"not measured: {line}" for line in left)]  # fmt: skip
        rows = [cells(rows) for _, rows in audited.groupby("step")]
        page = _PAGE.format(
            title=html.escape(f"Audit of {self.options.name}"),
            answers="".join(f"<li>{html.escape(line)}</li>" for line in found["answers"]),
            figure=drawn,
            table=pd.DataFrame(rows, columns=[*COLUMNS]).to_html(index=False, border=0),
            notes="".join(f"<li>{html.escape(line)}</li>" for line in notes),
        )
        (self.folder / PAGE).write_text(page, encoding="utf-8")

    def _probe_as_shipped(self, sequences: pd.DataFrame) -> None:
        """Write ``deployed.csv`` of the last checkpoint and print each format's gap."""
        step, prober = max(self.record["checkpoints"]), self.prober
        with self.source.checkpoint(step) as (place, _):
            model = load_model(place, prober.device)
        with progress(None, "as shipped", total=len(FORMATS) * self._batches()) as bar:
            prober.after_batch = bar.update
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


def cells(rows: pd.DataFrame) -> list[str]:
    """What is shown of a checkpoint, from its rows of the audit, under ``COLUMNS``."""
    by_role = rows.set_index("role")
    low, high, fp32 = (by_role.loc[role] for role in (LOW_BIT, HIGH_BIT, FP32))
    gaps = [low["gap_pct"], low["gap_low_pct"], low["gap_high_pct"], high["gap_pct"]]
    gap, from_, to, gap8 = (f"{v:.3f}" if abs(v) < 1e5 else f"{v:.2e}" for v in gaps)
    ppl, ppl4 = (f"{v:.3f}" if v < 1e6 else f"{v:.3e}" for v in (fp32["ppl"], low["ppl"]))
    return [f"{low['step']:,}", ppl, ppl4, gap, f"[{from_}, {to}]", gap8,
            f"{low['top1_changed_pct']:.2f}"]  # fmt: skip


def _line(shown: Iterable[str]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(shown, COLUMNS.values(), strict=True))


def even_spacing(steps: np.ndarray) -> int:
    """The commonest distance of steps after 0 if most of them are multiples of it, else 1."""
    steps = np.sort(steps[steps > 0])
    if len(steps) < 2:
        return 1
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    spacing = int(distances[np.argmax(counts)])
    return spacing if 2 * np.sum(steps % spacing == 0) > len(steps) else 1


def judge(audited: pd.DataFrame, sequences: pd.DataFrame, resamples: int) -> Verdict:
    """Apply the rule to an audit and its per-sequence scores (``phases.describe_phases``)."""
    steps = even_steps(audited["step"], 1)  # all after step 0
    spacing = even_spacing(steps)
    even = len(even_steps(steps, spacing))
    if even < FEWEST:
        found = f"{even} checkpoint{'s' if even != 1 else ''} after step 0"
        if even < len(steps):
            found = f"{even} of {len(steps)} checkpoints after step 0, every {spacing:,} steps,"
        words = f"undecided: {found} {'are' if even != 1 else 'is'} too few, {FEWEST} are needed"
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
    by_role = {role: part.set_index("step").sort_index() for role, part in audited.groupby("role")}
    low = by_role[LOW_BIT]
    end, last = low.iloc[-1], low.index[-1]
    cost = (
        f"Is INT4 affordable? At step {last:,} it costs {end['gap_pct']:.2f} % of perplexity "
        f"[{end['gap_low_pct']:.2f}, {end['gap_high_pct']:.2f}], "
        f"{end['delta_nll_nats_per_token']:.4f} nats per token"
    )
    if end["gap_low_pct"] <= 0.0:
        cost += ", so no cost can be told from zero on this text"
    best, rise = phases["convergence"]["step"], phases["convergence"].get("rise_pct")
    if len(low) == 1:
        converged = "cannot be told from one checkpoint"
    elif best == last:
        converged = "not yet: its perplexity is lowest at the last checkpoint"
    else:
        converged = f"yes, at step {best:,}"
        if rise is not None:
            converged += f"; its perplexity is up {rise:.1f} % since"
    try:
        spacing = even_spacing(low.index.to_numpy())
        trend = excess_sentence(suite_excess(audited, phases, spacing=spacing))
    except UserError as error:
        trend = f"cannot be told: {error}"
    except (KeyError, IndexError):  # an audit that is too short for phases
        trend = "cannot be told from so few checkpoints"
    best = {role: part.loc[part["ppl"].idxmin()] for role, part in by_role.items()}
    ship = "; ".join(
        f"at {name} step {best[role].name:,} (perplexity {best[role]['ppl']:.2f})"
        for name, role in (("INT4", LOW_BIT), ("INT8", HIGH_BIT), ("FP32", FP32))
    )
    return [
        cost,
        f"Has FP32 converged? {converged[0].upper()}{converged[1:]}",
        f"Has the gap left its trend? {trend[0].upper()}{trend[1:]}",
        f"What to ship, by the lowest perplexity of each width: {ship}",
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
