"""The monitor as a callback of the Trainer: actions, logs, resume, several processes."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Trainer, TrainingArguments

from flatminima.convergence_monitor import MonitorError
from flatminima.model import build_model
from flatminima.quantizer_specs import read_specs
from flatminima.quantizers import quantized_weights
from flatminima.scoring import score_variants
from flatminima.tools.callback import DEFAULT_PROBE, ConvergenceCallback, read_rows
from tests.architectures import build
from tests.conftest import TINY, TINY_VOCABULARY
from tests.workflow import ROOT

SETTINGS = {"window": 3, "patience": 2}  # with a rate of zero it speaks at step 4


def rows(seed, count=16):
    ids = np.random.default_rng(seed).integers(0, TINY_VOCABULARY, (count, 16))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer_of(model, folder, callback, *, lr=0.0, steps=8, data=None, **arguments):
    """A Trainer that evaluates after every update, with ``callback`` attached."""
    defaults = {
        "max_steps": steps,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "use_cpu": True,
        "learning_rate": lr,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "seed": 3,
    }
    trainer = Trainer(
        model,
        TrainingArguments(folder, **(defaults | arguments)),
        # All rows alike: the Trainer shuffles anew after a resume, which is not at issue here.
        train_dataset=16 * rows(0, 1),
        eval_dataset=data or rows(1),
    )
    callback.attach(trainer)
    return trainer


def tiny_llama():
    """Not a GPT-NeoX: of that, transformers 5.24's Trainer does not load the head on resume."""
    return build("llama", num_hidden_layers=1)


def feed(callback, trainer, evaluations):
    """Evaluations by hand: a step and its metrics each."""
    for step, metrics in evaluations:
        trainer.state.global_step = step
        callback.on_evaluate(
            trainer.args,
            trainer.state,
            trainer.control,
            metrics,
            trainer.model,
            trainer.get_eval_dataloader(),
        )


def saved(callback):
    return json.loads(json.dumps(callback.state()["saved"]))


