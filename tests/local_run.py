"""A small run of ``transformers.Trainer``, as somebody else's training leaves it behind."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from flatminima.text.tokens import END_OF_TEXT, train_tokenizer

SEQUENCE = 32


def documents(count: int, seed: int) -> list[str]:
    """Documents of a few words in any order."""
    words = ["the", "weights", "of", "a", "model", "are", "rounded", "to", "few", "values"]
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(words, 60)) for _ in range(count)]


def run_trainer(folder: Path, *, steps: int = 24, save_every: int = 4) -> None:
    """Train a tiny GPT-2 and leave its ``checkpoint-*`` folders, optimizer state and all."""
    texts = documents(60, seed=0)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(texts, 300), eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
    ids = [tokenizer(text)["input_ids"][:SEQUENCE] for text in texts]
    rows = [{"input_ids": row, "labels": row} for row in ids if len(row) == SEQUENCE]
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=2, n_positions=SEQUENCE,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=save_every, learning_rate=1e-2,
        per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer).train()


def fake_checkpoint(folder: Path, *, weights: str | None = "model.safetensors") -> Path:
    """A folder with a configuration and weights of one number."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (folder / "optimizer.pt").write_bytes(b"of no interest")
    if weights == "model.safetensors":
        save_file({"w": np.ones(3, np.float32)}, folder / weights)
    elif weights:
        (folder / weights).write_bytes(b"\x80\x04")
    return folder
