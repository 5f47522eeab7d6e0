"""The monitor as a callback of the Trainer: actions, logs, resume, several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from flatminima.model import build_model
from flatminima.monitor import ConvergenceMonitor, MonitorError
from flatminima.quantizer_specs import read_specs
from flatminima.quantizers import quantized_weights
from flatminima.scoring import score_variants
from flatminima.tools.callback import DEFAULT_PROBE, ConvergenceCallback, read_rows
from tests.architectures import build
from tests.conftest import TINY, TINY_VOCABULARY

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SETTINGS = {"window": 3, "patience": 2}


def rows(seed, count=16):
    ids = np.random.default_rng(seed).integers(0, TINY_VOCABULARY, (count, 16))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer_of(model, folder, callback, *, lr=0.0, steps=8, **arguments):
    """A Trainer that evaluates after every update, with ``callback`` attached."""
    defaults = {
        "max_steps": steps, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no",
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "use_cpu": True,
        "learning_rate": lr, "report_to": "none", "disable_tqdm": True, "logging_strategy": "no",
        "seed": 3, 
    }  # fmt: skip
    trainer = Trainer(
        model, TrainingArguments(folder, **(defaults | arguments)),
        # All rows alike: the Trainer shuffles anew after a resume, which is not at issue here.
        train_dataset=16 * rows(0, 1), eval_dataset=rows(1),
    )  # fmt: skip
    callback.attach(trainer)
    return trainer


def tiny_llama():
    """Not a GPT-NeoX: of that, transformers 5.24's Trainer does not load the head on resume."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=TINY_VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=16,
        )  # fmt: skip
    )


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def scalars(folder):
    """Tags of the event file that was written below ``folder``, each with its (step, value)."""
    [file] = list(folder.rglob("events.out.tfevents*"))
    events = EventAccumulator(str(file)).Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_save_probe_and_stop_at_the_step_of_convergence(tiny_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    callback = ConvergenceCallback(
        ConvergenceMonitor(**SETTINGS), actions=("save", "probe", "stop")
    )
    trainer = trainer_of(
        tiny_model, tmp_path, callback, report_to="tensorboard",
        save_total_limit=2,
    )  # fmt: skip
    before = {name: p.detach().clone() for name, p in tiny_model.named_parameters()}
    trainer.train()
    # With a rate of zero the loss never moves: three evaluations fill the window.
    assert trainer.state.global_step == 4
    assert checkpoints(tmp_path) == ["checkpoint-4"]
    [event] = callback.events
    assert event["step"] == 4 and event["slope"] == 0.0
    assert all(torch.equal(p, before[name]) for name, p in tiny_model.named_parameters())
    specs = read_specs(DEFAULT_PROBE["quantizers"])
    variants = {name: quantized_weights(tiny_model, spec) for name, spec in specs.items()}
    tokens = np.stack([row["input_ids"] for row in rows(1)]).astype(np.int32)
    scores = score_variants(tiny_model, tokens, variants, batch_size=8)
    for name in ("int4", "int8"):
        gap = 100 * np.expm1(scores[name].mean_nll() - scores["fp32"].mean_nll())
        assert event[f"{name}_gap_pct"] == pytest.approx(gap, rel=1e-12)
    # TensorBoard has what the monitor says.
    found = scalars(tmp_path / "events")
    assert found["eval/converged"] == [(1, 0), (2, 0), (3, 0), (4, 1)]
    assert found["eval/evaluations_without_fall"][-1] == (4, 2)
    assert found["eval/loss_slope_per_1000_steps"] == [(3, 0), (4, 0)]
    assert found["eval/int4_gap_pct"] == [(4, pytest.approx(event["int4_gap_pct"], rel=1e-6))]
    said = capsys.readouterr().err.splitlines()
    [line] = [line for line in said if "has converged" in line]
    assert line.startswith("monitor: eval_loss has converged at step 4 (no fall in 2 evaluations")
    assert "int4 gap pct" in line and line.endswith("save, stop")
    assert any("save_total_limit 2 may delete" in line for line in said)
    saved = json.loads((tmp_path / "checkpoint-4/trainer_state.json").read_text())
    kept = saved["stateful_callbacks"]["ConvergenceCallback"]["attributes"]["saved"]
    assert kept == json.loads(json.dumps(callback.saved))


def test_a_probe_leaves_training_as_it_was(tmp_path):
    ends = []
    for actions in (("warn",), ("probe",)):
        model = build_model(TINY, TINY_VOCABULARY, seed=0)
        callback = ConvergenceCallback({**SETTINGS, "noise": 1e9}, actions=actions)
        trainer_of(model, tmp_path / actions[0], callback, lr=0.01, steps=7).train()
        assert [event["step"] for event in callback.events] == [4]
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("restore", [False, True])
def test_a_resumed_run_ends_with_the_same_monitor(tmp_path, restore):
    def run(folder, checkpoint=None, steps=8):
        callback = ConvergenceCallback({**SETTINGS, "noise": 3.0})
        trainer = trainer_of(
            tiny_llama(), folder, callback, lr=0.003, steps=steps,
            save_strategy="steps", save_steps=6, restore_callback_states_from_checkpoint=restore,
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=checkpoint)
        [mine] = [
            c for c in trainer.callback_handler.callbacks if isinstance(c, ConvergenceCallback)
        ]
        return mine.saved

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "resumed", str(tmp_path / "whole/checkpoint-6"))
    assert resumed == whole
    assert whole["monitor"]["state"]["step"] == 8 and len(whole["monitor"]["recent"]) == 3


