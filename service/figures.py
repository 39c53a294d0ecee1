"""What a projection means in hours, money and energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oracle.errors import OutOfRange
from oracle.estimate import Estimate
from oracle.plan import Job, StepPart, tasks_of
from oracle.projection import Projection

SECONDS_PER_HOUR = 3600.0

MOST = 10**9
"""Epochs, watts and prices above which a number is a slip."""

MOST_FLOP_PER_S = 1e21
"""A thousand million times a TFLOP/s: no device."""


@dataclass(frozen=True)
class Rates:
    """What a user knows of the devices beside their speed.

    Args:
        epochs: how many epochs a training takes.
        power_w: mean power of a device with its share of the node.
        price_per_device_hour: in any currency.
        peak_flop_per_s: of one device in the precision of the job, without sparsity: what MFU is a share of.
    """

    epochs: int = 1
    power_w: float | None = None
    price_per_device_hour: float | None = None
    peak_flop_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.epochs <= MOST:
            bound = "at least 1" if self.epochs < 1 else f"at most {MOST:.0e}"
            raise OutOfRange(f"--epochs must be {bound}, not {self.epochs}")
        for what, value, most in (
            ("--power", self.power_w, MOST),
            ("--price", self.price_per_device_hour, MOST),
            ("--peak (in FLOP/s)", self.peak_flop_per_s, MOST_FLOP_PER_S),
        ):
            if value is not None and not 0 < value <= most:
                bound = f"at most {most:.0e}" if value > most else "more than zero"
                raise OutOfRange(f"{what} must be {bound}, not {value:g}")


@dataclass(frozen=True, eq=False)
class Figures:
    """A projection in a user's terms; None where something that it needs is not known.

    Args:
        training_s: seconds of all epochs.
        device_hours: hours of all devices together.
        mfu: model FLOP utilisation, the operations that the model needs over what the devices could do.
        energy_j, cost: of the whole training.
    """

    training_s: Estimate | None
    device_hours: Estimate | None
    mfu: Estimate | None
    energy_j: Estimate | None
    cost: Estimate | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: objects of `middle`, `lo` and `hi`, or null."""
        return {name: _to_dict(value) for name, value in vars(self).items()}


def figures_of(projection: Projection, rates: Rates) -> Figures:
    """Work the figures of a projection out."""
    epoch, job = projection.epoch, projection.job
    training = None if epoch is None else epoch * rates.epochs
    hours = None if training is None else training * (job.devices / SECONDS_PER_HOUR)
    step, peak = projection.step, rates.peak_flop_per_s
    return Figures(
        training_s=training,
        device_hours=hours,
        mfu=None if step is None or peak is None else model_flop(job) / (job.devices * peak) / step,
        energy_j=None if hours is None or rates.power_w is None else hours * (SECONDS_PER_HOUR * rates.power_w),
        cost=None if hours is None or rates.price_per_device_hour is None else hours * rates.price_per_device_hour,
    )


def model_flop(job: Job) -> float:
    """Operations of forward and backward of a step's samples, whatever a strategy repeats or recomputes."""
    tasks = tasks_of(job.model, job.model.nodes, job.global_batch)
    return sum(
        task.count * task.call.layer.work(task.call.phase, task.call.samples).flop
        for task in tasks
        if task.part is not StepPart.UPDATE
    )


def _to_dict(value: Estimate | None) -> dict[str, float] | None:
    if value is None:
        return None
    lo, hi = value.interval()
    return {"middle": value.middle, "lo": lo, "hi": hi}
