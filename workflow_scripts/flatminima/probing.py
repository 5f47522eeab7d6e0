"""The probe of one model: full precision, low bit and high bit on the same batches."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from flatminima.evaluation import SequenceScores, score
from flatminima.files import describe_run
from flatminima.jobs import log, own_gpu, slots_folder
from flatminima.numerics import prepare_backend
from flatminima.quantizers import (
    coverage,
    coverage_line,
    probe_weights,
    read_specs,
)
from flatminima.roles import FP32
from flatminima.streaming.opening import load_whole, open_model
from flatminima.streaming.scoring import score_streamed
from flatminima.streaming.stored import CannotStream, StoredModel
from flatminima.text.tokens import check_ids, file_sha256, read_tokens


def choose_device(wanted: str) -> str:
    """The device that ``auto`` stands for here; another name is returned as it is.

    Raises ``ValueError`` where a device is asked for by name and is not there.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        return next(name for name, there in available.items() if there)
    if not available[wanted]:
        there = ", ".join(name for name, is_there in available.items() if is_there)
        raise ValueError(f"config key device: {wanted!r} is not available here; valid: {there}")
    return wanted


class Prober:
    """Scores models on one suite's validation batches, at full precision and quantized.

    ``validation`` is the token file; ``settings`` has ``quantizers`` (definitions by
    name), ``roles`` (``low_bit`` or ``high_bit`` by the same names), ``batch_size``,
    ``device`` and perhaps ``stream`` (``streaming.opening``). Sets the number of torch's
    threads and its numeric mode; where there are several GPUs, takes one for this process.
    """

    def __init__(self, validation: str, settings: Mapping, threads: int) -> None:
        torch.set_num_threads(threads)
        prepare_backend()
        # First of all: what has been asked of a GPU decides which one is used.
        self._gpu = own_gpu(
            settings["device"], torch.cuda.device_count(), os.environ, slots_folder()
        )
        self.device = choose_device(settings["device"])
        self.tokens = read_tokens(validation)
        self.specs = read_specs(settings["quantizers"])
        self.roles = {FP32: FP32, **settings["roles"]}
        self.batch_size = settings["batch_size"]
        self.stream = settings.get("stream", "auto")
        self.made_by = describe_run(
            device=self.device,
            threads=threads,
            probe=dict(settings),
            validation_sha256=file_sha256(validation),
        )

    def open(self, folder: str | Path) -> nn.Module | StoredModel:
        """A checkpoint to probe: the model, or one that stays in its files for want of memory."""
        return open_model(folder, self.device, self.stream)

    def __call__(self, model: nn.Module | StoredModel, step: int) -> pd.DataFrame:
        """Per-sequence scores of the model of ``step`` and of its quantized variants.

        Columns: step, quantizer, role, sequence, nll_nats, kl_nats, top1_changed,
        scored; the last four are sums over a sequence. Raises ``FloatingPointError`` or
        ``ValueError`` naming the step where the model cannot be scored.
        """
        config = (model.model if isinstance(model, StoredModel) else model).config
        check_ids(self.tokens, config.vocab_size, whose=f"step {step}: the vocabulary")
        try:
            scores = self._score(model)
        except (FloatingPointError, ValueError) as error:
            raise type(error)(f"step {step}: {error}") from error
        tables = [
            pd.DataFrame(
                {
                    "step": step,
                    "quantizer": name,
                    "role": self.roles[name],
                    "sequence": np.arange(len(record.scored), dtype=np.int32),
                    "nll_nats": record.nll_nats,
                    "kl_nats": record.kl_nats,
                    "top1_changed": record.top1_changed,
                    "scored": np.array(record.scored, dtype=np.int32),
                }
            )
            for name, record in scores.items()
        ]
        return pd.concat(tables, ignore_index=True)

    def _score(self, model: nn.Module | StoredModel) -> dict[str, SequenceScores]:
        if isinstance(model, StoredModel):
            try:
                self._say_coverage(model.model)
                return score_streamed(model, self.tokens, self.specs, batch_size=self.batch_size)
            except CannotStream as reason:
                model = load_whole(model.folder, self.device, self.stream, reason)
        variants = {name: probe_weights(model, spec) for name, spec in self.specs.items()}
        self._say_coverage(model)
        return score(model, self.tokens, variants, batch_size=self.batch_size, device=self.device)

    def _say_coverage(self, model: nn.Module) -> None:
        """Say once, and keep in ``made_by``, which weights are quantized and which are not."""
        if "coverage" in self.made_by:
            return
        covered = {name: coverage(model, spec) for name, spec in self.specs.items()}
        for name, found in covered.items():
            log(f"{name}: {coverage_line(found)}")
        self.made_by["coverage"] = covered
