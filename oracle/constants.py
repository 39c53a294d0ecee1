"""What a calibration found, as plain values: constants with intervals, measured shapes, provenance. No fitting here."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from oracle.errors import BadInput
from oracle.estimate import DRAWS
from oracle.layer import Layer, Phase
from oracle.stored_array import StoredArray

CONSTANT_LEVEL = 0.8
"""The level of the interval [lo, hi] that every constant carries."""

LONGEST_NAME = 200
"""Characters in a calibration's name: short enough for an index in any database."""


STEP = "step"
"""The family of the factors by which kernels take longer inside a training step (`calibration.step_factor`)."""

FRESH_PAGES = "fresh_pages"
"""The family of the rate at which a CPU gets memory for large results (`calibration.fresh_pages`)."""

UNITS = {
    "launch_s": "s",
    "call_s": "s",
    "flop_per_s": "FLOP/s",
    "bytes_per_s": "B/s",
    "winograd_factor": "1",
    "wave_exponent": "1",
    "step_factor": "1",
    "enqueue_s": "s",
    "enqueue_step_s": "s",
}
"""The quantities that a constant may be, with their units.

A step of an optimizer costs `call_s` whatever it updates, and `launch_s` for each tensor. The factor of Winograd and
the exponent of waves belong to the roofline law alone, the factor of a step to the family `STEP`. `enqueue_s` and
`enqueue_step_s` are the host's and no part of the device's time: what it needs to ask for a call (of an update: for
each tensor), and for a step of an optimizer beside that.
"""

ROOFLINE_ONLY = ("winograd_factor", "wave_exponent")
"""Quantities that mean nothing where constants add up."""

POSSIBLE = {
    "launch_s": (1e-12, 1e6),
    "call_s": (1e-12, 1e6),
    "flop_per_s": (1.0, 1e21),
    "bytes_per_s": (1.0, 1e18),
    "winograd_factor": (0.04, 25.0),
    "wave_exponent": (1e-6, 1.5),
    "step_factor": (0.1, 10.0),
    "enqueue_s": (1e-12, 1e6),
    "enqueue_step_s": (1e-12, 1e6),
}
"""Far beyond any device on both sides: what lies outside is a slip, and would overflow further on."""

WIDEST_FACTOR = 5.0
"""A constant whose 80 % interval spans more than this factor is not identified; an exponent, more than 1."""

LARGEST_LOG_SD = 5.0
"""A spread of ln(seconds) above which a price says nothing: a factor of 150 either way."""


@dataclass(frozen=True)
class Constant:
    """One effective hardware constant of one kernel family.

    Args:
        family: the kernel family, such as `conv2d` or `linear` (see `calibration.features`).
        phase: the phase of its kernels.
        execution: `Execution.kernel_key`, or `update_key` for updates.
        quantity: a name in `UNITS`: what this family reached, not what a data sheet says.
        value, unit: in SI.
        lo, hi: the 80 % interval.
        draws: DRAWS values that belong with those of the family's other constants, draw by draw.
    """

    family: str
    phase: Phase
    execution: str
    quantity: str
    value: float
    unit: str
    lo: float
    hi: float
    draws: tuple[float, ...]

    @property
    def name(self) -> str:
        """What the constant is called in tables and in SQL."""
        return f"{self.family}.{self.phase}.{self.quantity}"

    @property
    def identified(self) -> bool:
        """Whether the measurements pin it down."""
        if self.quantity == "wave_exponent":
            return self.hi - self.lo <= 1.0
        return self.hi <= WIDEST_FACTOR * self.lo

    def __post_init__(self) -> None:
        numbers = (self.value, self.lo, self.hi, *self.draws)
        if not all(math.isfinite(number) and number > 0 for number in numbers):
            raise BadInput(f"constant {self.name} has a value that is not a positive number")
        if UNITS.get(self.quantity) != self.unit:
            known = ", ".join(f"{quantity} ({unit})" for quantity, unit in UNITS.items())
            raise BadInput(f"constant {self.name} ({self.unit}) is no quantity with its unit; there are {known}")
        least, most = POSSIBLE[self.quantity]
        if not least <= self.lo <= self.hi <= most:
            raise BadInput(f"constant {self.name} is not between {least:g} and {most:g} {self.unit}")
        if not self.lo <= self.value <= self.hi:
            raise BadInput(f"constant {self.name} lies outside its own interval")
        if len(self.draws) != DRAWS:
            raise BadInput(f"constant {self.name} has {len(self.draws)} draws, not {DRAWS}")
        if min(self.draws) > self.hi or max(self.draws) < self.lo:
            raise BadInput(f"the draws of constant {self.name} lie outside its interval")