def test_a_run_that_resumes_without_its_monitor_says_so_and_starts_a_new_one(
    tiny_model, tmp_path, capsys
):
    plain = trainer_of(tiny_model, tmp_path / "plain", ConvergenceCallback(), steps=2,
                       save_strategy="steps", save_steps=2)  # fmt: skip
    plain.remove_callback(ConvergenceCallback)
    plain.train()
    trainer_of(tiny_model, tmp_path / "three", ConvergenceCallback(SETTINGS), steps=2,
               save_strategy="steps", save_steps=2).train()  # fmt: skip
    for run, line in (
        ("plain", "the checkpoint of step 2 has no state; starting anew"),
        ("three", "window is 4, but was 3"),
    ):
        callback = ConvergenceCallback({"window": 4, "patience": 2})
        trainer = trainer_of(tiny_model, tmp_path / run, callback, steps=4)
        trainer.train(resume_from_checkpoint=str(tmp_path / run / "checkpoint-2"))
        assert line in capsys.readouterr().err
        assert [step for step, _, _ in callback.monitor.state_dict()["recent"]] == [3, 4]


def test_each_of_two_monitors_takes_up_its_own_state(tmp_path):
    def run(folder, checkpoint=None, steps=5):
        found = [ConvergenceCallback(SETTINGS, metric=f"eval_{name}_loss") for name in "ab"]
        trainer = trainer_of(tiny_llama(), folder, found[0], steps=steps, save_strategy="steps",
                             save_steps=3)  # fmt: skip
        found[1].attach(trainer)
        trainer.eval_dataset = {"a": rows(1, 4), "b": rows(2, 4)}
        trainer.train(resume_from_checkpoint=checkpoint)
        return [callback.saved for callback in found]

    whole = run(tmp_path / "whole")
    assert run(tmp_path / "resumed", str(tmp_path / "whole/checkpoint-3")) == whole
    assert whole[0]["monitor"]["state"]["loss"] != whole[1]["monitor"]["state"]["loss"]


def test_bad_losses_are_said_and_training_goes_on(tiny_model, tmp_path, capsys):
    callback = ConvergenceCallback(SETTINGS)
    trainer = trainer_of(tiny_model, tmp_path, callback)
    state, control = trainer.state, trainer.control
    for step, loss in [(1, 3.0), (2, float("nan")), (3, 2.9), (2, 2.8), (4, 2.7)]:
        state.global_step = step
        callback.on_evaluate(trainer.args, state, control, metrics={"eval_loss": loss})
    callback.on_evaluate(trainer.args, state, control, metrics={"eval_other_loss": 9.0})
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "monitor: the loss at step 2 is nan; left out",
        "monitor: step 2 comes after step 3; steps must rise; left out",
    ]
    assert [step for step, _, _ in callback.monitor.state_dict()["recent"]] == [1, 3, 4]
    assert not control.should_training_stop


