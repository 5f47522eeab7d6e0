"""A monitor of FP32 convergence for a training loop: has validation loss stopped falling?

The paper's advice (section 4.3) is to watch the derivative of the validation loss. Here it
is the least-squares slope over the last ``window`` evaluations. A slope counts as a fall if
it lies more than ``noise`` of its standard errors below zero; ``patience`` evaluations
without a fall, one after another, are convergence. A later fall takes it back. With noise 0
and patience 1 this is the paper's rule as ``early_warning`` states it, on the loss.

The standard error of the slope is the larger of two: what the evaluations' own standard
errors amount to, where they are given, and what the scatter about the line says. The
first alone misses how the loss wavers from step to step; the second alone trusts few points.

Nothing here knows a framework: ``tools.callback`` is for the Trainer.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import index

import numpy as np

SMALLEST_WINDOW = 3  # a line through two points has no scatter


class MonitorError(ValueError):
    """Something the monitor cannot take, in one line; it goes on as if it had not been given."""


@dataclass(frozen=True)
class MonitorState:
    """What is known after an evaluation.

    ``slope`` and ``slope_error`` are in loss per step (``None`` until the window is full).
    ``without_fall``: evaluations in a row whose slope was no fall. ``converged``: whether
    they are as many as the patience; ``began``: whether that is new with this evaluation.
    ``converged_step`` is where it began.
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
    """Takes the validation loss of one evaluation after another and says when it has converged.

    ``start`` is the first step whose evaluations count. Raises ``MonitorError`` for a setting
    that makes no sense.
    """

    def __init__(
        self, *, window: int = 10, patience: int = 5, noise: float = 1.0, start: int = 0
    ) -> None:
        # Plain numbers, whatever library's they were: a checkpoint keeps them as JSON.
        whole = {"window": index(window), "patience": index(patience), "start": index(start)}
        self.settings = {**whole, "noise": float(noise)}
        if window < SMALLEST_WINDOW or patience < 1 or start < 0 or not 0.0 <= noise < math.inf:
            raise MonitorError(
                f"window {window} (valid: from {SMALLEST_WINDOW}), patience {patience} "
                f"(from 1), start {start} (from 0), noise {noise} (from 0)"
            )
        self.state: MonitorState | None = None
        self._recent: list[tuple[int, float, float | None]] = []

    def update(self, step: int, loss: float, stderr: float | None = None) -> MonitorState:
        """Take the mean validation loss at ``step``, and its standard error.

        Where every evaluation scores the same text, what makes that text hard is no noise of the
        slope; give ``paired_standard_error`` then. The same step with the same loss changes
        nothing. Raises ``MonitorError``, and stays as it was, for a loss or an error that is not
        finite and for a step that is not after the last one.
        """
        step, loss, last = int(step), float(loss), self.state
        stderr = None if stderr is None else float(stderr)
        if not math.isfinite(loss) or not 0.0 <= (stderr or 0.0) < math.inf:
            error = "" if stderr is None else f" with standard error {stderr}"
            raise MonitorError(f"the loss at step {step} is {loss}{error}; left out")
        if last is not None and (step, loss) == (last.step, last.loss):
            return last
        if last is not None and step <= last.step:
            raise MonitorError(f"step {step} comes after step {last.step}; steps rise; left out")
        counts = step >= self.settings["start"]
        if counts:
            self._recent = [*self._recent, (step, loss, stderr)][-self.settings["window"] :]
        full = counts and len(self._recent) == self.settings["window"]
        slope, error = slope_of(self._recent) if full else (None, None)
        falls = not full or slope < -self.settings["noise"] * error
        count = 0 if falls else 1 + (last.without_fall if last else 0)
        converged = count >= self.settings["patience"]
        began = converged and not (last and last.converged)
        since = step if began else last.converged_step if converged else None
        better = last is None or loss < last.best_loss
        best = (step, loss) if better else (last.best_step, last.best_loss)
        self.state = MonitorState(step, loss, slope, error, count, *best, converged, began, since)
        return self.state

    def state_dict(self) -> dict:
        """Everything that a resumed run needs, in plain values that JSON keeps exactly."""
        return {
            "settings": self.settings,
            "recent": [list(evaluation) for evaluation in self._recent],
            "state": None if self.state is None else asdict(self.state),
        }

    def load_state_dict(self, saved: Mapping) -> None:
        """Go on from what ``state_dict`` gave.

        Raises ``MonitorError``, and stays as it was, where the settings are not the saved
        ones or the state is not a monitor's.
        """
        try:
            settings, state = dict(saved["settings"]), saved["state"]
            recent = [(int(step), loss, error) for step, loss, error in saved["recent"]]
            state = None if state is None else MonitorState(**state)
        except (KeyError, TypeError, ValueError) as error:
            raise MonitorError(f"not the state of a monitor ({error!r})") from error
        for name, now in self.settings.items():
            if (then := settings.get(name)) != now:
                raise MonitorError(
                    f"{name} is {now}, but was {then} when this run was saved; "
                    f"resume with {name}={then}, or start with a new monitor"
                )
        self._recent, self.state = recent, state


def slope_of(evaluations: list[tuple[int, float, float | None]]) -> tuple[float, float]:
    """Least-squares slope of (step, loss, standard error) triples, and its standard error."""
    steps, losses, own = np.array(evaluations, dtype=np.float64).T  # None becomes NaN
    x, y = steps - steps.mean(), losses - losses.mean()
    power = float(x @ x)
    slope = float(x @ y) / power
    residuals = y - slope * x
    scatter = math.sqrt(float(residuals @ residuals) / (len(x) - 2) / power)
    known = float(np.sqrt(np.sum((x * own) ** 2))) / power
    return slope, scatter if math.isnan(known) else max(scatter, known)


def paired_standard_error(
    nll_nats: np.ndarray, previous_nll_nats: np.ndarray, scored: np.ndarray
) -> float:
    """Standard error of the change of the mean loss between two evaluations of one text.

    The first two are sums over the ``scored`` tokens of each sequence, ``[sequences]``.
    It is that of a ratio of sums (Cochran, Sampling Techniques, 1977). As the ``stderr`` of
    one evaluation give it divided by the square root of 2: the change has two ends.
    """
    rise = (nll_nats.sum() - previous_nll_nats.sum()) / scored.sum()
    residual = nll_nats - previous_nll_nats - rise * scored
    return float(np.sqrt(len(scored) * np.var(residual, ddof=1)) / scored.sum())
