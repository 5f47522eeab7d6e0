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
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm

from flatminima import gap_figure, style
from flatminima.absent_steps import even_steps
from flatminima.audit_table import gather_audit
from flatminima.device import choose_device
from flatminima.errors import NotMeasured, UserError, one_line
from flatminima.files import read_json, weights_digest, write_json, write_table
from flatminima.hub import RevisionMissing
from flatminima.intervals import summarise
from flatminima.jobs import progress
from flatminima.model import load_model, tensor_digests
from flatminima.pages import packaged_template, render
from flatminima.phases import SPARE, describe_phases
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT, printed_names
from flatminima.quantizers import coverage_line
from flatminima.revisions import read_checkpoint
from flatminima.scaling_law import Answer, excess_answer, excess_sentence, suite_excess
from flatminima.scoring import Prober
from flatminima.text.tokens import fixed_batches, write_tokens
from flatminima.tools import sources
from flatminima.tools.audit_options import AuditOptions
from flatminima.tools.deployed import probe_deployed

logger = logging.getLogger(__name__)

PASSED, BAD_INPUT, LEFT_PLATEAU = 0, 2, 3
FEWEST = 4 + SPARE  # checkpoints that a line with a break takes
PHASE_RESAMPLES = 100
AUDIT, SEQUENCES = "audit.csv", "audit_sequences.parquet"
RECORD, VALIDATION, DEPLOYED = "audit.json", "validation.safetensors", "deployed.csv"
FIGURES, PAGE = ("audit.pdf", "audit.svg", "audit.png"), "audit.html"
FILES = (AUDIT, SEQUENCES, RECORD, VALIDATION, *FIGURES, PAGE, DEPLOYED)
# What is printed of a checkpoint, and how wide.
COLUMNS = {"step": 9, "FP32 ppl": 11, "INT4 ppl": 11, "INT4 gap %": 12, "95 % interval": 20,
           "INT8 gap %": 12, "top-1 %": 9}  # fmt: skip


def audit(options: AuditOptions) -> int:
    """Run an audit and return its exit code: ``PASSED``, ``BAD_INPUT`` or ``LEFT_PLATEAU``.

    Progress goes to standard output, or to standard error with ``--json``. A mistake of the user
    ends the audit with one line, and the results so far are kept.
    """
    choose_device(options.device)  # before anything is fetched
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        try:
            found = _audit(options)
        except (UserError, FloatingPointError, OSError) as error:
            found = {"target": options.target, "error": one_line(error, 1000)}
            tqdm.write(f"Error: {found['error']}")
    if options.json:
        print(json.dumps(found, indent=2, default=str))
    if "error" in found:
        return BAD_INPUT
    return LEFT_PLATEAU if found["left_plateau"] else PASSED


def _claim_folder(options: AuditOptions) -> None:
    """Make the folder of the results, unless it holds those of another run."""
    if any((options.folder / name).exists() for name in FILES):
        try:
            other = str(read_json(options.folder / RECORD)["target"])
        except (OSError, ValueError, KeyError, TypeError):
            other = "something else"
        if os.path.realpath(other) != os.path.realpath(options.target):
            line = f"{options.folder} holds the audit of {other}; name another folder with --out"
            raise UserError(line)
    options.folder.mkdir(parents=True, exist_ok=True)


def _note(record: dict, line: str) -> None:
    """Say a line and keep it in the record."""
    tqdm.write(line)
    record["notes"].append(line)


