"""An audit from the first checkpoint to the verdict."""

import json
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console

from flatminima.audit_command.options import AuditOptions
from flatminima.audit_command.plateau import Verdict, judge
from flatminima.audit_command.report import TABLES, LiveTable, write_figure, write_tables
from flatminima.audit_command.sources import Source, open_source
from flatminima.audit_command.validation import fixed_batches, open_text
from flatminima.auditing import gather_audit
from flatminima.checkpoints import load_model
from flatminima.deployed import probe_deployed
from flatminima.errors import DamagedFile, UserError
from flatminima.files import write_json
from flatminima.hub.errors import HubError, RevisionMissing
from flatminima.intervals import summarise
from flatminima.layers import linear_layers
from flatminima.probing import Prober, choose_device
from flatminima.streaming.opening import open_model
from flatminima.streaming.stored import StoredModel
from flatminima.text.tokens import write_tokens

PASSED, BAD_INPUT, LEFT_PLATEAU = 0, 2, 3
PHASE_RESAMPLES = 100
RECORD, VALIDATION, DEPLOYED = "audit.json", "validation.safetensors", "deployed.csv"
TRAINER_STATE = "trainer_state.json"


def audit(options: AuditOptions, console: Console) -> int:
    """Run an audit and return its exit code: ``PASSED``, ``BAD_INPUT`` or ``LEFT_PLATEAU``.

    Whatever a user can put right ends it with one line; what was measured until then stays.
    """
    try:
        verdict = _audit(options, console)
    except (UserError, HubError, FloatingPointError, OSError) as error:
        console.print(f"Error: {' '.join(str(error).split())}", style="red", markup=False,
                      soft_wrap=True)  # fmt: skip
        return BAD_INPUT
    return LEFT_PLATEAU if verdict.left else PASSED


def _audit(options: AuditOptions, console: Console) -> Verdict:
    _check(options)
    source = open_source(options.target, options.revisions)
    for line in source.skipped:
        console.print(f"skipped: {line}", markup=False, soft_wrap=True)
    folder = Path(options.out or f"audit-{options.name}")
    folder.mkdir(parents=True, exist_ok=True)
    prober, words = _prepare(options, source, folder)
    console.print(f"text: {words}", markup=False, soft_wrap=True)
    measured, sequences = _probe_all(options, source, prober, folder, console)
    verdict = judge(measured, sequences, resamples=min(options.resamples, PHASE_RESAMPLES))
    figures = write_figure(folder, measured, verdict.phases, options.name)
    write_json(folder / RECORD, {
        "target": options.target, "text": words, "left_plateau": verdict.left,
        "verdict": verdict.words, "phases": verdict.phases, **prober.made_by,
    })  # fmt: skip
    (folder / DEPLOYED).unlink(missing_ok=True)  # an earlier audit's
    if options.deployed:
        _probe_as_shipped(options, source, prober, sequences, folder, console)
    written = [*TABLES, *(path.name for path in figures), RECORD, VALIDATION]
    written += [DEPLOYED] if options.deployed else []
    console.print(f"{folder}: {', '.join(written)}", markup=False, soft_wrap=True)
    console.print(f"INT4 gap: {verdict.words}", markup=False, soft_wrap=True)
    return verdict


def _check(options: AuditOptions) -> None:
    for name, least in (("sequences", 2), ("length", 2), ("batch_size", 1), ("group_size", 1),
                        ("resamples", 2)):  # fmt: skip
        if getattr(options, name) < least:
            value = getattr(options, name)
            raise UserError(f"--{name.replace('_', '-')} {value}: {least} or more")
    try:
        choose_device(options.device)
    except (KeyError, ValueError) as error:
        raise UserError(f"--device {options.device}: not available here") from error


