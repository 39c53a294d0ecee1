"""A device that is calibrated beside another one in the store learns from it, unless that is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from db.store import Store
from oracle.constants import Calibration, MeasuredShape
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Linear
from profiler.backends.base import Kernel, Sample
from profiler.backends.simulated import SimulatedDevice, true_seconds
from profiler.case import Case
from service.calibrating import CalibrateResult, calibrate
from service.measuring_requests import CalibrateRequest

Stepgauge = Callable[..., Any]


def bent(layer: Layer, phase: Phase, samples: int) -> float:
    """What additive constants do not know of a linear layer: a wave in the logarithm of its bytes."""
    moved = layer.work(phase, samples, Execution()).bytes
    return math.exp(0.5 * math.sin(1.5 * math.log2(moved))) if isinstance(layer, Linear) else 1.0


@dataclass(frozen=True)
class BentKernel:
    """A kernel that takes `factor` times as long."""

    kernel: Kernel
    factor: float

    def sample(self, inner: int) -> Sample:
        taken = self.kernel.sample(inner)
        return Sample(self.factor * taken.device_s, self.factor * taken.host_s)


class BentDevice(SimulatedDevice):
    """A simulated device with waves in its linear layers."""

    @contextmanager
    def open(self, case: Case) -> Iterator[Kernel]:
        call = case.call
        with super().open(case) as kernel:
            yield BentKernel(kernel, bent(call.layer, call.phase, call.samples))


def lender() -> Calibration:
    """Another device with the same waves, half as fast, of which many linear layers were measured."""
    rng = np.random.default_rng(0)
    layers = [Linear(int(wide), int(narrow)) for wide, narrow in 2 ** rng.uniform(5, 13, (200, 2))]
    samples = [int(2**power) for power in rng.uniform(0, 9, len(layers))]
    shapes = tuple(
        MeasuredShape(
            layer,
            phase,
            count,
            Execution().kernel_key,
            2 * true_seconds(layer, phase, count, Execution()) * bent(layer, phase, count),
            0.01,
            20,
        )
        for phase in (Phase.FORWARD, Phase.BACKWARD_DATA)
        for layer, count in zip(layers, samples, strict=True)
    )
    return Calibration(
        name="lender",
        device="another simulated device",
        created_at="2026-01-01T00:00:00Z",
        environment={"device": "another simulated device", "law": "additive"},
        validity_key="other",
        fits=(),
        shapes=shapes,
        common_sd=0.01,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "two.sqlite")) as opened:
        opened.add_calibration(lender(), [])
        yield opened


def calibrated(store: Store, name: str, prior: bool) -> CalibrateResult:
    request = CalibrateRequest(device="simulated", name=name, quick=True, budget_s=60.0, prior=prior)
    return calibrate(store, request, backend=BentDevice(seed=1))


def test_the_other_device_of_a_store_lends_and_is_named(store: Store) -> None:
    helped, alone = calibrated(store, "helped", prior=True), calibrated(store, "alone", prior=False)
    said = [note for note in helped.calibration.notes if "come from another simulated device" in note]
    assert {note.partition(":")[0] for note in said} <= {"linear.forward", "linear.backward_data"}
    assert said
    assert all("error on layers left out" in note and "without them" in note for note in said)
    assert not any("come from" in note for note in alone.calibration.notes)
    errors = [
        {fit.key: fit.held_out_error for fit in result.calibration.fits if fit.family == "linear"}
        for result in (helped, alone)
    ]
    lent = [key for key in errors[0] if f"{key[0]}.{key[1]}" in {note.partition(":")[0] for note in said}]
    assert all(errors[0][key] < errors[1][key] for key in lent)


def test_no_prior_goes_without_collectives(stepgauge: Stepgauge, tmp_path: Path) -> None:
    ran = stepgauge("calibrate", "--collectives", "--no-prior", "--db", tmp_path / "x.sqlite")
    assert (ran.code, ran.out) == (2, "")
    assert "--no-prior goes without --collectives" in ran.err