def _audit(options: AuditOptions) -> dict:
    """The record of an audit, its folder and its rows; its files lie in the folder.

    The record has what was asked, ``checkpoints`` (identity by step), ``left_out`` (reasons by
    step), ``notes`` (what a reader of the numbers should know, a line each), what the prober
    knows of itself, the verdict, its answers and its phases.
    """
    folder, source = options.folder, sources.open_source(options.target, options.revisions)
    record: dict = {"target": options.target, "checkpoints": {}, "left_out": {}, "notes": []}
    _claim_folder(options)
    audited, sequences, prober = _measure_all(source, options, record)
    left, words, phases = judge(audited, sequences, min(options.resamples, PHASE_RESAMPLES))
    told, last = [f"INT4 gap: {words}", *answers(audited, phases)], source.steps[-1]
    if last in record["left_out"]:
        told[0] += f"; step {last:,}, the last, could not be measured"
    record |= {"left_plateau": left, "verdict": words, "answers": told, "phases": phases,
               **prober.made_by}  # fmt: skip
    digests = pd.DataFrame.from_dict(record["checkpoints"], "index")["weights_sha256"]
    # Steps 0 and 1 may be the same, where the first rate is zero.
    same = [g for g in digests.groupby(digests).groups.values() if len(g) > 1 and max(g) > 1]
    for steps in same:
        _note(record, f"steps {', '.join(f'{s:,}' for s in steps)} hold the same weights")
    write_json(folder / RECORD, record)
    if len(digests) > 1:  # else it is no curve
        label = options.name.replace("$", r"\$")  # mathematics to matplotlib
        suite = {"label": label, "quantizers": printed_names(prober.specs)}
        figure = gap_figure.draw(audited, phases, suite=suite)
        style.save(figure, [folder / name for name in FIGURES])
    _write_page(options, record, audited)
    if options.deployed:
        _probe_as_shipped(options, source, prober, sequences)
    tqdm.write(f"{folder}: {', '.join(name for name in FILES if (folder / name).exists())}")
    if same and len(same[0]) == len(digests):
        hub = "; the hub, or a mirror of it, ignores the revision" if source.repo else ""
        raise UserError(
            f"{options.target}: all {len(digests)} checkpoints hold the same weights, so there is "
            f"no curve{hub}"
        )
    tqdm.write("\n".join(told))
    rows = audited.astype(object).where(audited.notna(), None).to_dict("records")
    return {**record, "folder": str(folder), "rows": rows}


# Measuring


def _measure_all(
    source: sources.Source, options: AuditOptions, record: dict
) -> tuple[pd.DataFrame, pd.DataFrame, Prober]:
    """Audit, per-sequence scores and the prober; what is measured is on disk at once."""
    scores, rows, prober, left_out = [], [], None, record["left_out"]
    text = sources.open_text(options.data)
    rates, lines = sources.learning_rates(source)
    for line in (*source.notes, *lines):
        _note(record, line)
    tokenizer = source.tokenizer(options.tokenizer)
    for step in progress(source.steps, "checkpoints"):
        model = None  # freed before the next one is loaded
        try:
            with source.checkpoint(step) as (place, origin):
                with _named(source, step):
                    model = load_model(place)
                    digests = tensor_digests(place / read_checkpoint(place).weights)
                if prober is None:  # what is wrong with the text ends the audit
                    prober = _prepare(options, record, model, text, tokenizer)
                with _named(source, step):
                    model = model.to(prober.device)
                    measured = prober(model, step)
                    found = summarise(measured, ["step"], resamples=options.resamples, seed=0)
        except (NotMeasured, RevisionMissing) as reason:
            left_out[step] = str(reason)
            if len(source.steps) > 1:  # else it ends the audit, and is said there
                tqdm.write(f"not measured: {reason}")
            continue
        if not scores:
            tqdm.write(_line(COLUMNS))
        tqdm.write(_line(cells(found)))
        known = {"place": source.places[step], "weights_sha256": weights_digest(digests)}
        record["checkpoints"][step] = known | origin
        if found.set_index("role")["gap_pct"][LOW_BIT] == 0.0:
            words = "a 4-bit gap of exactly 0 %: does the model use its weights?"
            _note(record, f"step {step}: {words}")
        scores.append(measured)
        rows.append(found)
        lr_max = max(rates.values(), default=None)
        audited = gather_audit(
            pd.concat(rows), rates, suite=options.name, lr_max=lr_max, tokens_per_step=None
        )
        write_table(options.folder / AUDIT, audited)
        write_table(options.folder / SEQUENCES, pd.concat(scores))
    if not scores:
        reason, *others = left_out.values()
        rest = f" (none of {1 + len(others)} checkpoints is measured)" if others else ""
        raise UserError(reason + rest)
    return audited, pd.concat(scores), prober


