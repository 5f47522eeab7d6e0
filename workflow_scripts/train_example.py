"""Train a small model with the transformers Trainer, watched by the convergence monitor.

This is an example of your own run: text, tokenizer, model and Trainer are the usual ones. Two
lines are from this project: the schedule and the callback. The model sees a short text many
times, so that its validation loss converges within a minute and then rises.
"""

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
from flatminima.text.corpus import deduplicate, package_documents, split, write_documents
from flatminima.text.tokens import END_OF_TEXT, encode_stream, pack, train_tokenizer
from flatminima.tools.callback import ConvergenceCallback
from flatminima.tools.lr_schedulers import get_cosine_neox_schedule

PACKAGE = "numpy"
MIN_CHARACTERS = 200
DIFFERENT_IN_EACH_RUN = ("_runtime", "_per_second", "flos")  # endings of the Trainer's metrics


def main(
    run: str,
    validation: str,
    record: str,
    *,
    steps: int = 600,
    every: int = 20,
    hidden_size: int = 64,
    vocab_size: int = 512,
    length: int = 64,
    train_sequences: int = 512,
    validation_sequences: int = 64,
    batch_size: int = 16,
) -> None:
    """Write checkpoints into ``run``, held-out text, and the ``record`` of the monitor.

    ``every`` is the number of updates between two evaluations, and between two checkpoints.
    """
    torch.set_num_threads(1)  # results do not depend on --cores
    documents = deduplicate(package_documents(PACKAGE, MIN_CHARACTERS))
    texts, held_out = split(documents, validation_fraction=0.2, seed=0)
    write_documents(validation, held_out)
    tokenizer = train_tokenizer(texts, vocab_size)

    def rows(texts: list[str], count: int) -> list[dict]:
        tokens = pack(encode_stream(tokenizer, texts, 0), sequences=count, length=length)
        return [{"input_ids": row, "labels": row} for row in torch.from_numpy(tokens).long()]

    set_seed(0)
    architecture = {
        "hidden_size": hidden_size,
        "num_layers": 2,
        "num_heads": 4,
        "max_length": length,
    }
    model = build_model(architecture, vocab_size, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    scheduler = get_cosine_neox_schedule(optimizer, steps // 100 + 1, steps)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=run,
            max_steps=steps,
            report_to="none",
            seed=0,
            per_device_train_batch_size=batch_size,
            use_cpu=True,
            disable_tqdm=True,
            eval_strategy="steps",
            eval_steps=every,
            save_strategy="steps",
            save_steps=every,
            save_only_model=True,
            logging_steps=every,
        ),
        train_dataset=rows(texts, train_sequences),
        eval_dataset=rows(held_out, validation_sequences),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT),
        data_collator=default_data_collator,
        optimizers=(optimizer, scheduler),
    )
    callback = ConvergenceCallback({"window": 5, "patience": 2}, actions=("save", "probe"))
    callback.attach(trainer)
    trainer.train()
    history = []
    for metrics in trainer.state.log_history:
        reproducible = [name for name in metrics if not name.endswith(DIFFERENT_IN_EACH_RUN)]
        history.append({name: metrics[name] for name in reproducible})
    write_json(record, {"history": history, "events": callback.events})


if __name__ == "__main__":
    run_job(main, snakemake)