def gaps_of(model):
    """What a probe is to find, by whole copies of the weights."""
    variants = {
        name: quantized_weights(model, spec)
        for name, spec in read_specs(DEFAULT_PROBE["quantizers"]).items()
    }
    tokens = np.stack([row["input_ids"] for row in rows(1)]).astype(np.int32)
    scores = score_variants(model.eval(), tokens, variants, batch_size=8)
    fp32 = scores.pop("fp32").mean_nll()
    return {
        f"{name}_gap_pct": pytest.approx(100 * np.expm1(found.mean_nll() - fp32), rel=1e-12)
        for name, found in scores.items()
    }


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_save_probe_and_stop_at_the_step_of_convergence(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "flatminima")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    model = build("olmoe")  # rows of experts are 48, those of attention 32: narrower than a group
    callback = ConvergenceCallback(SETTINGS, actions=("save", "probe", "stop"))
    trainer = trainer_of(model, tmp_path, callback, report_to="tensorboard", save_total_limit=2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer.train()
    # With a rate of zero the loss never moves: three evaluations fill the window.
    assert trainer.state.global_step == 4
    assert checkpoints(tmp_path) == ["checkpoint-4"]
    [event] = callback.events
    assert event["step"] == 4 and event["slope"] == 0.0
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert {name: event[name] for name in ("int4_gap_pct", "int8_gap_pct")} == gaps_of(model)
    # TensorBoard has what the monitor says.
    [file] = list((tmp_path / "events").rglob("events.out.tfevents*"))
    events = EventAccumulator(str(file)).Reload()
    scalars = {t: [(e.step, e.value) for e in events.Scalars(t)] for t in events.Tags()["scalars"]}
    assert scalars["eval/converged"] == [(1, 0), (2, 0), (3, 0), (4, 1)]
    assert scalars["eval/evaluations_without_fall"][-1] == (4, 2)
    assert scalars["eval/loss_slope_per_1000_steps"] == [(3, 0), (4, 0)]
    assert scalars["eval/int4_gap_pct"] == [(4, pytest.approx(event["int4_gap_pct"], rel=1e-6))]
    [line] = [line for line in caplog.messages if "has converged" in line]
    assert line.startswith("monitor: eval_loss has converged at step 4 (no fall in 2 evaluations")
    assert f"INT4 gap {event['int4_gap_pct']:.2f} %" in line
    for key_words in ("save_total_limit 2 may delete", "groups narrowed to the rows of"):
        assert any(key_words in line for line in caplog.messages)
    state = json.loads((tmp_path / "checkpoint-4/trainer_state.json").read_text())
    assert state["stateful_callbacks"]["ConvergenceCallback"]["saved"] == saved(callback)


def test_a_probe_leaves_training_as_it_was(tmp_path):
    ends = []
    for actions in (("warn",), ("probe",)):
        model = build_model(TINY, TINY_VOCABULARY, seed=0)
        callback = ConvergenceCallback({**SETTINGS, "noise": 1e9}, actions=actions)
        trainer_of(model, tmp_path / actions[0], callback, lr=0.01, steps=7).train()
        assert [event["step"] for event in callback.events] == [4]
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_the_best_checkpoint_is_kept(tmp_path, monkeypatch):
    """The loss falls until step 3. It has converged at step 5."""
    callback = ConvergenceCallback(SETTINGS, actions=("save_best", "stop"))
    trainer = trainer_of(tiny_llama(), tmp_path, callback, save_total_limit=1)
    losses = {1: 3.0, 2: 2.5, 3: 2.0, 4: 4.0, 5: 4.5, 6: 5.0}
    own_evaluate = trainer.evaluation_loop

    def with_our_loss(*args, **kwargs):
        output = own_evaluate(*args, **kwargs)
        output.metrics["eval_loss"] = losses[trainer.state.global_step]
        return output

    monkeypatch.setattr(trainer, "evaluation_loop", with_our_loss)
    trainer.train()
    assert trainer.state.global_step < 8 and callback.events
    assert checkpoints(tmp_path) == ["checkpoint-3"]


def test_a_second_training_begins_anew(tiny_model, tmp_path):
    callback = ConvergenceCallback(SETTINGS, actions=("stop",))
    trainer = trainer_of(tiny_model, tmp_path, callback)
    for _ in range(2):
        trainer.train()
        assert trainer.state.global_step == 4
        assert [event["step"] for event in callback.events] == [4]


def test_a_callback_of_the_trainers_own_argument_works_without_a_warning(tmp_path, caplog):
    callback = ConvergenceCallback(SETTINGS, actions=("probe", "stop"))
    first = trainer_of(tiny_llama(), tmp_path, ConvergenceCallback(SETTINGS))
    trainer = Trainer(
        first.model,
        first.args,
        train_dataset=first.train_dataset,
        eval_dataset=first.eval_dataset,
        callbacks=[callback],
    )
    trainer.train()
    assert trainer.state.global_step == 4 and "int4_gap_pct" in callback.events[0]
    assert [line.split()[1:4] for line in caplog.messages if line.startswith("monitor: ")] == [
        ["eval_loss", "has", "converged"]
    ]


# Resume


@pytest.mark.parametrize("restore", [False, True])
def test_a_resumed_run_ends_with_the_same_monitors(tmp_path, restore):
    """Of two monitors of two sets each takes up its own; what the Trainer restores is one."""
    metrics = ["eval_loss"] if restore else ["eval_a_loss", "eval_b_loss"]
    data = rows(1) if restore else {"a": rows(1, 4), "b": rows(2, 4)}

    def run(folder, checkpoint=None):
        monitors = [
            ConvergenceCallback({**SETTINGS, "noise": 3.0}, metric=name) for name in metrics
        ]
        trainer = trainer_of(
            tiny_llama(),
            folder,
            monitors[0],
            lr=0.003,
            save_strategy="steps",
            save_steps=6,
            restore_callback_states_from_checkpoint=restore,
            data=data,
        )
        for callback in monitors[1:]:
            callback.attach(trainer)
        trainer.train(resume_from_checkpoint=checkpoint)
        callbacks = trainer.callback_handler.callbacks
        return [
            saved(callback) for callback in callbacks if isinstance(callback, ConvergenceCallback)
        ]

    uninterrupted = run(tmp_path / "whole")
    assert run(tmp_path / "resumed", str(tmp_path / "whole/checkpoint-6")) == uninterrupted
    assert len(uninterrupted) == len(metrics) and uninterrupted[0] != uninterrupted[-1] or restore
    assert (
        uninterrupted[0]["monitor"]["state"]["step"] == 8
        and len(uninterrupted[0]["monitor"]["recent"]) == 3
    )


def test_a_run_that_resumes_without_its_monitor_says_so_and_starts_a_new_one(
    tiny_model, tmp_path, caplog
):
    callback = ConvergenceCallback(SETTINGS)
    trainer_of(tiny_model, tmp_path, callback, steps=2, save_strategy="steps", save_steps=2).train()
    state = tmp_path / "checkpoint-2/trainer_state.json"
    without = json.loads(state.read_text()) | {"stateful_callbacks": {}}
    for line in ("window is 4, but was 3", "has no state of the monitor"):
        callback = ConvergenceCallback({"window": 4, "patience": 2})
        trainer = trainer_of(tiny_model, tmp_path, callback, steps=4)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert line in caplog.text
        assert [step for step, _, _ in saved(callback)["monitor"]["recent"]] == [3, 4]
        state.write_text(json.dumps(without))


# What cannot work


def test_bad_losses_are_said_and_training_goes_on(tiny_model, tmp_path, caplog):
    callback = ConvergenceCallback(SETTINGS)
    trainer = trainer_of(tiny_model, tmp_path, callback)
    losses = [(1, 3.0), (2, float("nan")), (3, 2.0), (2, 2.8), (4, 1.5)]
    feed(callback, trainer, [(s, {"eval_loss": x, "eval_loss_stderr": 5.0}) for s, x in losses])
    feed(callback, trainer, [(4, {"eval_other_loss": 9.0})])
    nan, late = caplog.messages
    assert nan.startswith("monitor: the loss at step 2 is nan")
    assert late.startswith("monitor: step 2 follows step 3")
    recent = saved(callback)["monitor"]["recent"]
    assert recent == [[1, 3.0, 5.0], [3, 2.0, 5.0], [4, 1.5, 5.0]]
    assert not trainer.control.should_training_stop


ROWS = {
    "has no input_ids, but tuple": [(torch.tensor([1, 2]),)],
    "of .* tokens; pack them": [{"input_ids": [1, 2, 3]}, {"input_ids": [1, 2]}],
    "is padded": [{"input_ids": [1, 2], "attention_mask": [1, 0]}],
    "row 0 is padded": [{"input_ids": [1, -100]}],
    r"of \[\] tokens": [],
}


def test_rows_that_cannot_be_probed_are_one_line():
    for line, data in ROWS.items():
        with pytest.raises(ValueError, match=line) as caught:
            read_rows(data, 8)
        assert "\n" not in str(caught.value)


class Plain(torch.nn.Module):
    """A model that is none of transformers."""

    def __init__(self):
        super().__init__()
        self.inner = tiny_llama()

    def forward(self, input_ids, labels):
        return self.inner(input_ids=input_ids, labels=labels)


class Stream(torch.utils.data.IterableDataset):
    """Rows that can only be read one after another."""

    def __iter__(self):
        return iter(rows(1))


def collate(parts):
    """A batch of rows of ids, or of text that is the ids."""
    ids = [p["input_ids"] if "input_ids" in p else [*map(int, p["text"].split())] for p in parts]
    return dict.fromkeys(("input_ids", "labels"), torch.tensor(np.array(ids)))


@pytest.mark.parametrize("form", ["rows of text", "a plain module", "a stream"])
def test_what_cannot_be_probed_is_said_at_the_start_and_training_goes_on(form, tmp_path, caplog):
    data = Stream() if form == "a stream" else rows(1)
    if form == "rows of text":
        data = [{"text": " ".join(map(str, row["input_ids"]))} for row in data]

    callback = ConvergenceCallback(SETTINGS, actions=("probe",))
    model = Plain() if form == "a plain module" else tiny_llama()
    trainer = trainer_of(model, tmp_path, callback, remove_unused_columns=False, steps=5, data=data)
    trainer.data_collator = collate
    trainer.train()
    messages = [line for line in caplog.messages if line.startswith("monitor: ")]
    assert messages[0].startswith("monitor: a probe will not be possible: ")
    assert any(line.startswith("monitor: no probe: ") for line in messages)
    assert trainer.state.global_step == 5 and callback.events[0].keys() == {"step", "loss", "slope"}


def test_a_model_in_pieces_or_that_looks_ahead_or_without_its_ids_is_not_probed(tmp_path, caplog):
    """One rank's forward would hang, a perplexity would mean nothing, a GPU would be lost."""
    for change, line in (
        (lambda t: setattr(t.args, "fsdp", True), "spread over processes"),
        (lambda t: setattr(t, "model", build("bert")), "looks ahead"),
        (lambda t: t.model.resize_token_embeddings(8), "the vocabulary has 8 entries"),
    ):
        callback = ConvergenceCallback(SETTINGS, actions=("probe", "stop"))
        trainer = trainer_of(tiny_llama(), tmp_path, callback)
        change(trainer)
        feed(callback, trainer, [(step, {"eval_loss": 3.0}) for step in range(1, 5)])
        assert "monitor: no probe: " in caplog.text and line in caplog.text
        caplog.clear()
        assert callback.events[0].keys() == {"step", "loss", "slope"}


def test_a_metric_that_never_comes_is_said_at_the_start(tmp_path, caplog):
    one_set = rows(1)
    several = {"a": rows(1, 4), "b": rows(2, 4)}
    for data, strategy, metric, line in (
        (one_set, "no", "eval_loss", "no evaluation is planned"),
        (
            several,
            "steps",
            "eval_loss",
            "'eval_loss' is not evaluated; valid: eval_a_loss, eval_b_loss",
        ),
        (one_set, "steps", "eval_los", "'eval_los' is not evaluated; valid: eval_loss"),
        (several, "steps", "eval_b_loss", None),
    ):
        callback = ConvergenceCallback(SETTINGS, metric=metric)
        trainer_of(
            tiny_llama(), tmp_path, callback, eval_strategy=strategy, steps=1, data=data
        ).train()
        messages = [message for message in caplog.messages if message.startswith("monitor: ")]
        assert len(messages) == bool(line) and all(line in message for message in messages)
        caplog.clear()


def test_what_cannot_be_asked_is_one_line_before_training():
    """What the Trainer could not write into a checkpoint would end the run there."""
    for given, line in (
        ({"actions": ("halt",)}, "'halt' is not valid; valid: warn, save, save_best, probe, stop"),
        ({"probe": {"quantizers": {"int4": {"bits": 99}}}}, "probe: "),
        ({"probe": {"sequences": np.int64(8)}}, "probe: "),
        ({"monitor": {"window": 2}}, "window 2"),
    ):
        with pytest.raises(MonitorError, match=line):
            ConvergenceCallback(**given)


def test_two_processes_agree(tmp_path):
    """Rank 1 sees other losses and a NaN; both decide by rank 0, then both stop training."""
    path = {"PYTHONPATH": f"{ROOT}/workflow_scripts:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            __file__,
            str(tmp_path),
        ],
        cwd=ROOT,
        env=os.environ | path,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["fed"]["monitor"]["state"]["converged"] and first["stopped_at"] == 4
    [event] = first["trained"]["events"]
    assert event["step"] == 4 and "int4_gap_pct" in event
    assert checkpoints(tmp_path / "run") == ["checkpoint-4"]
    assert run.stderr.count("monitor: eval_loss has converged at step 4") == 2  # fed, trained


def one_of_two_processes(folder: Path) -> None:
    """What every rank of ``test_two_processes_agree`` runs."""
    callback = ConvergenceCallback(SETTINGS, actions=("save", "probe", "stop"))
    model = build_model(TINY, TINY_VOCABULARY, seed=0)
    trainer = trainer_of(model, folder / "run", callback, ddp_backend="gloo")
    rank = torch.distributed.get_rank()
    fed = ConvergenceCallback(SETTINGS)
    losses = [3.0] * 4 if rank == 0 else [9.0, 7.0, float("nan"), 1.0]
    feed(fed, trainer, [(step, {"eval_loss": loss}) for step, loss in enumerate(losses, start=1)])
    trainer.state.global_step = 0
    trainer.train()
    found = {"fed": saved(fed), "trained": saved(callback), "stopped_at": trainer.state.global_step}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one_of_two_processes(Path(sys.argv[1]))