@contextmanager
def _named(source: sources.Source, step: int) -> Iterator[None]:
    """Turn any error over one checkpoint into ``NotMeasured`` with place, step and reason.

    The other checkpoints are still measured. ``--traceback`` shows where an unexpected error
    came from.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001
        place = source.places[step]
        reason = one_line(error)
        if not isinstance(error, UserError | OSError):
            logger.debug(f"step {step}", exc_info=error)
            reason = f"unexpected {type(error).__name__}: {reason} (see --traceback)"
        for prefix in (f"step {step}: ", f"{place}: "):
            reason = reason.removeprefix(prefix)
        where = f"{source.repo} at {place}" if source.repo else place
        raise NotMeasured(f"{where}: step {step}: {reason}") from error


def _prepare(
    options: AuditOptions, record: dict, model: nn.Module, text: sources.Text, tokenizer: Tokenizer
) -> Prober:
    """The prober of all checkpoints, fitted to a model of theirs."""
    folder, (texts, words) = options.folder, text
    config = model.config.get_text_config(decoder=True)
    most = getattr(config, "max_position_embeddings", None)
    fits = not (isinstance(most, int) and 1 < most < options.length)
    end, made = sources.document_end(tokenizer, getattr(config, "eos_token_id", None))
    cut = {"sequences": options.sequences, "length": options.length if fits else most}
    tokens = fixed_batches(tokenizer, texts, end, **cut)
    for name in FILES:  # of an earlier audit, none of which belongs to the numbers that come
        (folder / name).unlink(missing_ok=True)
    write_tokens(folder / VALIDATION, tokens)
    words += f", {len(tokens)} sequences of {tokens.shape[1]} tokens, {made}"
    if not fits:
        words += f"; this model takes no more (--length is {options.length})"
    if options.data is None:
        words += "; embedded text, perhaps unlike what this model was trained on: see --data"
    record["text"] = words
    write_json(folder / RECORD, record)
    tqdm.write(f"text: {words}")
    return Prober(str(folder / VALIDATION), probe_settings(options), torch.get_num_threads())


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


def _probe_as_shipped(
    options: AuditOptions, source: sources.Source, prober: Prober, sequences: pd.DataFrame
) -> None:
    """Write ``deployed.csv`` of the last checkpoint and print each format's gap."""
    step = int(sequences["step"].max())
    with source.checkpoint(step) as (place, _):
        model = load_model(place, prober.device)
    simulated = sequences[sequences["step"] == step]
    table = probe_deployed(model, prober, step, simulated, resamples=options.resamples)
    table.to_csv(options.folder / DEPLOYED, index=False)
    shown = ["format", "gap_pct", "gap_low_pct", "gap_high_pct", "counterpart", "simulated_gap_pct"]
    measured = table.loc[table["status"] == "measured", shown]
    tqdm.write(measured.to_string(index=False, float_format="{:.3f}".format))


# What is shown


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


def _write_page(options: AuditOptions, record: dict, audited: pd.DataFrame) -> None:
    """All of it in one file that needs no other."""
    svg = options.folder / "audit.svg"
    drawing = svg.read_text("utf-8") if svg.is_file() else ""
    notes = [f"{record['target']}, {record['text']}"]
    notes += [f"{name}: {coverage_line(part)}" for name, part in record["coverage"].items()]
    notes += [*record["notes"], *record["peculiarities"]]
    notes += [f"not measured: {reason}" for reason in record["left_out"].values()]
    context = {
        "title": f"Audit of {options.name}",
        "answers": record["answers"],
        "drawing": drawing[drawing.find("<svg") :],  # without the XML declaration before it
        "columns": list(COLUMNS),
        "rows": [cells(rows) for _, rows in audited.groupby("step")],
        "notes": notes,
    }
    page = render(packaged_template("audit.html.j2"), context)
    (options.folder / PAGE).write_text(page, encoding="utf-8")


# What it comes to


def even_spacing(steps: np.ndarray) -> int:
    """The commonest distance of steps after 0 if most of them are multiples of it, else 1."""
    steps = even_steps(steps, 1)
    spacing = int(pd.Series(np.diff(steps)).mode().get(0, 1))
    return spacing if 2 * len(even_steps(steps, spacing)) > len(steps) else 1


