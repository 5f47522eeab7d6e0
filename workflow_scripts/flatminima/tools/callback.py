"""The convergence monitor as a callback of the transformers Trainer, with a probe of the gap.

    callback = ConvergenceCallback(ConvergenceMonitor(), actions=("save", "probe")).attach(trainer)

Its state is part of ``trainer_state.json`` of every checkpoint and is taken up again by
``trainer.train(resume_from_checkpoint=…)``. In a distributed run the loss of rank 0 is
shared with all ranks, so that all come to the same decision; only rank 0 logs and probes.
Whatever goes wrong here is one line of the log: training goes on.
"""

import copy
import json
import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from torch import nn
from transformers import PreTrainedModel, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState, TrainerCallback

from flatminima.convergence_monitor import ConvergenceMonitor, MonitorError, MonitorState
from flatminima.errors import one_line
from flatminima.intervals import gap_pct
from flatminima.quantizer_specs import FP32, read_specs
from flatminima.quantizers import coverage_line
from flatminima.scoring import score_quantized

logger = logging.getLogger(__name__)

ACTIONS = ("warn", "save", "probe", "stop")
# Definitions as under ``quantizers`` in config.yaml, and how much of the evaluation set.
DEFAULT_PROBE = {
    "quantizers": {
        "int4": {"bits": 4, "granularity": "group", "symmetric": False, "group_size": 128},
        "int8": {"bits": 8, "granularity": "channel", "symmetric": True},
    },
    "sequences": 64,
    "batch_size": 8,
}


