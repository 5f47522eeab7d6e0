"""Numbers with a range, for the expressions of ``claims.yaml``.

A printed number has a range because it was rounded. A measured number has a 95 % interval.
Comparisons have three answers: true, false, and ``None`` if the ranges overlap.
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd


def _combining_ends(operation: Callable[[float, float], float]) -> Callable:
    """A method of ``Interval`` that applies ``operation`` to all pairs of ends."""

    def method(self: "Interval", number: object) -> "Interval":
        other = interval(number)
        ends = [operation(a, b) for a in self.range for b in other.range]
        return Interval(operation(self.value, other.value), min(ends), max(ends))

    return method


@dataclass(frozen=True)
class Interval:
    """A number and the range it may lie in: the range of its rounding, or a 95 % interval.

    Arithmetic treats its inputs as independent, so ranges never become too narrow. ``a < b``
    is true or false if the ranges do not overlap, and ``None`` if they do.
    """

    value: float
    low: float
    high: float

    __add__ = __radd__ = _combining_ends(operator.add)
    __mul__ = __rmul__ = _combining_ends(operator.mul)
    __sub__ = _combining_ends(operator.sub)
    _divided_by = _combining_ends(operator.truediv)

    def __neg__(self) -> "Interval":
        return self * -1

    def __truediv__(self, number: object) -> "Interval":
        other = interval(number)
        # Division by a range that contains zero can give any number.
        if other.low <= 0.0 <= other.high:
            ratio = self.value / other.value if other.value else math.nan
            return Interval(ratio, -math.inf, math.inf)
        return self._divided_by(other)

    def __rsub__(self, number: object) -> "Interval":
        return interval(number) - self

    def __rtruediv__(self, number: object) -> "Interval":
        return interval(number) / self

    def __lt__(self, number: object) -> bool | None:
        other = interval(number)
        # Equal ends decide nothing: rounded numbers may be equal.
        if self.high < other.low:
            return True
        if self.low >= other.high:
            return False
        return None

    def __gt__(self, number: object) -> bool | None:
        return interval(number) < self

    def __abs__(self) -> "Interval":
        # The range contains zero, which is then the smallest magnitude.
        if self.low < 0.0 < self.high:
            return Interval(abs(self.value), 0.0, max(-self.low, self.high))
        return self if self.low >= 0.0 else -self

    def __float__(self) -> float:
        return float(self.value)

    @property
    def range(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high

    @property
    def alone(self) -> "Interval":
        """The value without its range."""
        return interval(self.value)

    def map(self, function: Callable[[float], float]) -> "Interval":
        """Apply an increasing function to the value and to both ends."""
        return Interval(*(float(function(x)) for x in (self.value, self.low, self.high)))

    def __format__(self, spec: str) -> str:
        if math.inf in map(abs, self.range):
            return "not determined"
        value, low, high = (f"{x:{spec or 'g'}}" for x in (self.value, *self.range))
        return value if low == high else f"{value} [{low}, {high}]"


def interval(number: object) -> Interval:
    """A plain number as an exact interval; an interval unchanged."""
    if isinstance(number, Interval):
        return number
    exact = float(number)
    return Interval(exact, exact, exact)


def read_interval(row: Mapping, value: str, low: str, high: str) -> Interval:
    """Three cells of a table's row, or three entries of a JSON file.

    An end that is missing could not be computed, so the range is unknown: it becomes infinite.
    """
    if pd.isna(row[low]) or pd.isna(row[high]):
        return Interval(float(row[value]), -math.inf, math.inf)
    return Interval(*(float(row[name]) for name in (value, low, high)))


def printed(text: str) -> Interval:
    """A number as printed, with the range of its rounding: half a unit of its last digit.

    A number with a thousands comma is a count and exact. Zeros at the end of an integer
    without a comma count as rounding. ``70,000 ±5,000`` gives another half width, and
    ``three = 3`` a number written as a word.
    """
    number, _, half_width_text = text.split("=")[-1].partition("±")
    digits = number.strip().replace(",", "")
    if half_width_text:
        half_width = float(half_width_text.replace(",", ""))
    elif "," in number or "=" in text:
        half_width = 0.0
    elif "." in digits:
        half_width = 0.5 * 10 ** -len(digits.split(".")[1])
    else:
        # Zeros at the end may be rounding. The number 0 itself has one digit.
        half_width = 0.5 * 10 ** (len(digits) - len(digits.rstrip("0") or "0"))

    value = float(digits)
    return Interval(value, value - half_width, value + half_width)


def log(x: object) -> Interval:
    """Natural logarithm; minus infinity where the number or an end is not positive."""
    return interval(x).map(lambda number: math.log(number) if number > 0 else -math.inf)


def meets(a: object, b: object) -> bool:
    """Whether two rounded numbers can be equal."""
    first = interval(a)
    second = interval(b)
    return bool(first.low <= second.high + 1e-9 and second.low <= first.high + 1e-9)


def every(*answers: bool | None) -> bool | None:
    """``all`` for three-valued answers: one false answer decides, then an open one."""
    # ``False in`` compares with ==, and None is not equal to False.
    if False in answers:
        return False
    return None if None in answers else True