def judge(
    audited: pd.DataFrame, sequences: pd.DataFrame, resamples: int
) -> tuple[bool | None, str, dict]:
    """Whether the plateau is left (``None``: cannot be told), in words, and the phases.

    ``sequences`` are the per-sequence scores of the audit (``phases.describe_phases``).
    """
    steps = even_steps(audited["step"], 1)  # all after step 0
    spacing = even_spacing(steps)
    even = len(even_steps(steps, spacing))
    if even < FEWEST:
        words = (
            f"undecided: it takes {FEWEST} evenly spaced checkpoints after step 0, and this run "
            f"has {even} of {len(steps)}"
        )
        return None, words, _without_phases(audited)
    phases = describe_phases(audited, sequences, spacing=spacing, resamples=resamples, seed=0)
    onset = phases["onset"]
    if onset["step"] is None:
        too_few = onset["delta_bic"] is None
        words = f"{'undecided' if too_few else 'no onset, so no plateau left'}: {onset['reason']}"
        return None if too_few else False, words, phases
    gaps = audited[audited["role"] == LOW_BIT].set_index("step")
    plateau = gaps.loc[phases["rapid_learning_end"]["step"] : onset["step"], "gap_pct"]
    last, highest = gaps.iloc[-1], plateau.max()
    left = bool(last["gap_low_pct"] > highest)
    words = (
        f"{'has left its plateau' if left else 'on its plateau'}: onset at step "
        f"{onset['step']:,}; gap of step {gaps.index[-1]:,} {last['gap_pct']:.2f} % "
        f"[{last['gap_low_pct']:.2f}, {last['gap_high_pct']:.2f}], highest before {highest:.2f} %"
    )
    return left, words, phases


def _without_phases(audited: pd.DataFrame) -> dict:
    """As much of phases.json as a figure needs, for an audit that is too short for phases."""
    fp32 = audited[audited["role"] == FP32].set_index("step")
    none, best = {"step_low": None, "step_high": None}, int(fp32["ppl"].idxmin())
    whole = {"first_step": int(fp32.index[0]), "last_step": int(fp32.index[-1])}
    return {
        "convergence": {"step": best, "ppl": float(fp32["ppl"].min()), **none},
        "onset": {"step": None, **none},
        "segments": [{"phase": 1, "name": "all checkpoints", **whole}],
    }


def answers(audited: pd.DataFrame, phases: dict) -> list[str]:
    """What a trainer asks: the cost at the end, FP32's convergence, the trend, what to ship."""
    by_role = {role: part.set_index("step") for role, part in audited.groupby("role")}
    low = by_role[LOW_BIT]
    end, last = low.iloc[-1], low.index[-1]
    cost = (
        f"At step {last:,} it costs {end['gap_pct']:.2f} % of perplexity "
        f"[{end['gap_low_pct']:.2f}, {end['gap_high_pct']:.2f}], "
        f"{end['delta_nll_nats_per_token']:.4f} nats per token"
    )
    if end["gap_low_pct"] <= 0.0:
        cost += ", so no cost can be told from zero on this text"
    best, rise = phases["convergence"]["step"], phases["convergence"].get("rise_pct")
    converged = f"Yes, at step {best:,}"
    if len(low) == 1:
        converged = "Cannot be told from one checkpoint"
    elif best == last:
        converged = "Not yet: its perplexity is lowest at the last checkpoint"
    elif rise is not None:
        converged += f"; its perplexity is up {rise:.1f} % since"
    trend = trend_answer(audited, phases)
    lowest = {role: part.loc[part["ppl"].idxmin()] for role, part in by_role.items()}
    ship = "; ".join(
        f"at {name} step {lowest[role].name:,} (perplexity {lowest[role]['ppl']:.2f})"
        for name, role in (("INT4", LOW_BIT), ("INT8", HIGH_BIT), ("FP32", FP32))
    )
    return [
        f"Is INT4 affordable? {cost}",
        f"Has FP32 converged? {converged}",
        f"Has the gap left its trend? {trend}",
        f"What to ship, by the lowest perplexity of each width: {ship}",
    ]


def trend_answer(audited: pd.DataFrame, phases: dict) -> str:
    """Whether the low-bit loss left its own power law: yes, no, or that it cannot be told."""
    if "rapid_learning_end" not in phases:  # those of ``_without_phases``
        return "Cannot be told from so few checkpoints"
    try:
        excess = suite_excess(audited, phases, spacing=even_spacing(audited["step"].unique()))
    except UserError as error:
        return f"Cannot be told: {error}"
    sentence = excess_sentence(excess)
    yes_or_no = {Answer.LEFT: "Yes, ", Answer.DID_NOT_LEAVE: "No, "}.get(excess_answer(excess), "")
    sentence = yes_or_no + sentence
    return sentence[0].upper() + sentence[1:]
