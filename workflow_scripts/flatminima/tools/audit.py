"""The audit of one run or one hub model without any configuration: ``flatminima audit``.

Each checkpoint is measured at FP32, INT4 and INT8 on the same text. ``audit_answers`` turns the
numbers into a verdict and five answers.

An audit may end early: by Ctrl-C, by SIGTERM, because the pipe it prints to is closed, or because
the disk is full. Then everything that was printed is on the disk, and the page and the figure show
what was measured.
"""

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field

import pandas as pd
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm

from flatminima import gap_figure, style
from flatminima.audit_table import gather_audit
from flatminima.device import choose_device, choose_threads
from flatminima.errors import NotMeasured, Terminated, UserError, one_line
from flatminima.files import atomic_path, read_json, weights_digest, write_json, write_table
from flatminima.hub import RevisionMissing
from flatminima.intervals import summarise
from flatminima.jobs import progress
from flatminima.messages import silence_closed_pipes
from flatminima.model import load_model, tensor_digests
from flatminima.pages import packaged_template, render
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT, named_quantizer, printed_names
from flatminima.quantizers import coverage_line
from flatminima.revisions import read_checkpoint
from flatminima.scoring import Prober
from flatminima.text.tokens import fixed_batches, write_tokens
from flatminima.tools import sources
from flatminima.tools.audit_answers import answers, harmful_since, judge
from flatminima.tools.audit_options import AuditOptions
from flatminima.tools.deployed import probe_deployed

logger = logging.getLogger(__name__)

PASSED = 0
BAD_INPUT = 2
LEFT_PLATEAU = 3
# 128 and the number of the signal, as shells have it.
STOPPED_BY_USER = 130
STOPPED_BY_CLOSED_PIPE = 141
STOPPED_BY_SIGTERM = 143
PHASE_RESAMPLES = 100

AUDIT = "audit.csv"
SEQUENCES = "audit_sequences.parquet"
RECORD = "audit.json"
VALIDATION = "validation.safetensors"
FIGURES = ("audit.pdf", "audit.svg", "audit.png")
PAGE = "audit.html"
DEPLOYED = "deployed.csv"
FILES = (AUDIT, SEQUENCES, RECORD, VALIDATION, *FIGURES, PAGE, DEPLOYED)

# Columns of the table that is printed, and their widths in characters.
COLUMNS = {
    "step": 9,
    "FP32 ppl": 11,
    "INT4 ppl": 11,
    "INT4 gap %": 12,
    "95 % interval": 20,
    "INT8 gap %": 12,
    "top-1 %": 9,
}


@dataclass
class Measured:
    """What has been measured so far, and is on the disk.

    ``rows`` has a row per step and quantizer (audit.csv), ``sequences`` the scores of each
    sequence.
    """

    rates: dict[int, float] = field(default_factory=dict)  # logged learning rates by step
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)
    sequences: pd.DataFrame = field(default_factory=pd.DataFrame)
    prober: Prober | None = None


def audit(options: AuditOptions) -> int:
    """Run an audit and return its exit code.

    ``PASSED`` or ``LEFT_PLATEAU``; ``BAD_INPUT`` for a mistake of the user or a full disk, which
    ends the audit with one line; one of ``STOPPED_BY_…``. The results so far are kept. Progress
    goes to standard output, or to standard error with ``--json``.
    """
    choose_device(options.device)  # before anything is fetched
    for name in options.quantizer:
        named_quantizer(name)
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        try:
            report = _audit(options)
        except (UserError, FloatingPointError, OSError) as error:
            report = {"target": options.target, "error": one_line(error, 1000)}
            tqdm.write(f"Error: {report['error']}")
    if options.json:
        print(json.dumps(report, indent=2, default=str))
    if "error" in report:
        return BAD_INPUT
    if "stopped" in report:
        return report["exit_code"]
    return LEFT_PLATEAU if report["left_plateau"] else PASSED


