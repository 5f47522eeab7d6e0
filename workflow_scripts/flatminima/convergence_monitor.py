"""A monitor of FP32 convergence for a training loop: has the validation loss stopped falling?

The paper advises to watch the derivative of the validation loss (section 4.3). Here this is the
least-squares slope over the last ``window`` evaluations. The loss falls if the slope is more than
``noise`` of its standard errors below zero. After ``patience`` consecutive evaluations without a
fall, the loss has converged. A later fall revokes this. With noise 0 and patience 1 this is the
rule that ``early_warning`` reads in the paper, applied to the loss.

The standard error of the slope is the larger of two estimates. One follows from the standard
errors of the evaluations, if these are available. It misses how the loss fluctuates from step to
step. The other is the scatter around the line. It is too optimistic for a few points.

This module does not depend on a training framework. ``tools.callback`` connects it to the Trainer.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import index

import numpy as np

SMALLEST_WINDOW = 3  # a line through two points has no scatter


class MonitorError(ValueError):
    """An input that the monitor rejects. Its state is then as it was before."""


@dataclass(frozen=True)
class MonitorState:
    """The monitor after an evaluation.

    ``slope`` and ``slope_error`` are in loss per step, ``None`` until the window is full.
    ``without_fall`` counts the last consecutive evaluations without a fall. ``converged``: these
    are at least ``patience``. ``began``: convergence began with this evaluation.
    ``converged_step`` is the step at which it began.
    """

    step: int
    loss: float
    slope: float | None
    slope_error: float | None
    without_fall: int
    best_step: int
    best_loss: float
    converged: bool
    began: bool
    converged_step: int | None


class ConvergenceMonitor:
    """Follows the validation loss of a run and reports when it has converged.

    Evaluations before the step ``start`` do not count. Raises ``MonitorError`` for a setting out
    of range.
    """

    def __init__(
        self, *, window: int = 10, patience: int = 5, noise: float = 1.0, start: int = 0
    ) -> None:
        # Plain numbers, not those of numpy or torch: a checkpoint stores the settings as JSON.
        self.settings = {
            "window": index(window),
            "patience": index(patience),
            "start": index(start),
            "noise": float(noise),
        }
        if window < SMALLEST_WINDOW or patience < 1 or start < 0 or not 0.0 <= noise < math.inf:
            raise MonitorError(
                f"window {window} (valid: from {SMALLEST_WINDOW}), patience {patience} "
                f"(from 1), start {start} (from 0), noise {noise} (from 0)"
            )
        self.state: MonitorState | None = None
        self._recent: list[tuple[int, float, float | None]] = []  # step, loss, standard error

    def reset(self) -> None:
        """Forget all evaluations, for another training with the same settings."""
        self.state = None
        self._recent = []

    def update(self, step: int, loss: float, stderr: float | None = None) -> MonitorState:
        """Add the mean validation loss at ``step`` and its standard error.

        If every evaluation scores the same text, the difficulty of this text is not noise of the
        slope. Use ``paired_standard_error`` in that case. Repeating the last step with the same
        loss changes nothing. Raises ``MonitorError``, and keeps its state, for a loss or an error
        that is not finite, and for a step that is not after the last one.
        """
        step = int(step)
        loss = float(loss)
        stderr = None if stderr is None else float(stderr)
        previous = self.state
        if not math.isfinite(loss) or not 0.0 <= (stderr or 0.0) < math.inf:
            error = "" if stderr is None else f" with standard error {stderr}"
            raise MonitorError(f"the loss at step {step} is {loss}{error}; left out")
        if previous is not None:
            # A run that is resumed from a checkpoint evaluates its last step once more.
            if (step, loss) == (previous.step, previous.loss):
                return previous
            if step <= previous.step:
                raise MonitorError(
                    f"step {step} follows step {previous.step}, but steps must rise; left out"
                )

        # Evaluations before the start, such as those during warm-up, have no slope.
        counts = step >= self.settings["start"]
        if counts:
            self._recent = [*self._recent, (step, loss, stderr)][-self.settings["window"] :]
        slope = None
        slope_error = None
        without_fall = 0
        if counts and len(self._recent) == self.settings["window"]:
            slope, slope_error = slope_of(self._recent)
            # The loss falls if its slope is below zero by more than the noise of the slope.
            falls = slope < -self.settings["noise"] * slope_error
            if not falls:
                without_fall = 1 + (previous.without_fall if previous else 0)

        # One slope that is not below zero may be chance. Several in a row are needed.
        converged = without_fall >= self.settings["patience"]
        began = converged and not (previous and previous.converged)
        converged_step = None
        if began:
            converged_step = step
        elif converged:
            converged_step = previous.converged_step
        is_best = previous is None or loss < previous.best_loss
        self.state = MonitorState(
            step=step,
            loss=loss,
            slope=slope,
            slope_error=slope_error,
            without_fall=without_fall,
            best_step=step if is_best else previous.best_step,
            best_loss=loss if is_best else previous.best_loss,
            converged=converged,
            began=began,
            converged_step=converged_step,
        )
        return self.state

    def state_dict(self) -> dict:
        """Everything that a resumed run needs, in plain values that JSON stores exactly."""
        return {
            "settings": self.settings,
            "recent": [list(evaluation) for evaluation in self._recent],
            "state": None if self.state is None else asdict(self.state),
        }

    def load_state_dict(self, saved: Mapping) -> None:
        """Restore what ``state_dict`` returned.

        Raises ``MonitorError``, and keeps its state, if the saved settings differ or if ``saved``
        is not the state of a monitor.
        """
        try:
            saved_settings = dict(saved["settings"])
            recent = [(int(step), loss, error) for step, loss, error in saved["recent"]]
            state = None if saved["state"] is None else MonitorState(**saved["state"])
        except (KeyError, TypeError, ValueError) as error:
            raise MonitorError(f"not the state of a monitor ({error!r})") from error
        for name, setting in self.settings.items():
            saved_setting = saved_settings.get(name)
            if saved_setting != setting:
                raise MonitorError(
                    f"{name} is {setting}, but was {saved_setting} when this run was saved; "
                    f"resume with {name}={saved_setting}, or start with a new monitor"
                )
        self._recent = recent
        self.state = state


def slope_of(evaluations: list[tuple[int, float, float | None]]) -> tuple[float, float]:
    """Least-squares slope of (step, loss, standard error) triples, and its standard error.

    The standard error is the larger of the two estimates above.
    """
    # An evaluation without a standard error becomes NaN, and so does the first estimate.
    steps, losses, loss_errors = np.array(evaluations, dtype=np.float64).T
    x = steps - steps.mean()
    y = losses - losses.mean()
    sum_of_squares = float(x @ x)
    slope = float(x @ y) / sum_of_squares
    residuals = y - slope * x
    from_scatter = math.sqrt(float(residuals @ residuals) / (len(x) - 2) / sum_of_squares)
    from_evaluations = float(np.sqrt(np.sum((x * loss_errors) ** 2))) / sum_of_squares
    if math.isnan(from_evaluations):
        return slope, from_scatter
    return slope, max(from_scatter, from_evaluations)


def paired_standard_error(
    nll_nats: np.ndarray, previous_nll_nats: np.ndarray, scored: np.ndarray
) -> float:
    """Standard error of the change in mean loss between two evaluations of the same text.

    The first two arguments are sums over the ``scored`` tokens of each sequence, ``[sequences]``.
    The formula is that of a ratio of sums (Cochran, Sampling Techniques, 1977). For
    ``ConvergenceMonitor.update``, divide it by the square root of 2: both evaluations contribute
    to the error of the change.
    """
    rise = (nll_nats.sum() - previous_nll_nats.sum()) / scored.sum()
    residual = nll_nats - previous_nll_nats - rise * scored
    return float(np.sqrt(len(scored) * np.var(residual, ddof=1)) / scored.sum())
