"""Anchors: a few canary kernels, measured again and again, that say how fast the machine is at the moment.

Clocks, temperature and neighbours move all kernels of a device together, by 10 to 25 % from one quarter of an hour to
the next on a shared machine, and no statistics inside one visit can see it. So three kernels of a few milliseconds
each are measured before everything, every few seconds in between and at the end: a convolution and a matrix product,
which arithmetic bounds, and an addition, which memory bounds. What they have in common is the machine's doing
(`calibration.drift` estimates it and divides it out).

The anchors are the same layers everywhere, and only their number of samples is fitted to the device, in powers of
four, so that two runs can be tied by them: kernels measured now, and training steps measured later. They are ordinary
measurements of ordinary cases with the flag `anchor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from oracle.errors import BadInput, OutOfMemory
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Elementwise, Linear
from oracle.pricing import LayerCall
from oracle.windows import Conv
from profiler.backends.base import Backend
from profiler.case import Case, call_from_case
from profiler.measurement import Measurement
from profiler.stopping import StoppingRule
from profiler.visit import Visit, measurement_of, sample_until

ANCHOR = "anchor"
"""The flag of an anchor's measurements."""

LAYERS: tuple[Layer, ...] = (
    Conv.of((64, 56, 56), 64, 3, padding=1, bias=False),
    Linear(1024, 1024, rows=32, bias=False),
    Elementwise("add", (64, 56, 56)),
)

LEAST_S = 1.5e-3
"""An anchor takes at least this long and at most about four times as long: far above launches and clocks' steps."""

_SAMPLES = (1, 4, 16, 64, 256, 1024)

RULE = StoppingRule(target=0.01, min_samples=6, max_samples=15, max_s=0.06)
"""When one visit of an anchor ends."""


@dataclass(frozen=True)
class _AnchorRun:
    """What an anchor's measurement says of its run."""

    run_id: str
    rule: StoppingRule = RULE


def choose_anchors(backend: Backend, execution: Execution) -> tuple[Case, ...]:
    """The anchors of a device, with as many samples as take a few milliseconds on it.

    Args:
        backend: the device; each layer is tried with more and more samples.
        execution: how the kernels run that the anchors stand beside.

    Returns:
        One case per layer; a layer that the device cannot run is left out.
    """
    return tuple(case for layer in LAYERS for case in _sized(layer, backend, execution))


def _sized(layer: Layer, backend: Backend, execution: Execution) -> Iterator[Case]:
    """The layer's case with the fewest samples that take long enough, or the most that fit."""
    found: Case | None = None
    for samples in _SAMPLES:
        case = Case(LayerCall(layer, Phase.FORWARD, samples), execution)
        try:
            with backend.open(case) as kernel:
                taken_s = min(kernel.sample(1).device_s for _ in range(4))
        except (OutOfMemory, BadInput):
            break
        found = case
        if taken_s >= LEAST_S:
            break
    if found is not None:
        yield found


def visit_anchor(case: Case, backend: Backend, run_id: str, deadline_s: float = inf) -> Measurement | None:
    """Measure one anchor once.

    Args:
        case: the anchor.
        backend: the device.
        run_id: the run that it belongs to.
        deadline_s: `time.monotonic()` at which to stop.

    Returns:
        None where the deadline comes first.

    Raises:
        OutOfMemory, BadInput: the device cannot run it.
    """
    with backend.open(case) as kernel:
        visit = sample_until(kernel, RULE, deadline_s)
    if not isinstance(visit, Visit):
        return None
    found = measurement_of(case, visit, backend, backend.environment(), _AnchorRun(run_id))
    return replace(found, flags=(*found.flags, ANCHOR))


def visit_anchors(cases: Sequence[Case], backend: Backend, run_id: str) -> list[Measurement]:
    """Measure every anchor once: what a benchmark calls between the steps that it times."""
    found = [visit_anchor(case, backend, run_id) for case in cases]
    return [measurement for measurement in found if measurement is not None]


def anchor_cases(measurements: Iterable[Measurement], execution: Execution) -> tuple[Case, ...]:
    """The anchors among measurements, each once: measured again, they tie another moment to these measurements."""
    anchors = [measurement for measurement in measurements if ANCHOR in measurement.flags]
    calls = dict.fromkeys(call_from_case(anchor.case, anchor.phase) for anchor in anchors)
    return tuple(Case(call, execution) for call in calls)