def _audit(options: AuditOptions) -> dict:
    """Measure, write all files, and return the record with the results' folder and the rows.

    The record has the ``target``, ``checkpoints`` (identity by step), ``left_out`` (reasons by
    step), ``notes`` (one line each, for a reader of the numbers), the settings of the prober, the
    verdict, the answers and the phases. An audit that was ``stopped`` has the reason and the
    ``exit_code``.
    """
    source = sources.open_source(options.target, options.revisions)
    record: dict = {"target": options.target, "checkpoints": {}, "left_out": {}, "notes": []}
    _claim_folder(options)
    measured = Measured()
    write_error = None
    try:
        _measure_all(source, options, record, measured)
    except (KeyboardInterrupt, OSError) as error:
        if measured.rows.empty:
            raise
        count = len(record["checkpoints"])
        so_far = f"{count} of {len(source.steps)} checkpoints are measured and written"
        if isinstance(error, KeyboardInterrupt | BrokenPipeError):
            reason, record["exit_code"] = _stop_reason(error)
            record["stopped"] = f"{reason}; {so_far}"
            silence_closed_pipes()
        else:
            # A full disk. The audit goes on with what it has, and raises this at its end.
            write_error = error
    audited = measured.rows

    judgement = judge(audited, measured.sequences, min(options.resamples, PHASE_RESAMPLES))
    summary = answers(audited, judgement, options.harm)
    last_step = source.steps[-1]
    if last_step in record["left_out"]:
        summary[0] += f"; step {last_step:,}, the last, could not be measured"
    record["left_plateau"] = judgement.left_plateau
    record["verdict"] = judgement.sentence
    record["answers"] = summary
    record["harmful_since"] = harmful_since(
        audited[audited["role"] == LOW_BIT].set_index("step"), options.harm
    )
    record["phases"] = judgement.phases
    record |= measured.prober.made_by

    groups_of_equal_weights = _equal_checkpoints(record["checkpoints"])
    for steps in groups_of_equal_weights:
        steps_text = ", ".join(f"{step:,}" for step in steps)
        _add_note(record, f"steps {steps_text} hold the same weights")

    # A full disk refuses some files. The others are still written, and the answers printed.
    errors = [write_error] if write_error else []
    checkpoint_count = len(record["checkpoints"])
    with _collected(errors):
        write_json(options.folder / RECORD, record)
    with _collected(errors):
        if checkpoint_count > 1:  # one checkpoint makes no curve
            _draw_figure(options, measured, judgement.phases)
    with _collected(errors):
        _write_page(options, record, audited)
    with _collected(errors):
        if options.deployed and "stopped" not in record:
            _probe_as_shipped(options, source, measured.prober, measured.sequences)
    written_files = [name for name in FILES if (options.folder / name).exists()]
    tqdm.write(f"{options.folder}: {', '.join(written_files)}")

    # Errors come after all files are written, since the user can see in them what happened.
    if groups_of_equal_weights and len(groups_of_equal_weights[0]) == checkpoint_count:
        hub_reason = "; the hub, or a mirror of it, ignores the revision" if source.repo else ""
        raise UserError(
            f"{options.target}: all {checkpoint_count} checkpoints hold the same weights, so there "
            f"is no curve{hub_reason}"
        )
    tqdm.write("\n".join(summary))
    if errors:
        raise errors[0]
    if "stopped" in record:
        logger.error(record["stopped"])
    rows = audited.astype(object).where(audited.notna(), None).to_dict("records")
    return {**record, "folder": str(options.folder), "rows": rows}


def _stop_reason(error: BaseException) -> tuple[str, int]:
    """Why an audit ended early, in words, and its exit code."""
    if isinstance(error, BrokenPipeError):
        return "stopped because the pipe it prints to is closed", STOPPED_BY_CLOSED_PIPE
    if isinstance(error, Terminated):
        return "stopped by SIGTERM", STOPPED_BY_SIGTERM
    return "stopped by Ctrl-C", STOPPED_BY_USER


@contextmanager
def _collected(errors: list[Exception]) -> Iterator[None]:
    """Add an error of the block to ``errors``, so that the next file is still written."""
    try:
        yield
    except (UserError, OSError) as error:
        errors.append(error)
    except Exception as error:  # noqa: BLE001, a drawing library may raise anything
        logger.debug("", exc_info=error)
        reason = f"unexpected {type(error).__name__}: {one_line(error)} (see --traceback)"
        errors.append(UserError(reason))


def _claim_folder(options: AuditOptions) -> None:
    """Make the folder of the results, unless it contains those of another run."""
    if any((options.folder / name).exists() for name in FILES):
        try:
            previous_target = str(read_json(options.folder / RECORD)["target"])
        except (OSError, ValueError, KeyError, TypeError):
            previous_target = "something else"
        if os.path.realpath(previous_target) != os.path.realpath(options.target):
            raise UserError(
                f"{options.folder} contains the audit of {previous_target}; "
                "name another folder with --out"
            )
    options.folder.mkdir(parents=True, exist_ok=True)


def _add_note(record: dict, line: str) -> None:
    """Print a line and keep it in the record."""
    tqdm.write(line)
    record["notes"].append(line)


def _equal_checkpoints(checkpoints: dict[int, dict]) -> list[list[int]]:
    """Groups of steps whose checkpoints have the same weights, but for steps 0 and 1.

    Steps 0 and 1 are equal wherever the learning rate of the first update is zero.
    """
    steps_by_digest: dict[str, list[int]] = {}
    for step, identity in checkpoints.items():
        steps_by_digest.setdefault(identity["weights_sha256"], []).append(step)
    by_digest = sorted(steps_by_digest.items())
    return [steps for _, steps in by_digest if len(steps) > 1 and max(steps) > 1]


