"""The convergence monitor as a callback of the transformers Trainer.

    callback = ConvergenceCallback(ConvergenceMonitor(), actions=("save", "probe")).attach(trainer)

Its state is part of ``trainer_state.json`` of every checkpoint and is taken up again by
``trainer.train(resume_from_checkpoint=…)``. In a distributed run the loss of rank 0 is
shared with all ranks, so that all come to the same decision; only rank 0 speaks and probes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from flatminima.jobs import log
from flatminima.live_probe import DEFAULT_PROBE, probe_gaps
from flatminima.monitor import ConvergenceMonitor, MonitorError, MonitorState

ACTIONS = ("warn", "save", "probe", "stop")


def from_rank_zero(value: object) -> object:
    """What rank 0 passed, on every rank; ``value`` itself in a run of one process.

    Every rank of ``torch.distributed`` must call it.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    shared = [value]
    torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]


class ConvergenceCallback(TrainerCallback, ExportableState):
    """Watches ``metric`` of every evaluation and acts when it has converged.

    ``actions``: ``warn`` says so in one line (as every other action does too), ``save``
    saves a checkpoint at once, ``probe`` measures the INT4 and INT8 gap on the evaluation
    set, ``stop`` ends training. ``stderr_metric`` names a metric with the standard error
    of the loss, which ``compute_metrics`` may give; without it the scatter of the losses
    decides. ``probe`` is as ``live_probe.DEFAULT_PROBE``. ``events`` has one entry for each
    time the loss converged. A save strategy of ``best`` takes precedence over ``save``.
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
                raise MonitorError(f"monitor: action {action!r}; valid: {', '.join(ACTIONS)}")
        is_monitor = isinstance(monitor, ConvergenceMonitor)
        self.monitor = monitor if is_monitor else ConvergenceMonitor(**(monitor or {}))
        self.actions = tuple(actions)
        self.metric, self.stderr_metric = metric, stderr_metric
        self.probe = DEFAULT_PROBE | dict(probe or {})
        self.events: list[dict] = []
        self._trainer: Trainer | None = None

    def attach(self, trainer: Trainer) -> "ConvergenceCallback":
        """Become a callback of ``trainer`` and log to whatever it reports to."""
        self._trainer = trainer
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    def state(self) -> dict:
        """What the Trainer writes into ``trainer_state.json``."""
        return {
            "args": {
                "monitor": asdict(self.monitor.settings),
                "actions": list(self.actions),
                "metric": self.metric,
                "stderr_metric": self.stderr_metric,
                "probe": self.probe,
            },
            "attributes": {"saved": {"monitor": self.monitor.state_dict(), "events": self.events}},
        }

    @property
    def saved(self) -> dict:
        """The part of the state that changes during training."""
        return self.state()["attributes"]["saved"]

    @saved.setter
    def saved(self, saved: Mapping) -> None:
        self.monitor.load_state_dict(saved["monitor"])
        self.events = list(saved["events"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Take up the state of the checkpoint that training resumes from."""
        found = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        if isinstance(found, dict):
            self.saved = found["attributes"]["saved"]
        if not state.is_world_process_zero:
            return
        if state.global_step and found is None:
            log(f"monitor: the checkpoint of step {state.global_step} has no state; starting anew")
        if self._trainer is None:
            log("monitor: not attached, so nothing is logged; use callback.attach(trainer)")
        if "save" in self.actions and args.save_total_limit:
            log(f"monitor: save_total_limit {args.save_total_limit} may delete what it saves")

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping,
        model: nn.Module | None = None,
        **kwargs,
    ) -> TrainerControl:
        """Update the monitor, log what it says, and act where the loss has just converged."""
        if self.metric not in metrics:  # the evaluation of another data set
            return control
        loss, stderr = from_rank_zero((metrics[self.metric], metrics.get(self.stderr_metric)))
        before = self.monitor.state
        try:
            now = self.monitor.update(state.global_step, loss, stderr)
        except MonitorError as error:
            if state.is_world_process_zero:
                log(str(error))
            return control
        if now is before:
            return control
        gaps = {}
        if now.began:
            gaps = self._act(state, control, now, model, kwargs.get("eval_dataloader"))
        if self._trainer is not None:
            self._trainer.log(_logged(now) | {f"eval_{name}": gap for name, gap in gaps.items()})
        return control

    def _act(self, state, control, now: MonitorState, model, loader) -> dict[str, float]:
        gaps, leads = {}, state.is_world_process_zero
        if "probe" in self.actions:
            gaps, trouble = from_rank_zero(self._measure(model, loader) if leads else None)
            if trouble and leads:
                log(trouble)
        self.events.append({"step": now.step, "loss": now.loss, "slope": now.slope, **gaps})
        control.should_save = control.should_save or "save" in self.actions
        control.should_training_stop = control.should_training_stop or "stop" in self.actions
        if leads:
            found = "".join(f"; {name.replace('_', ' ')} {gap:.2f}" for name, gap in gaps.items())
            does = ", ".join(name for name in self.actions if name in ("save", "stop"))
            log(
                f"monitor: {self.metric} has converged at step {now.step} (no fall in "
                f"{now.without_fall} evaluations; best {now.best_loss:.4f} at step "
                f"{now.best_step}){found}{f'; {does}' if does else ''}"
            )
        return gaps

    def _measure(self, model, loader) -> tuple[dict[str, float], str]:
        """Gaps by name, or one line that says why there are none; training must go on."""
        try:
            return probe_gaps(model, loader, self.probe), ""
        except (FloatingPointError, RuntimeError, TypeError, ValueError) as error:
            return {}, f"monitor: no probe: {str(error).splitlines()[0]}"


def _logged(now: MonitorState) -> dict[str, float]:
    """The numbers of a state, under names that report as metrics of the evaluation."""
    values = {
        "eval_loss_slope_per_1000_steps": None if now.slope is None else 1000.0 * now.slope,
        "eval_loss_slope_error_per_1000_steps":
            None if now.slope_error is None else 1000.0 * now.slope_error,
        "eval_evaluations_without_fall": float(now.without_fall),
        "eval_converged": float(now.converged),
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}
