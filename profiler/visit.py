"""One visit of a case: warm its kernel up, choose how many calls a sample holds, sample until the rule says enough.

Warm-up goes by state: at least three calls (primitives are built, memory is taken, clocks rise), then until three
batches agree or a short time is over.

Warm and cold. A kernel is warm as code: its primitives are built and its memory has been written before. Its operands
are cold where their sets, which rotate, exceed the last-level cache (`profiler.backends.torch_device`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, inf
from statistics import median
from typing import Protocol

from profiler.backends.base import Backend, Kernel, Sample
from profiler.case import Case
from profiler.measurement import Environment, Measurement
from profiler.stopping import StoppingRule, decide, flags

MIN_SAMPLE_S = 200e-6
"""Shorter calls are batched: CUDA events resolve half a microsecond, a CPU's clock costs a tenth of one."""

MAX_INNER = 256
"""Most calls in a sample: more kernels than a CUDA stream queues (1,024) would not be hidden behind its start."""

WARM_UP_CALLS = 3
WARM_UP_S = 0.1
WARM_UP_AGREEMENT = 1.05
"""The largest of three batches over the smallest, below which a case is warm."""

LEAST_SAMPLES = 5
"""A visit that the budget ends keeps what it has from so many samples on; the median of fewer says nothing."""

PREEMPTED = 0.9
"""Share of the time that a calling CPU thread is given, below which something else had its core."""


class RunOf(Protocol):
    """What a measurement says of its run."""

    @property
    def run_id(self) -> str:
        """The run that it belongs to."""

    @property
    def rule(self) -> StoppingRule:
        """When its visits end."""


@dataclass(frozen=True)
class Visit:
    """The samples of one visit, the calls in each, and which rule ended it."""

    samples: tuple[Sample, ...]
    inner: int
    stopped: str


def sample_until(kernel: Kernel, rule: StoppingRule, deadline_s: float = inf) -> Visit | str:
    """Warm a kernel up and sample it until the rule says enough.

    Args:
        kernel: what to time.
        rule: when to stop.
        deadline_s: `time.monotonic()` at which to stop in any case.

    Returns:
        The visit, or why there is none: fewer than `LEAST_SAMPLES` by the deadline.
    """
    least = min(LEAST_SAMPLES, rule.min_samples)
    inner = warm_up(kernel, least, deadline_s)
    if inner is None:
        return "it would not have ended within the time budget"
    samples: list[Sample] = []
    while True:
        samples.append(kernel.sample(inner))
        seconds = [sample.device_s for sample in samples]
        stopped = decide(seconds, sum(seconds) * inner, rule)
        if stopped is None and time.monotonic() >= deadline_s:
            stopped = "budget"
        if stopped and len(samples) >= least:
            return Visit(tuple(samples), inner, stopped)
        if stopped:
            return f"the time budget ended after {len(samples)} of its samples, and {least} are needed"


def measurement_of(case: Case, visit: Visit, backend: Backend, environment: Environment, run: RunOf) -> Measurement:
    """A visit as the measurement that is stored.

    Args:
        case: what was visited.
        visit: its samples.
        backend: the device.
        environment: as it was at about that time.
        run: the run's name, and the rule that the samples were taken by.
    """
    device_s = tuple(sample.device_s for sample in visit.samples)
    host_s = tuple(sample.host_s for sample in visit.samples)
    return Measurement(
        micro=case.micro,
        case=case.to_dict(),
        phase=case.call.phase.value,
        execution=case.execution_key,
        device_s=device_s,
        host_s=host_s,
        inner=visit.inner,
        device=backend.device,
        environment=environment,
        run_id=run.run_id,
        taken_at=now(),
        stopped=visit.stopped,
        flags=flags(device_s, run.rule) + host_flags(backend.name, device_s, host_s),
    )


def warm_up(kernel: Kernel, samples_after: int, deadline_s: float) -> int | None:
    """Call a kernel until its time is steady; returns how many calls a sample should hold.

    Returns:
        None where, by the first call, the warm-up and `samples_after` samples would pass the deadline.
    """
    first_s = kernel.sample(1).device_s
    if time.monotonic() + (WARM_UP_CALLS - 1 + samples_after) * max(first_s, MIN_SAMPLE_S) > deadline_s:
        return None
    calls_s = [kernel.sample(1).device_s for _ in range(WARM_UP_CALLS - 1)]
    inner = calls_per_sample(min(calls_s))
    batches_s: list[float] = []
    elapsed_s = first_s + sum(calls_s)
    while elapsed_s < WARM_UP_S and not _agree(batches_s[-3:]):
        batches_s.append(kernel.sample(inner).device_s)
        elapsed_s += batches_s[-1] * inner
    # The first calls may have been slow for another reason than the kernel.
    return calls_per_sample(min(batches_s)) if batches_s else inner


def calls_per_sample(call_s: float) -> int:
    """Calls that make a sample long enough for the clock.

    >>> calls_per_sample(50e-6), calls_per_sample(1.0), calls_per_sample(1e-9)
    (4, 1, 256)
    """
    return min(MAX_INNER, max(1, ceil(MIN_SAMPLE_S / max(call_s, MIN_SAMPLE_S / MAX_INNER))))


def _agree(batches_s: Sequence[float]) -> bool:
    return len(batches_s) == 3 and max(batches_s) <= WARM_UP_AGREEMENT * min(batches_s)


def host_flags(backend: str, device_s: Iterable[float], host_s: Iterable[float]) -> tuple[str, ...]:
    """What the host's clock says beside the device's: `preempted` on a CPU, `launch-bound` on an accelerator.

    A training step waits for the later of the two, so a launch-bound kernel costs a step its host's seconds.
    """
    device, host = median(device_s), median(host_s)
    if backend == "cpu":
        return ("preempted",) if host < PREEMPTED * device else ()
    return ("launch-bound",) if host > device else ()


def now() -> str:
    """UTC, ISO 8601, as `Measurement.taken_at` wants it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
