"""Numbers as a tool printed them: a value and half a unit in its last place, so that checks know what rounding hides.

A row checks itself: algbw = size / time, and busbw = algbw * factor(ranks). Both are tested on intervals: the
printed digits leave +- half a unit in the last place, and 0.5 % more is allowed because some versions print a time
and a bandwidth that were averaged apart. Every row of real logs that was read so far meets this; a typing error or
a lost digit in a number does not.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

SLACK = 0.005
_HALVES = tuple(0.5 * 10.0**-decimals for decimals in range(20))
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d*))?(?:[eE]([-+]?\d{1,3}))?")


class Printed(NamedTuple):
    """A number and half a unit in the last place that was printed."""

    value: float
    half: float = 0.0

    @property
    def lo(self) -> float:
        """The least number that prints like this."""
        return self.value - self.half

    @property
    def hi(self) -> float:
        """The greatest number that prints like this."""
        return self.value + self.half


def printed(text: str) -> Printed | None:
    """Read a printed number; None where it is none (`N/A`, `nan`, `XXX.XX`).

    >>> printed("97.98"), printed("1.1e+07"), printed("XXX.XX")
    (Printed(value=97.98, half=0.005), Printed(value=11000000.0, half=500000.0), None)
    """
    return _printed(text) if len(text) <= 40 else None


@lru_cache(maxsize=4096)
def _printed(text: str) -> Printed | None:
    """Columns say the same few numbers again and again: no wrong result, the bandwidth that a link settles at."""
    whole, _, fraction = text.partition(".")
    if text.isascii() and whole.isdecimal() and len(text) < 20 and (fraction.isdecimal() or whole == text):
        return Printed(float(text), _HALVES[len(fraction)])
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    decimals = len(match[3] or "") - int(match[4] or 0)
    if abs(decimals) > 30:
        return None
    return Printed(float(text), 0.5 * 10.0**-decimals)


def exact(value: object) -> Printed | None:
    """A number of a JSON document; None where it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value) if abs(value) < 1e300 else math.inf
    return Printed(number, abs(number) * 1e-6) if math.isfinite(number) else None


def agrees(size_bytes: float, time_us: Printed, bandwidth_gb_per_s: Printed, factor: float = 1.0) -> bool:
    """Whether a bandwidth in GB/s is factor * size / time.

    >>> agrees(4294967296, Printed(22181.0, 0.5), Printed(193.63, 0.005))
    True
    """
    scaled = factor * size_bytes / 1e3  # GB/s is 1e3 bytes per microsecond
    time, half = time_us
    bandwidth, rounding = bandwidth_gb_per_s
    lo = (1 - SLACK) * scaled / (time + half)
    hi = (1 + SLACK) * scaled / (time - half) if time > half else math.inf
    return lo <= bandwidth + rounding and bandwidth - rounding <= hi


def ratio_bounds(numerator: Printed, denominator: Printed) -> tuple[float, float] | None:
    """The least and greatest ratio of two printed numbers; None where the denominator may be zero."""
    if denominator.lo <= 0:
        return None
    return numerator.lo / denominator.hi, numerator.hi / denominator.lo