def _prepare(options: AuditOptions, source: Source, folder: Path) -> tuple[Prober, str]:
    """The prober of all checkpoints, fitted to the last one, and which text it scores."""
    texts, words = open_text(options.data)
    with source.tokenizer(options.tokenizer) as file, source.checkpoint(source.steps[-1]) as last:
        opened = open_model(last)
        model = opened.model if isinstance(opened, StoredModel) else opened
        limit = getattr(model.config, "max_position_embeddings", None) or options.length
        end = model.config.eos_token_id
        length = min(options.length, limit)
        tokens = fixed_batches(
            texts, file, end=end[0] if isinstance(end, list) else end,
            sequences=options.sequences, length=length,
            batch_size=min(options.batch_size, options.sequences), name=words,
        )  # fmt: skip
    smallest = min(layer.in_features for layer in linear_layers(model).values())
    group = min(options.group_size, smallest)
    path = folder / VALIDATION
    write_tokens(path, tokens)
    low, high = f"int4_g{group}", "int8_channel"
    settings = {
        "quantizers": {
            low: {"bits": 4, "granularity": "group", "symmetric": False, "group_size": group},
            high: {"bits": 8, "granularity": "channel", "symmetric": True},
        },
        "roles": {low: "low_bit", high: "high_bit"},
        "batch_size": options.batch_size,
        "device": options.device,
    }
    words += f", {len(tokens)} sequences of {tokens.shape[1]} tokens"
    if length < options.length:
        words += f" (this model takes no more; --length is {options.length})"
    if options.data is None:
        words += "; embedded text, perhaps unlike what this model was trained on: see --data"
    return Prober(str(path), settings, torch.get_num_threads()), words


def _probe_all(
    options: AuditOptions, source: Source, prober: Prober, folder: Path, console: Console
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Probe every checkpoint; tables on disk hold each as soon as it is done."""
    scores, rows = [], []
    rates = _learning_rates(source)
    with LiveTable(console, len(source.steps), options.name).shown() as table:
        for step in source.steps:
            try:
                with source.checkpoint(step) as place:
                    scores.append(prober(prober.open(place), step))
            except (RevisionMissing, DamagedFile) as error:
                if step == source.steps[-1]:
                    raise
                console.print(f"skipped: {error}", markup=False, soft_wrap=True)
                continue
            rows.append(summarise(scores[-1], ["step"], resamples=options.resamples, seed=0))
            table.add(rows[-1])
            measured = gather_audit(
                pd.concat(rows), rates.get if rates else None, suite=options.name,
                lr_max=max(rates.values()) if rates else None, tokens_per_step=None,
            )  # fmt: skip
            write_tables(folder, measured, pd.concat(scores))
    return measured, pd.concat(scores)


def _learning_rates(source: Source) -> dict[int, float]:
    """Learning rate by step as the Trainer of a local run logged it; empty if it did not."""
    state = Path(source.places[source.steps[-1]]) / TRAINER_STATE
    if source.repo is not None or not state.is_file():
        return {}
    history = json.loads(state.read_text(encoding="utf-8")).get("log_history", [])
    logged = {e["step"]: e["learning_rate"] for e in history if "learning_rate" in e}
    return {step: logged[step] for step in source.steps if step in logged}


def _probe_as_shipped(
    options: AuditOptions, source: Source, prober: Prober, sequences: pd.DataFrame, folder: Path,
    console: Console,
) -> None:  # fmt: skip
    """Write ``deployed.csv`` of the last checkpoint and print each format's gap."""
    step = source.steps[-1]
    with source.checkpoint(step) as place:
        model = load_model(place, prober.device)
    table = probe_deployed(
        model, prober, step, sequences[sequences["step"] == step], resamples=options.resamples
    )
    table.to_csv(folder / DEPLOYED, index=False)
    for row in table[table["status"] == "measured"].itertuples():
        console.print(
            f"{row.format}: gap {row.gap_pct:.3f} % [{row.gap_low_pct:.3f}, "
            f"{row.gap_high_pct:.3f}], simulated {row.counterpart} {row.simulated_gap_pct:.3f} %",
            markup=False, soft_wrap=True,
        )  # fmt: skip