# Measuring


def _measure_all(
    source: sources.Source, options: AuditOptions, record: dict, measured: Measured
) -> None:
    """Measure all checkpoints into ``measured`` and ``record``.

    The tables are written anew after each checkpoint, before its line is printed. So an interrupted
    audit keeps all that it printed.
    """
    text = sources.open_text(options.data)
    rates, rate_notes = sources.learning_rates(source)
    for line in (*source.notes, *rate_notes):
        _add_note(record, line)
    measured.rates = rates
    tokenizer = source.tokenizer(options.tokenizer)

    score_tables = []
    summaries = []
    for step in progress(source.steps, "checkpoints"):
        model = None  # freed before the next one is loaded
        try:
            with source.checkpoint(step) as (folder, origin):
                with _errors_named(source, step):
                    model = load_model(folder)
                    digests = tensor_digests(folder / read_checkpoint(folder).weights)
                if measured.prober is None:  # outside ``_errors_named``: a bad text ends the audit
                    measured.prober = _make_prober(options, record, model, text, tokenizer)
                prober = measured.prober
                with _errors_named(source, step):
                    model = model.to(prober.device)
                    scores = prober(model, step)
                    summary = summarise(scores, ["step"], resamples=options.resamples, seed=0)
        except (NotMeasured, RevisionMissing) as error:
            record["left_out"][step] = str(error)
            if len(source.steps) > 1:  # a single checkpoint's error ends the audit, below
                tqdm.write(f"not measured: {error}")
            continue

        is_first = not score_tables
        further = _further_roles(summary)
        score_tables.append(scores)
        summaries.append(summary)
        audited = gather_audit(
            pd.concat(summaries),
            rates,
            suite=options.name,
            lr_max=max(rates.values(), default=None),
            tokens_per_step=None,
        )
        write_table(options.folder / AUDIT, audited)
        write_table(options.folder / SEQUENCES, pd.concat(score_tables))
        measured.rows = audited
        measured.sequences = pd.concat(score_tables)
        identity = {"place": source.places[step], "weights_sha256": weights_digest(digests)}
        record["checkpoints"][step] = identity | origin

        if is_first:
            tqdm.write(_line(columns(further), further))
        tqdm.write(_line(cells(summary), further))
        if summary.set_index("role")["gap_pct"][LOW_BIT] == 0.0:
            question = "a 4-bit gap of exactly 0 %: does the model use its weights?"
            _add_note(record, f"step {step}: {question}")

    if not score_tables:
        first_reason, *other_reasons = record["left_out"].values()
        if other_reasons:
            count = 1 + len(other_reasons)
            raise UserError(f"{first_reason} (none of {count} checkpoints is measured)")
        raise UserError(first_reason)


@contextmanager
def _errors_named(source: sources.Source, step: int) -> Iterator[None]:
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


def _make_prober(
    options: AuditOptions, record: dict, model: nn.Module, text: sources.Text, tokenizer: Tokenizer
) -> Prober:
    """The prober of all checkpoints; ``model`` is the first, which decides the length.

    Writes the validation batches, and deletes the files of an earlier audit.
    """
    documents, description = text
    config = model.config.get_text_config(decoder=True)
    longest = getattr(config, "max_position_embeddings", None)
    is_too_short = isinstance(longest, int) and 1 < longest < options.length
    length = longest if is_too_short else options.length

    end, batches = sources.document_end(tokenizer, getattr(config, "eos_token_id", None))
    tokens = fixed_batches(tokenizer, documents, end, sequences=options.sequences, length=length)
    for name in FILES:  # none of them belongs to the numbers that follow
        (options.folder / name).unlink(missing_ok=True)
    write_tokens(options.folder / VALIDATION, tokens)

    description += f", {len(tokens)} sequences of {tokens.shape[1]} tokens, {batches}"
    if is_too_short:
        description += f"; this model takes no more (--length is {options.length})"
    if options.data is None:
        description += "; embedded text, perhaps unlike what this model was trained on: see --data"
    record["text"] = description
    write_json(options.folder / RECORD, record)
    tqdm.write(f"text: {description}")
    threads = options.threads
    if threads is None:
        threads, reason = choose_threads(model)
        tqdm.write(f"threads: {threads}; {reason} (--threads)")
    validation = str(options.folder / VALIDATION)
    return Prober(validation, probe_settings(options), threads)