@dataclass(frozen=True)
class KernelFit:
    """The constants of one (family, phase, execution) and how far they can be trusted.

    Args:
        constants: of the additive law those of `launch_s`, `flop_per_s`, `bytes_per_s` and `call_s` that the
            measurements identify; of the roofline law all that were fitted. On accelerators also what enqueueing costs
            the host.
        shapes: distinct shapes fitted; samples: raw samples behind them.
        held_out_error: mean |predicted / measured - 1| on shapes left out of the fit.
        residual_sd: standard deviation of ln(measured / predicted) on shapes left out of the fit.
        flop_lo, flop_hi, bytes_lo, bytes_hi: the range of work that was measured.
        arrays: the residual model over a roofline (`calibration.stored_model`); none where the constants add up.
    """

    family: str
    phase: Phase
    execution: str
    constants: tuple[Constant, ...]
    shapes: int
    samples: int
    held_out_error: float
    residual_sd: float
    flop_lo: float
    flop_hi: float
    bytes_lo: float
    bytes_hi: float
    arrays: tuple[StoredArray, ...] = ()

    @property
    def law(self) -> str:
        """How the constants make seconds: `additive` (see `calibration.features`) or `roofline`."""
        return "roofline" if self.arrays else "additive"

    @property
    def key(self) -> tuple[str, Phase, str]:
        """What a timer looks it up by."""
        return (self.family, self.phase, self.execution)

    @property
    def tested(self) -> bool:
        """Whether any shape was left out; else the error and the standard deviation are one assumed number."""
        return self.held_out_error != self.residual_sd

    def __post_init__(self) -> None:
        where = f"{self.family}.{self.phase} ({self.execution})"
        doubled = [name for name, count in Counter(c.quantity for c in self.constants).items() if count > 1]
        if doubled:
            raise BadInput(f"{where} has its {doubled[0]} twice")
        if not self.constants:
            raise BadInput(f"{where} has no constants")
        lone = [c.name for c in self.constants if c.quantity in ROOFLINE_ONLY and not self.arrays]
        if lone:
            raise BadInput(f"{where} has {lone[0]}, which only a roofline has, without the arrays of its model")
        named_twice = [name for name, count in Counter(array.name for array in self.arrays).items() if count > 1]
        if named_twice:
            raise BadInput(f"{where} has its array {named_twice[0]} twice")
        strange = [c for c in self.constants if (c.family, c.phase, c.execution) != self.key]
        if strange:
            raise BadInput(f"{where} holds {strange[0].name} ({strange[0].execution}), which belongs to another fit")
        ranges = ((self.flop_lo, self.flop_hi), (self.bytes_lo, self.bytes_hi))
        if not (0 <= self.held_out_error < math.inf and 0 <= self.residual_sd <= LARGEST_LOG_SD):
            raise BadInput(f"{where} has a held-out error that is not a number")
        if not all(0 <= lo <= hi < math.inf for lo, hi in ranges):
            raise BadInput(f"{where} has a range of work that is empty or not a number")


@dataclass(frozen=True)
class MeasuredShape:
    """A layer call that was measured itself: its median, and the spread of its repeats as sd of ln(seconds)."""

    layer: Layer
    phase: Phase
    samples: int
    execution: str
    seconds: float
    log_sd: float
    count: int

    def __post_init__(self) -> None:
        if not (1e-12 <= self.seconds <= 1e9 and 0 <= self.log_sd <= LARGEST_LOG_SD):
            raise BadInput(f"a measured {self.layer.kind} shape has a time or spread that cannot be")
        if self.samples < 1 or self.count < 1:
            raise BadInput(f"a measured {self.layer.kind} shape has no samples or no repeats")

    @property
    def key(self) -> tuple[Layer, Phase, int, str]:
        """What a timer looks it up by."""
        return (self.layer, self.phase, self.samples, self.execution)


@dataclass(frozen=True)
class Calibration:
    """Everything known of one device at one time. Immutable: a new fit is a new calibration.

    Args:
        name: what people call it; unique in a store.
        device: the device's own name, such as `NVIDIA A100-SXM4-80GB`.
        created_at: UTC, ISO 8601.
        environment: what makes the numbers reproducible (`profiler.environment`).
        validity_key: a hash of those parts of the environment that must match for the constants to hold.
        common_sd: standard deviation of ln(seconds) that all kernels of a step have in common: the machine's drift, and
            what a step does beside its kernels where no constant of the family `STEP` says it.
        notes: what the fit wants said whenever the calibration is used.
    """

    name: str
    device: str
    created_at: str
    environment: dict[str, str]
    validity_key: str
    fits: tuple[KernelFit, ...]
    shapes: tuple[MeasuredShape, ...]
    common_sd: float
    notes: tuple[str, ...] = ()

    @property
    def constants(self) -> tuple[Constant, ...]:
        """All constants, fit by fit."""
        return tuple(constant for fit in self.fits for constant in fit.constants)

    @cached_property
    def by_layer(self) -> Mapping[Layer, Sequence[MeasuredShape]]:
        """The shapes of each layer, in their order."""
        found: dict[Layer, list[MeasuredShape]] = defaultdict(list)
        for shape in self.shapes:
            found[shape.layer].append(shape)
        return found

    def __post_init__(self) -> None:
        checked_text("name", self.name)
        checked_text("device", self.device)
        doubled = [key for key, count in Counter(fit.key for fit in self.fits).items() if count > 1]
        if doubled:
            raise BadInput(f"calibration '{self.name}' has the constants of {'.'.join(doubled[0])} twice")
        for layer, shapes in self.by_layer.items():
            keys = [(shape.phase, shape.samples, shape.execution) for shape in shapes]
            if len(set(keys)) < len(keys):
                phase, samples, _ = Counter(keys).most_common(1)[0][0]
                raise BadInput(f"calibration '{self.name}' has {phase} of {layer} at {samples} samples twice")
        if not _is_utc(self.created_at):
            raise BadInput(
                f"calibration '{self.name}' was created at {self.created_at!r}, which is no time with its zone"
            )
        if not 0 <= self.common_sd <= LARGEST_LOG_SD:
            raise BadInput(f"calibration '{self.name}' has a drift that is not a number")


def _is_utc(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def checked_text(what: str, text: str) -> str:
    """A name that a calibration or its device may have.

    Raises:
        BadInput: it is empty, too long, or has characters that do not print on one line.
    """
    if not text.strip() or not text.isprintable():
        raise BadInput(f"a calibration needs a {what} of printable characters on one line, not {text[:LONGEST_NAME]!r}")
    if len(text) > LONGEST_NAME:
        raise BadInput(f"a calibration's {what} has at most {LONGEST_NAME} characters, not {len(text)}")
    return text