class ConvergenceCallback(TrainerCallback, ExportableState):
    """Watches ``metric`` of every evaluation and acts when it has converged.

    ``actions``: ``warn`` logs it in one line (as every other action does too), ``save`` saves a
    checkpoint at once (a save strategy of ``best`` takes precedence), ``probe`` measures the INT4
    and INT8 gap on the evaluation set, ``stop`` ends training. ``stderr_metric`` names a metric
    with the standard error of the loss, which ``compute_metrics`` may give; without it the scatter
    of the losses decides. ``monitor`` may be a mapping of its settings; ``probe`` is as
    ``DEFAULT_PROBE``. ``events`` has one entry for each time the loss converged. Raises
    ``MonitorError`` for an action or a setting that is none.
    """

    def __init__(
        self,
        monitor: ConvergenceMonitor | Mapping | None = None,
        *,
        actions: Sequence[str] = ("warn",),
        metric: str = "eval_loss",
        stderr_metric: str = "eval_loss_stderr",
        probe: Mapping | None = None,
    ) -> None:
        if unknown := set(actions) - set(ACTIONS):
            raise MonitorError(f"action {unknown.pop()!r}; valid: {', '.join(ACTIONS)}")
        is_monitor = isinstance(monitor, ConvergenceMonitor)
        self.monitor = monitor if is_monitor else ConvergenceMonitor(**(monitor or {}))
        self.actions, self.metric, self.stderr_metric = list(actions), metric, stderr_metric
        try:  # the Trainer writes it into every checkpoint, and would fail there
            self.probe = json.loads(json.dumps(DEFAULT_PROBE | dict(probe or {})))
            read_specs(self.probe["quantizers"])
        except (TypeError, ValueError, AttributeError) as error:
            raise MonitorError(f"probe: {one_line(error)}") from error
        self.events: list[dict] = []
        self._trainer = None

    def attach(self, trainer: object) -> "ConvergenceCallback":
        """Become a callback of ``trainer`` and log to whatever it reports to."""
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    def state(self) -> dict:
        """What the Trainer writes into ``trainer_state.json``; ``saved`` changes in training."""
        asked = {"monitor": self.monitor.settings, "actions": self.actions, "metric": self.metric,
                 "stderr_metric": self.stderr_metric, "probe": self.probe}  # fmt: skip
        return {
            "args": asked,
            "attributes": {},
            "saved": {"monitor": self.monitor.state_dict(), "events": self.events},
        }

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Take up the state of the checkpoint that training resumes from; log what cannot work."""
        if state.global_step:
            self._resume(state)
        for line in self._cannot_work(args, kwargs.get("model")):
            _log(state, line)

    def _resume(self, state: TrainerState) -> None:
        found = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(found, list):  # of a run with several monitors, each save after the other
            mine = (one for one in reversed(found) if one["args"]["metric"] == self.metric)
            found = next(mine, None)
        try:
            if found is None:
                raise MonitorError("the checkpoint has no state of the monitor")
            self.monitor.load_state_dict(found["saved"]["monitor"])
            self.events = list(found["saved"]["events"])
        except (MonitorError, KeyError, TypeError) as error:
            _log(state, f"{one_line(error)}; starting anew at step {state.global_step}")

    def _cannot_work(self, args: TrainingArguments, model: nn.Module | None) -> Iterator[str]:
        if self._trainer is None:
            yield "not attached, so nothing is logged; use callback.attach(trainer)"
        if getattr(args.eval_strategy, "value", args.eval_strategy) == "no":
            yield "no evaluation is planned, so nothing can converge; set eval_strategy"
        if "save" in self.actions and args.save_total_limit:
            yield f"save_total_limit {args.save_total_limit} may delete what it saves"
        data, losses = getattr(self._trainer, "eval_dataset", None), ["eval_loss"]
        if isinstance(data, Mapping):
            losses = [f"eval_{name}_loss" for name in data]
            data = next(iter(data.values()), None)
        own = getattr(self._trainer, "compute_metrics", None)  # whose names are not known yet
        if self._trainer is not None and not own and self.metric not in losses:
            yield f"no {self.metric} among {', '.join(losses)}; set metric="
        if "probe" in self.actions and data is not None:
            try:
                check_model(model, args)
                read_rows(data, 1)
            except Exception as error:  # noqa: BLE001, whatever somebody's data set raises
                yield f"a probe will not be possible: {one_line(error)}"

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping,
        model: nn.Module | None = None,
        eval_dataloader: object = None,
        **kwargs,
    ) -> None:
        """Update the monitor, log what it says, and act where the loss has just converged."""
        if self.metric not in metrics:
            return
        seen = [metrics[self.metric], metrics.get(self.stderr_metric)]
        loss, stderr = broadcast_object_list(seen)  # that of rank 0, on every rank
        before = self.monitor.state
        try:
            now = self.monitor.update(state.global_step, loss, stderr)
        except (TypeError, ValueError) as error:
            _log(state, one_line(error))
            return
        if now is before:
            return
        gaps = {}
        if now.began:
            if "probe" in self.actions:
                if state.is_world_process_zero:
                    gaps = self._measure(args, model, eval_dataloader)
                [gaps] = broadcast_object_list([gaps])
            self.events.append({"step": now.step, "loss": now.loss, "slope": now.slope, **gaps})
            control.should_save |= "save" in self.actions
            control.should_training_stop |= "stop" in self.actions
            found = "".join(f"; {name.replace('_', ' ')} {gap:.2f}" for name, gap in gaps.items())
            _log(
                state,
                f"{self.metric} has converged at step {now.step} (no fall in {now.without_fall} "
                f"evaluations; best {now.best_loss:.4f} at step {now.best_step}){found}; "
                f"actions: {', '.join(self.actions)}",
            )
        if self._trainer is not None:
            numbers = _logged(now) | gaps
            self._trainer.log({f"eval_{name}": float(value) for name, value in numbers.items()})

    def _measure(self, args: TrainingArguments, model: nn.Module, loader: object) -> dict:
        try:
            check_model(model, args)
            return probe_gaps(model, getattr(loader, "dataset", None), self.probe)
        except Exception as error:  # noqa: BLE001, training must go on
            logger.warning(f"monitor: no probe: {one_line(error)}")
            logger.debug("", exc_info=error)
            return {}


def _log(state: TrainerState, line: str) -> None:
    if state.is_world_process_zero:
        logger.warning(f"monitor: {line}")


def _logged(now: MonitorState) -> dict[str, float]:
    """The numbers of a state, under names that report as metrics of the evaluation."""
    values = {"evaluations_without_fall": now.without_fall, "converged": now.converged}
    if now.slope is not None:
        values["loss_slope_per_1000_steps"] = 1000.0 * now.slope
        values["loss_slope_error_per_1000_steps"] = 1000.0 * now.slope_error
    return values


def check_model(model: nn.Module | None, args: TrainingArguments) -> None:
    """Raise ``ValueError`` for what is no language model that rank 0 has alone and whole."""
    if not isinstance(model, PreTrainedModel) or hasattr(model, "peft_config"):
        name = type(model).__name__
        raise ValueError(f"{name} is no plain model of transformers; adapters must be merged first")
    if args.fsdp or args.deepspeed:  # one rank's forward would wait for the others for ever
        raise ValueError("the weights are spread over processes; audit a saved checkpoint")


def read_rows(data: Sequence, count: int) -> np.ndarray:
    """The first ``count`` rows of an evaluation set as ``[rows, length]`` token ids.

    They are read directly: starting a loader would draw random numbers. Raises ``ValueError``
    where a row has no ``input_ids``, is padded, or is not as long as the others.
    """
    rows = []
    for index in range(min(count, len(data))):
        row = data[index]
        if not isinstance(row, Mapping) or "input_ids" not in row:
            held = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(f"evaluation row {index} has no input_ids, but {held}")
        ids = np.asarray(row["input_ids"], dtype=np.int32).reshape(-1)
        if (ids < 0).any() or not np.all(row.get("attention_mask", 1)):
            raise ValueError(f"evaluation row {index} is padded; pack them to one length")
        rows.append(ids)
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1 or lengths[0] < 2:
        raise ValueError(f"evaluation sequences of {lengths} tokens; pack them to one length")
    return np.stack(rows)


def probe_gaps(model: nn.Module, data: Sequence | None, settings: Mapping) -> dict[str, float]:
    """Gap in percent (equation 3) of each quantizer, as ``int4_gap_pct``.

    It is that of the model in float32, evaluating as the Trainer has left it, without TF32; neither
    its weights nor the setting nor the state of the random numbers is another afterwards.
    """
    if data is None:
        raise ValueError("the trainer has no evaluation set")
    tokens = read_rows(data, settings["sequences"])
    device, specs = str(next(model.parameters()).device), read_specs(settings["quantizers"])
    options = {"batch_size": settings["batch_size"], "device": device}
    exact = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    tf32 = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = False
        measured = model.eval() if exact else copy.deepcopy(model).float().eval()
        scores, covered = score_quantized(measured, tokens, specs, **options)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = tf32
    for name, found in covered.items():
        logger.info(f"monitor: {name}: {coverage_line(found)}")
    fp32 = scores.pop(FP32).mean_nll()
    return {f"{n}_gap_pct": float(gap_pct(found.mean_nll(), fp32)) for n, found in scores.items()}
