"""Canary steps: networks that train on this machine, part by part."""

from __future__ import annotations

import time

import pytest

from oracle.errors import UnknownName
from oracle.execution import Execution
from profiler.backends.base import open_backend
from profiler.backends.simulated import SimulatedDevice
from profiler.measurement import Measurement
from profiler.steps.canaries import CANARY, PARTS, Canary, choose_canaries, visit_canaries

MODELS = ("canary-plain", "canary-residual", "canary-tokens")


@pytest.mark.parametrize("model", MODELS)
def test_a_canary_trains_and_its_parts_are_measured(model: str) -> None:
    taken: list[Measurement] = []
    visit_canaries((Canary(model, 1),), open_backend("cpu"), Execution(), "run", taken.append)
    assert [item.phase for item in taken] == list(PARTS)
    assert {item.micro for item in taken} == {CANARY}
    assert {item.case["model"] for item in taken} == {model}
    assert [item.execution for item in taken] == [Execution().kernel_key] * 2 + [Execution().update_key]
    assert len({len(item.device_s) for item in taken}) == 1
    assert len(taken[0].device_s) >= 4


def test_no_canary_is_begun_after_the_deadline() -> None:
    taken: list[Measurement] = []
    canaries = (Canary(MODELS[0], 1),)
    visit_canaries(canaries, open_backend("cpu"), Execution(), "run", taken.append, time.monotonic())
    assert taken == []


def test_a_device_without_training_steps_has_no_canaries() -> None:
    assert choose_canaries(SimulatedDevice(), Execution()) == ()


def test_an_unknown_canary_is_named() -> None:
    with pytest.raises(UnknownName, match=r"canary-plan.*canary-plain"):
        _ = Canary("canary-plan", 1).graph
