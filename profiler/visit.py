"""One visit of a case: warm its kernel up, choose how many calls a sample holds, sample until the rule says enough.

Warm-up goes by state: at least three calls (primitives are built, memory is taken, clocks rise), then until three
batches agree or a short time is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import median

from profiler.backends.base import Kernel, Sample
from profiler.stopping import StoppingRule, decide

MIN_SAMPLE_S = 200e-6
"""Shorter calls are batched: CUDA events resolve half a microsecond, a CPU's clock costs a tenth of one."""

MAX_INNER = 256
"""Most calls in a sample: more kernels than a CUDA stream queues (1,024) would not be hidden behind its start."""

WARM_UP_CALLS = 3
WARM_UP_S = 0.1
WARM_UP_AGREEMENT = 1.05
"""The largest of three batches over the smallest, below which a case is warm."""

PREEMPTED = 0.9
"""Share of the time that a calling CPU thread is given, below which something else had its core."""


@dataclass(frozen=True)
class Visit:
    """The samples of one visit, the calls in each, and which rule ended it."""

    samples: tuple[Sample, ...]
    inner: int
    stopped: str


def sample_until(kernel: Kernel, rule: StoppingRule, deadline_s: float = inf) -> Visit | None:
    """Warm a kernel up and sample it until the rule says enough.

    Args:
        kernel: what to time.
        rule: when to stop.
        deadline_s: `time.monotonic()` at which to stop in any case.

    Returns:
        None where the fewest samples that the rule wants cannot be had by the deadline.
    """
    inner = warm_up(kernel, rule.min_samples, deadline_s)
    if inner is None:
        return None
    samples: list[Sample] = []
    while True:
        samples.append(kernel.sample(inner))
        seconds = [sample.device_s for sample in samples]
        stopped = decide(seconds, sum(seconds) * inner, rule)
        if stopped is None and time.monotonic() >= deadline_s:
            stopped = "budget"
        if stopped:
            return Visit(tuple(samples), inner, stopped) if len(samples) >= rule.min_samples else None


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
