"""The convergence monitor as a callback of the transformers Trainer, which also measures the gap.

    callback = ConvergenceCallback(ConvergenceMonitor(), actions=("save", "probe")).attach(trainer)

The state is saved in ``trainer_state.json`` of every checkpoint, and restored by
``trainer.train(resume_from_checkpoint=…)``. In a distributed run, all ranks use the loss of rank
0, so that they decide alike. Only rank 0 logs and probes. An error here is logged in one line, and
training continues.
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
from flatminima.quantizer_specs import FP32, printed_names, read_specs
from flatminima.quantizers import coverage_line
from flatminima.scoring import score_quantized

logger = logging.getLogger(__name__)

ACTIONS = ("warn", "save", "save_best", "probe", "stop")
# Quantizers are defined as in config.yaml; ``sequences`` of the evaluation set are scored.
DEFAULT_PROBE = {
    "quantizers": {
        "int4": {"bits": 4, "granularity": "group", "symmetric": False, "group_size": 128},
        "int8": {"bits": 8, "granularity": "channel", "symmetric": True},
    },
    "sequences": 64,
    "batch_size": 8,
}


class ConvergenceCallback(TrainerCallback, ExportableState):
    """Watches ``metric`` in every evaluation and acts when it has converged.

    Actions:

    - ``warn`` logs one line, as all other actions also do
    - ``save`` saves the current checkpoint (the save strategy ``best`` takes precedence)
    - ``save_best`` saves a checkpoint at every evaluation whose loss is the lowest so far, also
      before the loss has converged; ``save_total_limit=1`` then keeps only the best one
    - ``probe`` measures the INT4 and INT8 gap on the evaluation set
    - ``stop`` ends training

    ``events`` has one entry for each time that the loss converged. Each training that does not
    resume from a checkpoint begins with a new monitor and without events.

    Args:
        monitor: a ``ConvergenceMonitor`` or a mapping of its settings
        actions: names from the list above
        metric: the loss to watch
        stderr_metric: a metric of ``compute_metrics`` with the standard error of the loss; if it
            is missing, the scatter of the losses is used
        probe: changes to ``DEFAULT_PROBE``

    Raises:
        MonitorError: for an invalid action or setting
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
        for action in actions:
            if action not in ACTIONS:
                raise MonitorError(f"action {action!r} is not valid; valid: {', '.join(ACTIONS)}")
        if not isinstance(monitor, ConvergenceMonitor):
            monitor = ConvergenceMonitor(**(monitor or {}))
        self.monitor = monitor
        self.actions = list(actions)
        self.metric = metric
        self.stderr_metric = stderr_metric
        # The Trainer writes the settings into every checkpoint as JSON, and would fail only there.
        try:
            self.probe = json.loads(json.dumps(DEFAULT_PROBE | dict(probe or {})))
            read_specs(self.probe["quantizers"])
        except (TypeError, ValueError, AttributeError) as error:
            raise MonitorError(f"probe: {one_line(error)}") from error
        self.events: list[dict] = []
        self._trainer = None

    def attach(self, trainer: object) -> "ConvergenceCallback":
        """Become a callback of ``trainer``, and log to the trackers that it reports to."""
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    def state(self) -> dict:
        """The callback's part of ``trainer_state.json``. Only ``saved`` changes in training."""
        settings = {
            "monitor": self.monitor.settings,
            "actions": self.actions,
            "metric": self.metric,
            "stderr_metric": self.stderr_metric,
            "probe": self.probe,
        }
        return {
            "args": settings,
            "attributes": {},
            "saved": {"monitor": self.monitor.state_dict(), "events": self.events},
        }

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Restore the state of the checkpoint that training resumes from, and log problems."""
        if state.global_step:
            self._resume(state)
        else:  # the same Trainer may have been trained before
            self.monitor.reset()
            self.events = []
        for line in self._problems(args, kwargs.get("model")):
            _log(state, line)
        if self._trainer is None:
            # Of all the actions only the report of numbers needs the Trainer. This is no problem.
            logger.info("monitor: its numbers are in this log; attach(trainer) also reports them")

    def _resume(self, state: TrainerState) -> None:
        saved_state = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(saved_state, list):
            # A run with several monitors. Each save appends their states; the last ones count.
            with_our_metric = [
                one_state for one_state in saved_state if one_state["args"]["metric"] == self.metric
            ]
            saved_state = with_our_metric[-1] if with_our_metric else None
        try:
            if saved_state is None:
                raise MonitorError("the checkpoint has no state of the monitor")
            self.monitor.load_state_dict(saved_state["saved"]["monitor"])
            self.events = list(saved_state["saved"]["events"])
        except (MonitorError, KeyError, TypeError) as error:
            _log(state, f"{one_line(error)}; the monitor starts over at step {state.global_step}")

    def _problems(self, args: TrainingArguments, model: nn.Module | None) -> Iterator[str]:
        """One line for each part of the callback that cannot work in this training."""
        if getattr(args.eval_strategy, "value", args.eval_strategy) == "no":
            yield "no evaluation is planned, so the loss cannot converge; set eval_strategy"
        if "save" in self.actions and "save_best" not in self.actions and args.save_total_limit:
            yield f"save_total_limit {args.save_total_limit} may delete the checkpoint of `save`"

        data = getattr(self._trainer, "eval_dataset", None)
        losses = ["eval_loss"]
        if isinstance(data, Mapping):
            losses = [f"eval_{name}_loss" for name in data]
            data = next(iter(data.values()), None)
        # The names of the metrics of ``compute_metrics`` are not known before an evaluation.
        has_metrics = getattr(self._trainer, "compute_metrics", None)
        if self._trainer is not None and not has_metrics and self.metric not in losses:
            yield f"metric {self.metric!r} is not evaluated; valid: {', '.join(losses)}"
        if "probe" in self.actions and data is not None:
            try:
                check_model(model, args)
                read_rows(data, 1)
            except Exception as error:  # noqa: BLE001, a data set may raise anything
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
        """Update the monitor and log its numbers; act if the loss has just converged."""
        if self.metric not in metrics:
            return
        # Every rank gets the numbers of rank 0.
        loss, stderr = broadcast_object_list(
            [metrics[self.metric], metrics.get(self.stderr_metric)]
        )
        state_before = self.monitor.state
        try:
            monitor_state = self.monitor.update(state.global_step, loss, stderr)
        except (TypeError, ValueError) as error:
            _log(state, one_line(error))
            return
        if monitor_state is state_before:  # the same evaluation again
            return

        if "save_best" in self.actions and monitor_state.best_step == monitor_state.step:
            control.should_save = True
        gaps = {}
        if monitor_state.began:
            if "probe" in self.actions:
                if state.is_world_process_zero:
                    gaps = self._measure(args, model, eval_dataloader)
                [gaps] = broadcast_object_list([gaps])
            self._act(monitor_state, gaps, state, control)
        if self._trainer is not None:
            numbers = _reported_numbers(monitor_state) | gaps
            self._trainer.log({f"eval_{name}": float(number) for name, number in numbers.items()})

    def _act(
        self,
        monitor_state: MonitorState,
        gaps: Mapping[str, float],
        state: TrainerState,
        control: TrainerControl,
    ) -> None:
        """Record that the loss has converged, log it, and request to save or stop."""
        self.events.append(
            {
                "step": monitor_state.step,
                "loss": monitor_state.loss,
                "slope": monitor_state.slope,
                **gaps,
            }
        )
        # Another callback may have asked for the same. Its wish is kept.
        control.should_save |= "save" in self.actions
        control.should_training_stop |= "stop" in self.actions
        names = printed_names(read_specs(self.probe["quantizers"]))
        gaps_text = "".join(
            f"; {names[name.removesuffix('_gap_pct')]} gap {gap:.2f} %"
            for name, gap in gaps.items()
        )
        _log(
            state,
            f"{self.metric} has converged at step {monitor_state.step} "
            f"(no fall in {monitor_state.without_fall} evaluations; "
            f"best {monitor_state.best_loss:.4f} at step {monitor_state.best_step}){gaps_text}; "
            f"actions: {', '.join(self.actions)}",
        )

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


def _reported_numbers(monitor_state: MonitorState) -> dict[str, float]:
    """The numbers of a state that are logged after each evaluation."""
    numbers = {
        "evaluations_without_fall": monitor_state.without_fall,
        "converged": monitor_state.converged,
    }
    if monitor_state.slope is not None:
        numbers["loss_slope_per_1000_steps"] = 1000.0 * monitor_state.slope
        numbers["loss_slope_error_per_1000_steps"] = 1000.0 * monitor_state.slope_error
    return numbers


def check_model(model: nn.Module | None, args: TrainingArguments) -> None:
    """Raise ``ValueError`` unless rank 0 has a complete, plain model of transformers."""
    if not isinstance(model, PreTrainedModel) or hasattr(model, "peft_config"):
        name = type(model).__name__
        raise ValueError(
            f"{name} is not a plain model of transformers; adapters must be merged first"
        )
    if args.fsdp or args.deepspeed:  # the forward of one rank would wait forever for the others
        raise ValueError("the weights are spread over processes; audit a saved checkpoint")


def read_rows(data: Sequence, count: int) -> np.ndarray:
    """The first ``count`` rows of an evaluation set as ``[rows, length]`` token ids.

    Rows are read without a loader, because starting one draws random numbers and would change
    the training. Raises ``ValueError`` if a row has no ``input_ids``, is padded, or has another
    length than the others.
    """
    rows = []
    for index in range(min(count, len(data))):
        row = data[index]
        if not isinstance(row, Mapping) or "input_ids" not in row:
            content = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(f"evaluation row {index} has no input_ids, but {content}")
        ids = np.asarray(row["input_ids"], dtype=np.int32).reshape(-1)
        if (ids < 0).any() or not np.all(row.get("attention_mask", 1)):
            raise ValueError(f"evaluation row {index} is padded; pack them to one length")
        rows.append(ids)
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1 or lengths[0] < 2:
        raise ValueError(f"evaluation sequences of {lengths} tokens; pack them to one length")
    return np.stack(rows)


def probe_gaps(model: nn.Module, data: Sequence | None, settings: Mapping) -> dict[str, float]:
    """Gap in percent (equation 3) of each quantizer, under names such as ``int4_gap_pct``.

    Computed in float32 with TF32 off, in eval mode. Weights, TF32 flags and the state of the
    random numbers are unchanged afterwards.
    """
    if data is None:
        raise ValueError("the trainer has no evaluation set")
    tokens = read_rows(data, settings["sequences"])
    specs = read_specs(settings["quantizers"])
    device = str(next(model.parameters()).device)
    options = {"batch_size": settings["batch_size"], "device": device}
    is_float32 = all(parameter.dtype == torch.float32 for parameter in model.parameters())

    matmul = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    # The training may use TF32. Its settings are put back whatever happens.
    tf32_before = (matmul.allow_tf32, cudnn.allow_tf32)
    try:
        matmul.allow_tf32 = False
        cudnn.allow_tf32 = False
        # A copy is made only for another dtype: it costs the memory of a second model.
        float32_model = model.eval() if is_float32 else copy.deepcopy(model).float().eval()
        scores, coverages = score_quantized(float32_model, tokens, specs, **options)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = tf32_before

    for name, quantizer_coverage in coverages.items():
        logger.info(f"monitor: {name}: {coverage_line(quantizer_coverage)}")
    fp32_nll = scores.pop(FP32).mean_nll()
    return {
        f"{name}_gap_pct": float(gap_pct(quantized_scores.mean_nll(), fp32_nll))
        for name, quantized_scores in scores.items()
    }
