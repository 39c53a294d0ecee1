"""Measure many cases within a time budget, in rounds.

The first round gives every case one visit, the later ones go back to the cases that matter most for their weight: those
of which the median is least certain, in seconds. Two visits of a case lie minutes apart, so that drift of the machine
becomes visible as scatter between them (random interleaving cuts run-to-run variance by 40 %, google/benchmark,
docs/random_interleaving.md). Every visit is a `Measurement` of its own and is recorded at once: an interrupted run
keeps what it has.

The caller's order is the priority when the budget is too short for the first round. It is therefore shuffled only
within blocks of a few neighbours, and not as a whole.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf, isfinite
from statistics import median

from oracle.errors import BadInput, OutOfMemory, OutOfRange
from oracle.layer import Phase
from profiler.backends.base import Backend
from profiler.case import Case
from profiler.measurement import Environment, Measurement
from profiler.stopping import StoppingRule, flags, median_halfwidth
from profiler.visit import Visit, host_flags, sample_until

MIN_VISITS = 2
"""A case is not done before its second visit, whatever the first one says of itself."""

UNSEEN_DRIFT = 0.05
"""Half-width assumed for a case that was visited once, or preempted when it was visited last: medians on shared
machines move by this much in minutes."""

BLOCK = 16
"""Neighbours in the caller's order that the first round may swap."""

Record = Callable[[Measurement], None]
Progress = Callable[[int, int, str], None]
"""Called with cases done, cases in this round, and what is measured now."""


@dataclass(frozen=True)
class RunSettings:
    """How to measure.

    Args:
        run_id: what the measurements of this run share.
        budget_s: wall-clock seconds for all of it.
        seed: of the order.
        rule: when one visit ends.
        max_visits: visits after which a case is let go though its interval is wider than the target.
    """

    run_id: str
    budget_s: float
    seed: int = 0
    rule: StoppingRule = field(default_factory=StoppingRule)
    max_visits: int = 4

    def __post_init__(self) -> None:
        if not (isfinite(self.budget_s) and self.budget_s > 0):
            raise OutOfRange(f"a time budget must be a positive number of seconds, not {self.budget_s}")


@dataclass(frozen=True)
class Unmeasured:
    """A case without a measurement, and why."""

    case: Case
    reason: str


@dataclass(frozen=True)
class RunSummary:
    """What a run did.

    Args:
        measured: cases with a measurement; converged: those whose median is as certain as was asked.
        visits: measurements recorded; rounds: passes over the cases.
        unmeasured: the other cases, in the caller's order.
    """

    run_id: str
    measured: int
    converged: int
    visits: int
    rounds: int
    elapsed_s: float
    unmeasured: tuple[Unmeasured, ...]


@dataclass
class _History:
    """What is known of one case so far."""

    case: Case
    weight: float
    samples_s: list[float] = field(default_factory=list)
    visits: int = 0
    visit_s: float = 0.0
    preempted: bool = False
    reason: str = "the time budget ended before it"

    @property
    def halfwidth(self) -> float:
        """Relative uncertainty of its median, over all visits together."""
        width = median_halfwidth(self.samples_s)
        # Samples that wait for the scheduler agree well with one another: on its tick, not on the kernel.
        doubtful = self.visits < MIN_VISITS or self.preempted
        return max(width, UNSEEN_DRIFT) if doubtful else width

    @property
    def urgency(self) -> float:
        """Weighted seconds by which its median is uncertain; too few samples for an interval count as 100 %."""
        return self.weight * min(self.halfwidth, 1.0) * median(self.samples_s)


def measure(
    cases: Sequence[Case],
    backend: Backend,
    record: Record,
    settings: RunSettings,
    weights: Sequence[float] | None = None,
    progress: Progress = lambda done, total, text: None,
) -> RunSummary:
    """Measure cases on a device until the budget is spent or all have converged.

    Args:
        cases: what to measure, the most useful first.
        backend: the device.
        record: called with every measurement as soon as there is one.
        settings: budget, order, stopping rule.
        weights: how often each case counts; once by default.
        progress: called before every visit and at the end of each round.

    Raises:
        BadInput: not as many weights as cases.
    """
    if weights is not None and len(weights) != len(cases):
        raise BadInput(f"{len(cases)} cases have {len(weights)} weights")
    histories = [_History(case, weight) for case, weight in zip(cases, weights or [1.0] * len(cases), strict=True)]
    start_s = time.monotonic()
    run = _Run(backend, record, settings, progress, start_s + settings.budget_s)
    run.round(_shuffled_in_blocks(histories, settings.seed))
    while run.time_left_s > 0 and (open_cases := [h for h in histories if _unfinished(h, settings)]):
        if not run.round(sorted(open_cases, key=lambda history: -history.urgency)):
            break  # none of them can end in the time that is left
    measured = [history for history in histories if history.visits]
    return RunSummary(
        run_id=settings.run_id,
        measured=len(measured),
        converged=sum(history.halfwidth <= settings.rule.target for history in measured),
        visits=sum(history.visits for history in measured),
        rounds=run.rounds,
        elapsed_s=time.monotonic() - start_s,
        unmeasured=tuple(Unmeasured(h.case, h.reason) for h in histories if not h.visits),
    )