def test_standard_errors_come_from_the_metrics(tiny_model, tmp_path):
    callback = ConvergenceCallback(SETTINGS)
    trainer = trainer_of(tiny_model, tmp_path, callback)
    for step in (1, 2, 3):
        trainer.state.global_step = step
        metrics = {"eval_loss": 3.0 - step, "eval_loss_stderr": 5.0}
        callback.on_evaluate(trainer.args, trainer.state, trainer.control, metrics=metrics)
    assert callback.monitor.state.slope_error == pytest.approx(5.0 / np.sqrt(2.0))


ROWS = {
    "has no input_ids, but text": [{"text": "words"}],
    "has no input_ids, but tuple": [(torch.tensor([1, 2]),)],
    "pack them": [{"input_ids": [1, 2, 3]}, {"input_ids": [1, 2]}],
    "is padded": [{"input_ids": [1, 2], "attention_mask": [1, 0]}],
    "ids below 0": [{"input_ids": [1, -100]}],
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

    def forward(self, input_ids, labels=None):
        return self.inner(input_ids=input_ids, labels=labels)


def stacked(parts):
    ids = torch.stack([torch.as_tensor(part) for part in parts])
    return {"input_ids": ids, "labels": ids}


class Stream(torch.utils.data.IterableDataset):
    """Rows that can only be read one after another."""

    def __iter__(self):
        return iter(rows(1))


def same(row):
    return row


OTHER_FORMS = {
    "rows of text": (tiny_llama, lambda row: {"text": " ".join(map(str, row["input_ids"]))},
                     lambda rows: stacked([list(map(int, r["text"].split())) for r in rows])),
    "tuples": (tiny_llama, lambda row: (row["input_ids"],),
               lambda rows: stacked([row[0] for row in rows])),
    "a plain module": (Plain, same, lambda rows: stacked([row["input_ids"] for row in rows])),
    "a stream": (tiny_llama, None, lambda rows: stacked([row["input_ids"] for row in rows])),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_what_cannot_be_probed_is_said_at_the_start_and_training_goes_on(name, tmp_path, capsys):
    make, form, collator = OTHER_FORMS[name]
    callback = ConvergenceCallback(SETTINGS, actions=("probe",))
    trainer = trainer_of(make(), tmp_path, callback, remove_unused_columns=False, steps=5)
    if form:
        trainer.train_dataset = [form(row) for row in trainer.train_dataset]
    trainer.eval_dataset = [form(row) for row in trainer.eval_dataset] if form else Stream()
    trainer.data_collator = collator
    trainer.train()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("monitor: ")]
    assert said[0].startswith("monitor: a probe will not be possible: ")
    assert any(line.startswith("monitor: no probe: ") for line in said)
    assert trainer.state.global_step == 5 and callback.events[0].keys() == {"step", "loss", "slope"}


def test_a_model_in_pieces_or_that_looks_ahead_or_without_its_ids_is_not_probed(tmp_path, capsys):
    """One rank's forward would hang, a perplexity would mean nothing, a GPU would be lost."""
    for change, line in (
        (lambda t: setattr(t.args, "fsdp", True), "spread over processes"),
        (lambda t: setattr(t, "model", build("bert")), "looks ahead"),
        (lambda t: t.model.resize_token_embeddings(8), "the tokens hold id"),
    ):
        callback = ConvergenceCallback(SETTINGS, actions=("probe", "stop"))
        trainer = trainer_of(tiny_llama(), tmp_path, callback)
        change(trainer)
        for step in range(1, 5):
            trainer.state.global_step = step
            callback.on_evaluate(
                trainer.args, trainer.state, trainer.control, {"eval_loss": 3.0}, trainer.model,
                trainer.get_eval_dataloader(),
            )  # fmt: skip
        said = capsys.readouterr().err
        assert "monitor: no probe: " in said and line in said
        assert callback.events[0].keys() == {"step", "loss", "slope"}


def test_that_nothing_is_evaluated_is_said_at_the_start(tiny_model, tmp_path, capsys):
    callback = ConvergenceCallback(SETTINGS, actions=("stop",))
    trainer_of(tiny_model, tmp_path, callback, eval_strategy="no").train()
    assert "no evaluation is planned" in capsys.readouterr().err


@pytest.mark.parametrize("attached", [True, False])
def test_several_evaluation_sets_without_the_metric_are_said_once(attached, tmp_path, capsys):
    callback = ConvergenceCallback(SETTINGS, actions=("stop",))
    trainer = trainer_of(tiny_llama(), tmp_path, callback, steps=4)
    trainer.eval_dataset = {"a": rows(1, 4), "b": rows(2, 4)}
    if not attached:
        callback._trainer = None
    trainer.train()
    said = [line for line in capsys.readouterr().err.splitlines() if "no eval_loss" in line]
    assert said == ["monitor: no eval_loss among eval_a_loss, eval_b_loss; set metric="]


def test_narrow_experts_have_narrow_groups(tmp_path, capsys):
    """Groups of 128 where rows of experts are 48 and those of attention 32."""
    model = build("olmoe")
    callback = ConvergenceCallback(SETTINGS, actions=("probe",))
    trainer_of(model, tmp_path, callback, steps=4).train()
    [event] = callback.events
    specs = read_specs(DEFAULT_PROBE["quantizers"])
    weights = quantized_weights(model, specs["int4"])
    tokens = np.stack([row["input_ids"] for row in rows(1)]).astype(np.int32)
    scores = score_variants(model.eval(), tokens, {"int4": weights}, batch_size=8)
    gap = 100 * np.expm1(scores["int4"].mean_nll() - scores["fp32"].mean_nll())
    assert event["int4_gap_pct"] == pytest.approx(gap, rel=1e-12)
    assert "groups narrowed to the rows of" in capsys.readouterr().err


def test_what_cannot_be_asked_is_one_line_before_training():
    """What the Trainer could not write into a checkpoint would end the run there."""
    for given, line in (
        ({"actions": ("halt",)}, "action 'halt'; valid: warn, save, probe, stop"),
        ({"probe": {"quantizers": {"int4": {"bits": 99}}}}, "monitor: probe: "),
        ({"probe": {"sequences": np.int64(8)}}, "monitor: probe: "),
        ({"monitor": {"window": np.int64(8)}}, "window"),
    ):
        with pytest.raises(MonitorError, match=line):
            ConvergenceCallback(**given)


def test_two_processes_agree(tmp_path):
    """Rank 1 sees other losses and a NaN; both decide by rank 0, then both stop training."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment |= {
        "PYTHONPATH": f"{ROOT}/workflow_scripts:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         __file__, str(tmp_path)],
        cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert found[0]["fed"] == found[1]["fed"]
    assert found[0]["fed"]["monitor"]["state"]["converged"]
    assert found[0]["trained"] == found[1]["trained"]
    assert [event["step"] for event in found[0]["trained"]["events"]] == [4]
    assert "int4_gap_pct" in found[1]["trained"]["events"][0]
    assert found[0]["stopped_at"] == found[1]["stopped_at"] == 4
    assert checkpoints(tmp_path / "run") == ["checkpoint-4"]
    assert run.stderr.count("monitor: eval_loss has converged at step 4") == 2  # fed, trained


def one_of_two_processes(folder: Path) -> None:
    """What every rank of ``test_two_processes_agree`` runs."""
    callback = ConvergenceCallback(
        ConvergenceMonitor(**SETTINGS), actions=("save", "probe", "stop")
    )
    model = build_model(TINY, TINY_VOCABULARY, seed=0)
    trainer = trainer_of(model, folder / "run", callback, ddp_backend="gloo")
    rank = torch.distributed.get_rank()
    fed = ConvergenceCallback(ConvergenceMonitor(**SETTINGS))
    for step in (1, 2, 3, 4):
        trainer.state.global_step = step
        loss = 3.0 if rank == 0 else [9.0, 7.0, float("nan"), 1.0][step - 1]
        fed.on_evaluate(trainer.args, trainer.state, trainer.control, metrics={"eval_loss": loss})
    trainer.state.global_step = 0
    trainer.train()
    found = {"fed": fed.saved, "trained": callback.saved, "stopped_at": trainer.state.global_step}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one_of_two_processes(Path(sys.argv[1]))
