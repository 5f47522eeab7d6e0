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
from dataclasses import asdict, dataclass, fields

import numpy as np

SMALLEST_WINDOW = 3  # a line through two points has no scatter


class MonitorError(ValueError):
    """Something the monitor cannot take, in one line; it goes on as if it had not been given."""


@dataclass(frozen=True)
class MonitorSettings:
    """How sure the monitor wants to be; ``start`` is the first step whose evaluations count."""

    window: int = 10
    patience: int = 5
    noise: float = 1.0
    start: int = 0

    def __post_init__(self) -> None:
        for name, least in (("window", SMALLEST_WINDOW), ("patience", 1), ("start", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise MonitorError(f"monitor: {name} {value!r}; a whole number from {least} on")
        if not (math.isfinite(self.noise) and self.noise >= 0.0):
            raise MonitorError(f"monitor: noise {self.noise!r}; a number from 0 on")


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
    """Takes the validation loss of one evaluation after another and says when it has converged."""

    def __init__(
        self, *, window: int = 10, patience: int = 5, noise: float = 1.0, start: int = 0
    ) -> None:
        self.settings = MonitorSettings(window, patience, float(noise), start)
        self.state: MonitorState | None = None
        self._recent: list[tuple[int, float, float | None]] = []

    def update(self, step: int, loss: float, stderr: float | None = None) -> MonitorState:
        """Take the mean validation loss at ``step``.

        ``stderr`` is the standard error of ``loss``. Where every evaluation scores the same
        text, what makes that text hard is common to all and no noise of the slope; give
        ``paired_standard_error`` then. The same step with the same loss changes nothing.
        Raises ``MonitorError`` for a loss or an error that is not finite and for a step that
        is not after the last one; the monitor then stays as it was.
        """
        loss = float(loss)
        stderr = None if stderr is None else float(stderr)
        for name, value in (("loss", loss), ("standard error", 0.0 if stderr is None else stderr)):
            if not math.isfinite(value) or (name != "loss" and value < 0.0):
                raise MonitorError(f"monitor: the {name} at step {step} is {value}; left out")
        last = self.state
        if last is not None and (step, loss) == (last.step, last.loss):
            return last
        if last is not None and step <= last.step:
            raise MonitorError(
                f"monitor: step {step} comes after step {last.step}; steps must rise; left out"
            )
        if step >= self.settings.start:
            self._recent = [*self._recent, (int(step), loss, stderr)][-self.settings.window :]
        self.state = self._judge(int(step), loss)
        return self.state

    def _judge(self, step: int, loss: float) -> MonitorState:
        last, asked = self.state, self.settings
        full = len(self._recent) == asked.window and step >= asked.start
        slope, error = slope_of(self._recent) if full else (None, None)
        falls = not full or slope < -asked.noise * error
        count = 0 if falls else 1 + (last.without_fall if last else 0)
        converged = count >= asked.patience
        began = converged and not (last and last.converged)
        since = step if began else last.converged_step if last and converged else None
        better = last is None or loss < last.best_loss
        best = (step, loss) if better else (last.best_step, last.best_loss)
        return MonitorState(step, loss, slope, error, count, *best, converged, began, since)

    def state_dict(self) -> dict:
        """Everything that a resumed run needs, in plain values that JSON keeps exactly."""
        return {
            "settings": asdict(self.settings),
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
            raise MonitorError(f"monitor: not the state of a monitor ({error!r})") from error
        for field in fields(MonitorSettings):
            then, now = settings.get(field.name), getattr(self.settings, field.name)
            if then != now:
                raise MonitorError(
                    f"monitor: {field.name} is {now}, but was {then} when this run was saved; "
                    f"resume with {field.name}={then}, or start with a new monitor"
                )
        self._recent, self.state = recent, state


def slope_of(evaluations: list[tuple[int, float, float | None]]) -> tuple[float, float]:
    """Least-squares slope of (step, loss, standard error) triples, and its standard error."""
    steps, losses = (np.array([e[i] for e in evaluations], dtype=np.float64) for i in (0, 1))
    x, y = steps - steps.mean(), losses - losses.mean()
    power = float(x @ x)
    slope = float(x @ y) / power
    residuals = y - slope * x
    scatter = math.sqrt(float(residuals @ residuals) / (len(x) - 2) / power)
    if any(e[2] is None for e in evaluations):
        return slope, scatter
    own = np.array([e[2] for e in evaluations], dtype=np.float64)
    return slope, max(scatter, float(np.sqrt(np.sum((x * own) ** 2))) / power)


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
