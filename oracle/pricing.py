"""The questions that a plan asks and the protocols of whoever answers them.

A timer prices many calls at once. It never sees a strategy: it gets layers as one device runs them (shards are layers
of their own shape) and transfers with their whole buffer, and says how long each takes, with shared draws and with how
it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np

from oracle.estimate import DRAWS, Estimate, Floats, Ints
from oracle.layer import Layer, Phase


class Method(StrEnum):
    """How a price is known."""

    MEASURED = "measured"
    """This very shape was measured."""
    FITTED = "fitted"
    """From fitted constants, inside the range that was measured."""
    EXTRAPOLATED = "extrapolated"
    """From fitted constants, outside the range that was measured."""
    ASSUMED = "assumed"
    """From numbers that somebody gave (a data sheet, a command-line flag, an ideal machine)."""


@dataclass(frozen=True)
class LayerCall:
    """One phase of one layer on one device's samples."""

    layer: Layer
    phase: Phase
    samples: int


@dataclass(frozen=True)
class Transfer:
    """One collective or point-to-point exchange.

    Args:
        collective: a name in `oracle.collectives`, such as all_reduce.
        bytes: the whole buffer, always (for all_gather: what every device holds afterwards).
        group: devices that take part.
        tier: index of the innermost tier of the cluster that holds the whole group; 0 is the innermost.
        concurrent: groups that use the same links at the same time.
        messages: how many such transfers of this size follow one another.
    """

    collective: str
    bytes: float
    group: int
    tier: int = 0
    concurrent: int = 1
    messages: int = 1


@dataclass(frozen=True)
class Prices:
    """Seconds for a sequence of n questions.

    Args:
        middle_s: shape (n,).
        draws_s: shape (n, DRAWS); draw k of all questions belongs together.
        methods: n ways in which they are known.
    """

    middle_s: Floats
    draws_s: Floats
    methods: tuple[Method, ...]

    def total(self, counts: Floats) -> Estimate:
        """The weighted sum over the questions, as one estimate in seconds."""
        if not len(self.middle_s):
            return Estimate.exact(0.0)
        return Estimate(float(counts @ self.middle_s), counts @ self.draws_s)

    @classmethod
    def exact(cls, seconds: Sequence[float], method: Method = Method.ASSUMED) -> Prices:
        """Prices without uncertainty."""
        middle = np.asarray(seconds, dtype=np.float64)
        return cls(middle, np.repeat(middle[:, None], DRAWS, axis=1), (method,) * len(middle))


@dataclass(frozen=True, eq=False)
class Curves:
    """Seconds of n questions over m numbers: straight lines, but for single points.

    Args:
        lines: seconds at 0 and for each one more, shape (n, 2).
        rows, columns: the questions and the numbers of k points that lie apart from their lines, shape (k,).
        apart_s: their seconds, shape (k,).
    """

    lines: Floats
    rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    apart_s: Floats = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of_table(cls, seconds: Floats) -> Curves:
        """Any seconds, shape (n, m)."""
        rows, columns = np.indices(seconds.shape).reshape(2, -1)
        return cls(np.zeros((len(seconds), 2)), rows, columns, seconds.ravel())

    def sums(self, counts: Floats, numbers: Ints) -> Floats:
        """Sums over the questions, weighted by counts of shape (sums, n), at the m numbers; shape (sums, m).

        >>> Curves(np.array([[1.0, 0.5]])).sums(np.array([[2.0]]), np.array([0, 4])).tolist()
        [[2.0, 6.0]]
        """
        lines = counts @ self.lines
        sums: Floats = lines[:, :1] + lines[:, 1:] * numbers
        on_line_s = self.lines[self.rows, 0] + self.lines[self.rows, 1] * numbers[self.columns]
        np.add.at(sums.T, self.columns, (counts[:, self.rows] * (self.apart_s - on_line_s)).T)
        return sums


@runtime_checkable
class ManySamples(Protocol):
    """A `LayerTimer` that prices calls of the same layers on many numbers of samples at once."""

    def over_samples(self, calls: Sequence[LayerCall], samples: Ints) -> Curves:
        """The middle of `LayerTimer.price` of each call on each of these samples, which rise, instead of its own.

        Raises:
            NotCalibrated: as `LayerTimer.price`.
        """


