"""Compare two calibrations: their constants side by side, and the steps that they predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.timers import CalibratedTimer
from db.reading import Reader
from oracle.constants import CONSTANT_LEVEL, Calibration, Constant
from oracle.errors import BadInput
from oracle.estimate import Estimate
from oracle.execution import Execution
from service.models import find_model
from service.network_comparing import NetworkComparison, are_networks, compare_networks
from service.predicting import feasible_step, serial_projection, validity_notes


@dataclass(frozen=True)
class ConstantRatio:
    """One constant of two calibrations; the ratio is second / first with its 80 % interval."""

    first: Constant
    second: Constant
    ratio: float
    lo: float
    hi: float

    @property
    def differs(self) -> bool:
        """Whether the interval of the ratio leaves out 1."""
        return not self.lo <= 1.0 <= self.hi


@dataclass(frozen=True)
class StepComparison:
    """One model's serial step by both calibrations, in seconds, and how many times faster the second is."""

    model: str
    samples: int
    first: Estimate
    second: Estimate
    speedup: Estimate

    @property
    def tied(self) -> bool:
        """Whether the interval of the speed-up holds 1."""
        lo, hi = self.speedup.interval()
        return lo <= 1.0 <= hi


@dataclass(frozen=True)
class CompareResult:
    """Constants and steps side by side."""

    first: Calibration
    second: Calibration
    ratios: tuple[ConstantRatio, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    steps: tuple[StepComparison, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "first": self.first.name,
            "second": self.second.name,
            "constants": [
                {
                    "name": ratio.first.name,
                    "execution": ratio.first.execution,
                    "unit": ratio.first.unit,
                    "first": ratio.first.value,
                    "second": ratio.second.value,
                    "ratio": ratio.ratio,
                    "lo": ratio.lo,
                    "hi": ratio.hi,
                }
                for ratio in self.ratios
            ],
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
            "steps": [
                {
                    "model": step.model,
                    "batch": step.samples,
                    "first_s": step.first.middle,
                    "first_interval_s": list(step.first.interval()),
                    "second_s": step.second.middle,
                    "second_interval_s": list(step.second.interval()),
                    "speedup": step.speedup.middle,
                    "speedup_interval": list(step.speedup.interval()),
                }
                for step in self.steps
            ],
            "notes": list(self.notes),
        }


def compare(
    store: Reader, first: str, second: str, models: tuple[tuple[str, int], ...], execution: Execution
) -> CompareResult | NetworkComparison:
    """Put two stored calibrations side by side, of devices or of networks.

    Args:
        models: names and batches of the serial steps to predict with both.

    Raises:
        UnknownName: no such calibration or model. NotCalibrated: a model needs what one of them lacks.
        BadInput: a network and a device, or models with networks.
    """
    if are_networks(store, first, second):
        if models:
            raise BadInput("--model compares steps on two devices; two networks have none")
        return compare_networks(store, first, second)
    a, b = store.calibration(first), store.calibration(second)
    mine = {(constant.name, constant.execution): constant for constant in a.constants}
    theirs = {(constant.name, constant.execution): constant for constant in b.constants}
    return CompareResult(
        first=a,
        second=b,
        ratios=tuple(_ratio(mine[key], theirs[key]) for key in mine if key in theirs),
        only_first=tuple(" ".join(key) for key in mine if key not in theirs),
        only_second=tuple(" ".join(key) for key in theirs if key not in mine),
        steps=tuple(_step(name, samples, (a, b), execution) for name, samples in models),
        notes=tuple(f"{c.name}: {note}" for c in (a, b) for note in validity_notes(c)),
    )


def _ratio(first: Constant, second: Constant) -> ConstantRatio:
    # Two fits of different measurements are independent, so their draws are paired in another order; a copy is not.
    copied = first.draws == second.draws
    draws = np.asarray(second.draws) / np.roll(np.asarray(first.draws), 0 if copied else 1)
    tail = (1 - CONSTANT_LEVEL) / 2
    lo, hi = np.quantile(draws, [tail, 1 - tail])
    ratio = second.value / first.value
    return ConstantRatio(first, second, ratio, min(float(lo), ratio), max(float(hi), ratio))


def _step(
    name: str, samples: int, calibrations: tuple[Calibration, Calibration], execution: Execution
) -> StepComparison:
    model = find_model(name)
    first, second = (
        feasible_step(serial_projection(model, samples, CalibratedTimer(calibration, execution)))
        for calibration in calibrations
    )
    return StepComparison(model.name, samples, first, second, first / second)
