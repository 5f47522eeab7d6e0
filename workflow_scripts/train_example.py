"""Train a small model with the transformers Trainer, watched by the convergence monitor.

It stands for anybody's own run: text, tokenizer, model and Trainer are the usual ones, and
the two lines of this project are the schedule and the callback. The model sees little text
many times, so that its validation loss converges within a minute and then rises.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from flatminima.files import write_json
from flatminima.jobs import run as run_job
from flatminima.model import build_model
from flatminima.monitor import ConvergenceMonitor
from flatminima.text.corpus import deduplicate, package_documents, split, write_documents
from flatminima.text.tokens import END_OF_TEXT, encode_stream, train_tokenizer
from flatminima.tools.callback import ConvergenceCallback
from flatminima.tools.lr_schedulers import get_cosine_neox_schedule

PACKAGE, MIN_CHARACTERS = "numpy", 200


@dataclass(frozen=True)
class ExampleSettings:
    """How large and how long the example is."""

    steps: int = 600
    every: int = 20  # updates between evaluations, each with a checkpoint
    hidden_size: int = 64
    vocab_size: int = 512
    length: int = 64
    train_sequences: int = 512
    validation_sequences: int = 64
    batch_size: int = 16
    lr: float = 0.01


def make_data(settings: ExampleSettings, validation: Path) -> tuple[object, list, list]:
    """Tokenizer, training rows and evaluation rows; the validation text goes to a file."""
    documents = deduplicate(package_documents(PACKAGE, MIN_CHARACTERS))
    train, held_out = split(documents, validation_fraction=0.2, seed=0)
    write_documents(validation, held_out)
    tokenizer = train_tokenizer(train, settings.vocab_size)

    def rows(part: Sequence, count: int) -> list[dict]:
        ids = [i for d in encode_stream(tokenizer, part, 0) for i in d]
        cut = torch.tensor(ids[: count * settings.length]).view(-1, settings.length)
        return [{"input_ids": row, "labels": row} for row in cut]

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT)
    return (
        fast,
        rows(train, settings.train_sequences),
        rows(held_out, settings.validation_sequences),
    )


def train(settings: ExampleSettings, run: Path, validation: Path, record: Path) -> None:
    """Train, and leave the checkpoints in ``run`` and what the monitor saw in ``record``."""
    tokenizer, train_rows, eval_rows = make_data(settings, validation)
    architecture = {"hidden_size": settings.hidden_size, "num_layers": 2, "num_heads": 4,
                    "max_length": settings.length}  # fmt: skip
    set_seed(0)
    model = build_model(architecture, settings.vocab_size, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)
    scheduler = get_cosine_neox_schedule(optimizer, settings.steps // 100 + 1, settings.steps)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(run), max_steps=settings.steps, report_to="none", seed=0,
            per_device_train_batch_size=settings.batch_size, use_cpu=True, disable_tqdm=True,
            eval_strategy="steps", eval_steps=settings.every, save_strategy="steps",
            save_steps=settings.every, save_only_model=True, logging_steps=settings.every,
        ),
        train_dataset=train_rows,
        eval_dataset=eval_rows,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        optimizers=(optimizer, scheduler),
    )  # fmt: skip
    monitor = ConvergenceMonitor(window=5, patience=2)
    callback = ConvergenceCallback(monitor, actions=("save", "probe")).attach(trainer)
    trainer.train()
    differs = ("_runtime", "_per_second", "flos")  # from run to run
    history = [
        {key: value for key, value in entry.items() if not key.endswith(differs)}
        for entry in trainer.state.log_history
    ]
    write_json(record, {"history": history, "events": callback.events})


def main(run: str, validation: str, record: str, settings: dict) -> None:
    """Leave the run's checkpoints in the folder ``run``, whole or not at all."""
    torch.set_num_threads(1)  # results do not depend on --cores
    with tempfile.TemporaryDirectory(dir=Path(run).parent) as folder:
        made = Path(folder) / "run"
        train(ExampleSettings(**settings), made, Path(validation), Path(record))
        shutil.rmtree(run, ignore_errors=True)
        shutil.move(made, run)


if __name__ == "__main__":
    run_job(main, snakemake)
