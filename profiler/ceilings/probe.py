"""Questions about a device's limits, and the loop that answers them: in a burst, and sustained.

A burst is what the device does for a third of a second, before power and heat hold it back: the fastest sample counts,
since samples are long (SAMPLE_S) beside the clock's error and nothing makes a kernel faster than the device is. What is
sustained is the median over the second half of a longer time; where power is the limit it lies 5 to 15 % lower.
Both keep their raw samples as measurements (`micro` is `ceiling`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

from oracle.errors import BadInput, MissingDependency, OutOfMemory
from profiler.backends.base import Kernel, Sample
from profiler.backends.torch_device import TorchDevice, torch_errors
from profiler.measurement import Environment, Measurement
from profiler.visit import MAX_INNER, now

BURST_S = 0.3
SAMPLE_S = 10e-3
WARM_UP_CALLS = 3
MIN_SAMPLES = 6

FLOP, BYTES, SECONDS = "FLOP/s", "B/s", "s"
"""The units of an answer."""

GROUPS = ("compute", "memory", "launch", "copy", "update")
"""What questions are about."""


@dataclass(frozen=True)
class Probe:
    """One question.

    Args:
        group: one of `GROUPS`.
        question: its name, such as `gemm_bf16` or `read`.
        unit: of the answer: `FLOP/s`, `B/s` or `s`.
        amount: FLOP or bytes of one call; 1 for seconds.
        prepare: builds the inputs and returns what is timed; they are freed with it.
        case: what else tells it from others of its name, such as a size.
        host: the answer is the host's clock, not the device's.
    """

    group: str
    question: str
    unit: str
    amount: float
    prepare: Callable[[], Kernel]
    case: Mapping[str, Any] = field(default_factory=dict)
    host: bool = False

    @property
    def text(self) -> str:
        """The question with what tells it from others."""
        return " ".join((self.question, *(f"{name}={value}" for name, value in self.case.items())))


@dataclass(frozen=True)
class Ceiling:
    """The answer to a question.

    Args:
        burst, sustained: in the probe's unit; None where it was not asked.
        samples: how many samples are behind it.
    """

    probe: Probe
    burst: float
    sustained: float | None
    samples: int


@dataclass(frozen=True)
class Unanswered:
    """A question that this machine cannot answer, and why."""

    probe: Probe
    reason: str


@dataclass(frozen=True)
class CeilingSettings:
    """How long to ask.

    Args:
        run_id: what the measurements share.
        burst_s: seconds of the burst of each question.
        sustained_s: seconds of each question of a rate that is sustained; 0 asks for bursts only.
    """

    run_id: str
    burst_s: float = BURST_S
    sustained_s: float = 2.0


Record = Callable[[Measurement], None]
Progress = Callable[[int, int, str], None]


def measure_ceilings(
    probes: Sequence[Probe], device: TorchDevice, record: Record, settings: CeilingSettings, progress: Progress
) -> tuple[list[Ceiling], list[Unanswered]]:
    """Answer questions one after the other; what fails is named, and the rest goes on.

    Args:
        probes: the questions.
        device: the device.
        record: called with every measurement as soon as there is one.
        settings: how long.
        progress: questions answered, how many there are, the next one.
    """
    answered: list[Ceiling] = []
    failed: list[Unanswered] = []
    environment = device.environment()
    for done, probe in enumerate(probes):
        progress(done, len(probes), probe.text)
        try:
            answered.append(_answer(probe, device, record, settings, environment))
        except (OutOfMemory, BadInput, MissingDependency) as error:
            failed.append(Unanswered(probe, str(error)))
    progress(len(probes), len(probes), "done")
    return answered, failed


def _answer(
    probe: Probe, device: TorchDevice, record: Record, settings: CeilingSettings, environment: Environment
) -> Ceiling:
    device.release_unused()
    with torch_errors(device.device):
        kernel = probe.prepare()
        inner = _calls_per_sample(min(kernel.sample(1).device_s for _ in range(WARM_UP_CALLS)))
        windows = {"burst": _sample(kernel, inner, settings.burst_s)}
        if probe.unit != SECONDS and settings.sustained_s > 0:
            windows["sustained"] = _sample(kernel, inner, settings.sustained_s)
        del kernel
    for window, samples in windows.items():
        record(_measurement(probe, window, samples, inner, device, environment, settings.run_id))
    burst = [_seconds(probe, sample) for sample in windows["burst"]]
    later = [_seconds(probe, sample) for sample in windows.get("sustained", ())]
    # A time that every call costs has no ceiling: its median counts.
    best = median(burst) if probe.unit == SECONDS else min(burst)
    return Ceiling(
        probe=probe,
        burst=_value(probe, best),
        sustained=_value(probe, median(later[len(later) // 2 :])) if later else None,
        samples=len(burst) + len(later),
    )


def _seconds(probe: Probe, sample: Sample) -> float:
    return sample.host_s if probe.host else sample.device_s


def _value(probe: Probe, seconds: float) -> float:
    return seconds if probe.unit == SECONDS else probe.amount / seconds


def _calls_per_sample(call_s: float) -> int:
    return min(MAX_INNER, max(1, ceil(SAMPLE_S / max(call_s, SAMPLE_S / MAX_INNER))))


def _sample(kernel: Kernel, inner: int, seconds: float) -> list[Sample]:
    """Samples until a time has passed on the host's clock, and at least MIN_SAMPLES."""
    samples: list[Sample] = []
    end_s = time.monotonic() + seconds
    while len(samples) < MIN_SAMPLES or time.monotonic() < end_s:
        samples.append(kernel.sample(inner))
    return samples


def _measurement(  # noqa: PLR0913, PLR0917 - what a measurement is made of
    probe: Probe,
    window: str,
    samples: Iterable[Sample],
    inner: int,
    device: TorchDevice,
    environment: Environment,
    run_id: str,
) -> Measurement:
    taken = tuple(samples)
    return Measurement(
        micro="ceiling",
        case={"question": probe.question, "unit": probe.unit, "amount": probe.amount, **probe.case},
        phase=window,
        execution=probe.group,
        device_s=tuple(sample.device_s for sample in taken),
        host_s=tuple(sample.host_s for sample in taken),
        inner=inner,
        device=device.device,
        environment=environment,
        run_id=run_id,
        taken_at=now(),
        stopped="time",
    )