def over_samples(timer: LayerTimer, calls: Sequence[LayerCall], samples: Ints) -> Curves:
    """The middles of calls on many numbers of samples, by whatever the timer can do; see `ManySamples`."""
    if isinstance(timer, ManySamples):
        return timer.over_samples(calls, samples)
    columns = [timer.price([replace(call, samples=count) for call in calls]).middle_s for count in samples.tolist()]
    return Curves.of_table(np.column_stack(columns))


class LayerTimer(Protocol):
    """Prices layer calls."""

    def price(self, calls: Sequence[LayerCall]) -> Prices:
        """Seconds of each call on one device.

        Raises:
            NotCalibrated: a kind of layer and phase for which nothing is known.
        """


@dataclass(frozen=True)
class IdealTimer:
    """A `LayerTimer` with given seconds: an ideal device, where a shard takes its share of the work.

    What it says is assumed, without spread. Tests hold the strategies against closed forms with it.

    Args:
        seconds: the time of one call.
    """

    seconds: Callable[[LayerCall], float]

    @classmethod
    def of_rate(cls, flop_per_s: float) -> IdealTimer:
        """Every call takes its operations divided by one rate, so that equal shards take equal shares."""
        return cls(lambda call: call.layer.work(call.phase, call.samples).flop / flop_per_s)

    @classmethod
    def of_table(cls, seconds: Mapping[tuple[Layer, Phase], float]) -> IdealTimer:
        """Calls take seconds per sample (an update: per step) from a table; what is not in it takes no time.

        >>> from oracle.layers import Linear
        >>> timer = IdealTimer.of_table({(Linear(8, 4), Phase.FORWARD): 0.5})
        >>> float(timer.price([LayerCall(Linear(8, 4), Phase.FORWARD, samples=4)]).middle_s[0])
        2.0
        """

        def look_up(call: LayerCall) -> float:
            samples = 1 if call.phase is Phase.UPDATE else call.samples
            return samples * seconds.get((call.layer, call.phase), 0.0)

        return cls(look_up)

    def price(self, calls: Sequence[LayerCall]) -> Prices:
        """Seconds of each call on one device."""
        return Prices.exact([self.seconds(call) for call in calls])


@dataclass(frozen=True, eq=False)
class Slowdown:
    """By how much kernels and transfers slow one another down while they run at the same time.

    Args:
        kernels: the time of kernels beside transfers over their time alone; 1 = they do not meet.
        transfers: the time of transfers beside kernels over their time alone.
    """

    kernels: Estimate
    transfers: Estimate


NO_SLOWDOWN = Slowdown(Estimate.exact(1.0), Estimate.exact(1.0))
"""They do not meet: what is assumed where nothing was measured."""


@runtime_checkable
class Lines(Protocol):
    """A `TransferTimer` whose prices are straight lines in the bytes."""

    def lines(self, transfers: Sequence[Transfer]) -> Floats:
        """Seconds of each transfer without bytes, and for each byte of its buffer; shape (transfers, 2)."""


def over_bytes(timer: TransferTimer, transfers: Sequence[Transfer], sizes: Floats, numbers: Ints) -> Curves:
    """The middles of transfers whose sizes are straight lines in a number, at many of these numbers.

    Args:
        timer: prices them.
        transfers: n of them; their own sizes do not matter.
        sizes: bytes of their whole buffers at 0, and for each one more; shape (n, 2).
        numbers: m of them.
    """
    if isinstance(timer, Lines):
        lines = timer.lines(transfers)
        return Curves(np.column_stack((lines[:, 0] + lines[:, 1] * sizes[:, 0], lines[:, 1] * sizes[:, 1])))
    table = sizes[:, :1] + sizes[:, 1:] * numbers
    asked = [
        replace(transfer, bytes=size) for transfer, row in zip(transfers, table.tolist(), strict=True) for size in row
    ]
    return Curves.of_table(timer.price(asked).middle_s.reshape(table.shape))


class TransferTimer(Protocol):
    """Prices transfers."""

    def price(self, transfers: Sequence[Transfer]) -> Prices:
        """Seconds of each transfer, all its messages together."""

    def slowdown(self, transfers: Sequence[Transfer]) -> Slowdown:
        """By how much kernels and these transfers slow one another down where a plan runs both at once."""