def probe_settings(options: AuditOptions) -> dict:
    """Settings of ``Prober``: the paper's two quantizers, and those of ``--quantizer``.

    The role of a further quantizer is its name. Narrow layers get narrow groups.
    """
    group_size = options.group_size
    low_bit = f"int4_g{group_size}"
    high_bit = "int8_channel"
    further = {name: named_quantizer(name) for name in options.quantizer}
    for name in (low_bit, high_bit):
        further.pop(name, None)  # it is measured in any case
    return {
        "quantizers": {
            low_bit: {
                "bits": 4,
                "granularity": "group",
                "symmetric": False,
                "group_size": group_size,
            },
            high_bit: {"bits": 8, "granularity": "channel", "symmetric": True},
            **further,
        },
        "roles": {low_bit: LOW_BIT, high_bit: HIGH_BIT, **{name: name for name in further}},
        "batch_size": options.batch_size,
        "device": options.device,
    }


def _probe_as_shipped(
    options: AuditOptions, source: sources.Source, prober: Prober, sequences: pd.DataFrame
) -> None:
    """Write ``deployed.csv`` of the last checkpoint and print each format's gap."""
    step = int(sequences["step"].max())
    with source.checkpoint(step) as (folder, _):
        model = load_model(folder, prober.device)
    simulated = sequences[sequences["step"] == step]
    table = probe_deployed(model, prober, step, simulated, resamples=options.resamples)
    write_table(options.folder / DEPLOYED, table)
    shown_columns = [
        "format",
        "gap_pct",
        "gap_low_pct",
        "gap_high_pct",
        "counterpart",
        "simulated_gap_pct",
    ]
    measured = table.loc[table["status"] == "measured", shown_columns]
    if measured.empty:
        tqdm.write(f"--deployed: no format could be measured; {DEPLOYED} has the reasons")
        return
    tqdm.write(measured.to_string(index=False, float_format="{:.3f}".format))


# Output


def columns(roles: Iterable[str] = ()) -> list[str]:
    """The printed columns, with the gap of each further quantizer."""
    return [*COLUMNS, *(f"{role} gap %" for role in roles)]


def cells(rows: pd.DataFrame) -> list[str]:
    """The printed cells of one checkpoint, in the order of ``columns``, from its audit rows."""
    by_role = rows.set_index("role")
    low = by_role.loc[LOW_BIT]
    return [
        f"{low['step']:,}",
        _perplexity(by_role.loc[FP32, "ppl"]),
        _perplexity(low["ppl"]),
        _percent(low["gap_pct"]),
        f"[{_percent(low['gap_low_pct'])}, {_percent(low['gap_high_pct'])}]",
        _percent(by_role.loc[HIGH_BIT, "gap_pct"]),
        f"{low['top1_changed_pct']:.2f}",
        *(_percent(by_role.loc[role, "gap_pct"]) for role in _further_roles(rows)),
    ]


def _further_roles(rows: pd.DataFrame) -> list[str]:
    """Roles beyond the paper's three, in order."""
    return [role for role in rows["role"].unique() if role not in (FP32, LOW_BIT, HIGH_BIT)]


def _perplexity(number: float) -> str:
    return f"{number:.3f}" if number < 1e6 else f"{number:.3e}"


def _percent(number: float) -> str:
    return f"{number:.3f}" if abs(number) < 1e5 else f"{number:.2e}"


def _line(texts: Iterable[str], roles: Iterable[str] = ()) -> str:
    """One line of the printed table, each text flush right in its column."""
    widths = [*COLUMNS.values(), *(len(f"{role} gap %") + 3 for role in roles)]
    return "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))


def _draw_figure(options: AuditOptions, measured: Measured, phases: dict) -> None:
    """Draw the gap over the steps, in three file formats."""
    label = options.name.replace("$", r"\$")  # between dollars, matplotlib sets mathematics
    suite = {"label": label, "quantizers": printed_names(measured.prober.specs)}
    figure = gap_figure.draw(measured.rows, phases, suite=suite, rates=measured.rates)
    style.save(figure, [options.folder / name for name in FIGURES])


def _write_page(options: AuditOptions, record: dict, audited: pd.DataFrame) -> None:
    """Write answers, figure, table and notes into one file that needs no other file."""
    svg = options.folder / "audit.svg"
    drawing = svg.read_text("utf-8") if svg.is_file() else ""
    notes = [f"{record['target']}, {record['text']}"]
    for name, coverage in record["coverage"].items():
        notes.append(f"{name}: {coverage_line(coverage)}")
    notes += record["notes"]
    if "stopped" in record:
        notes.append(record["stopped"])
    notes += record["peculiarities"]
    notes += [f"not measured: {reason}" for reason in record["left_out"].values()]
    context = {
        "title": f"Audit of {options.name}",
        "answers": record["answers"],
        "drawing": drawing[drawing.find("<svg") :],  # without the XML declaration before it
        "columns": columns(_further_roles(audited)),
        "rows": [cells(rows) for _, rows in audited.groupby("step")],
        "notes": notes,
    }
    page = render(packaged_template("audit.html.j2"), context)
    with atomic_path(options.folder / PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")