def _unfinished(history: _History, settings: RunSettings) -> bool:
    return 0 < history.visits < settings.max_visits and history.halfwidth > settings.rule.target


def _shuffled_in_blocks(histories: Sequence[_History], seed: int) -> list[_History]:
    """The cases in the caller's order, neighbours swapped at random."""
    draw = random.Random(seed)  # noqa: S311 - an order, no secret
    order: list[_History] = []
    for start in range(0, len(histories), BLOCK):
        block = list(histories[start : start + BLOCK])
        draw.shuffle(block)
        order += block
    return order


@dataclass
class _Run:
    """The rounds of one run."""

    backend: Backend
    record: Record
    settings: RunSettings
    progress: Progress
    deadline_s: float
    rounds: int = 0

    @property
    def time_left_s(self) -> float:
        """Until the budget is spent."""
        return self.deadline_s - time.monotonic()

    def round(self, histories: Sequence[_History]) -> int:
        """Visit the cases in this order while time is left; returns how many visits were recorded."""
        self.rounds += 1
        environment = self.backend.environment()
        recorded = 0
        for done, history in enumerate(histories):
            if self.time_left_s <= history.visit_s:
                continue  # a shorter one may still end in time
            self.progress(done, len(histories), f"round {self.rounds}: {describe(history.case)}")
            recorded += self._visit(history, environment)
        self.progress(len(histories), len(histories), f"round {self.rounds}: done")
        return recorded

    def _visit(self, history: _History, environment: Environment) -> bool:
        """Measure one case once more; says whether that gave a measurement."""
        begun_s = time.monotonic()
        try:
            with self.backend.open(history.case) as kernel:
                visit = sample_until(kernel, self.settings.rule, self.deadline_s)
        except (OutOfMemory, BadInput) as error:
            history.reason = str(error)
            return False
        if visit is None:
            history.reason = "it would not have ended within the time budget"
            history.visit_s = inf  # not tried again
            return False
        history.visits += 1
        history.visit_s = time.monotonic() - begun_s
        history.samples_s += [sample.device_s for sample in visit.samples]
        measurement = self._measurement(history.case, visit, environment)
        history.preempted = "preempted" in measurement.flags
        self.record(measurement)
        return True

    def _measurement(self, case: Case, visit: Visit, environment: Environment) -> Measurement:
        device_s = tuple(sample.device_s for sample in visit.samples)
        host_s = tuple(sample.host_s for sample in visit.samples)
        return Measurement(
            micro="optimizer" if case.call.phase is Phase.UPDATE else case.call.layer.kind,
            case=case.to_dict(),
            phase=case.call.phase.value,
            execution=case.execution_key,
            device_s=device_s,
            host_s=host_s,
            inner=visit.inner,
            device=self.backend.device,
            environment=environment,
            run_id=self.settings.run_id,
            taken_at=now(),
            stopped=visit.stopped,
            flags=flags(device_s, self.settings.rule) + host_flags(self.backend.name, device_s, host_s),
        )


def describe(case: Case) -> str:
    """A case in one short line.

    >>> from oracle.execution import Execution
    >>> from oracle.layers import Linear
    >>> from oracle.pricing import LayerCall
    >>> describe(Case(LayerCall(Linear(8, 4), Phase.FORWARD, 32), Execution()))
    'linear forward, 32 x (8,) -> (4,)'
    """
    layer = case.call.layer
    return f"{layer.kind} {case.call.phase}, {case.call.samples} x {layer.input_shapes[0]} -> {layer.output_shape}"


def now() -> str:
    """UTC, ISO 8601, as `Measurement.taken_at` wants it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
