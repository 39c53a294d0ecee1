"""Measure many cases within a time budget, in rounds.

The first round gives every case one visit. A later one goes back to the better half of those whose median is not yet
certain enough: better is what a further visit is expected to take off the uncertainty, in weighted seconds, for every
second that the visit costs. Two visits of a case lie minutes apart, so that drift of the machine becomes visible as
scatter between them (random interleaving cuts run-to-run variance by 40 %, google/benchmark,
docs/random_interleaving.md). Every visit is a `Measurement` of its own and is recorded at once: an interrupted run
keeps what it has, and a later session goes on from there.

The caller's order is the priority when the budget is too short for the first round. It is therefore shuffled only
within blocks of a few neighbours, and not as a whole.

Anchors (`profiler.anchors`) are visited before everything, every few seconds in between, and at the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from statistics import median

from oracle.errors import BadInput, OutOfMemory, OutOfRange
from oracle.updates import Parameters
from profiler.anchors import visit_anchor
from profiler.backends.base import Backend
from profiler.case import Case
from profiler.measurement import Environment, Measurement
from profiler.state_sampler import StateSampler, sampling
from profiler.stopping import StoppingRule, median_halfwidth
from profiler.visit import Visit, measurement_of, sample_until

MIN_VISITS = 2
"""A case is not done before its second visit, whatever the first one says of itself."""

UNSEEN_DRIFT = 0.05
"""Half-width assumed for a case that was visited once, or preempted when it was visited last: medians on shared
machines move by this much in minutes."""

BLOCK = 16
"""Neighbours in the caller's order that the first round may swap."""

LEAST_ROUND = 8
"""Cases of a later round, where there are as many: fewer would put two visits of a case next to each other."""

ANCHOR_PAUSES = 15
"""The time between two visits of the anchors is at least so many times what a visit takes: on a machine that is so
busy that they take seconds, they are not what the budget is for."""

Record = Callable[[Measurement], None]
Progress = Callable[[int, int, str], None]
"""Called with cases done, cases in this round, and what is measured now."""


@dataclass(frozen=True)
class Planned:
    """A case, how much it counts, and what earlier sessions of the same run know of it.

    Args:
        case: what to measure.
        weight: how often it counts.
        visits: its measurements so far.
        refused: why the device cannot run it; empty where it can, or where nobody has tried.
    """

    case: Case
    weight: float = 1.0
    visits: tuple[Measurement, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class RunSettings:
    """How to measure.

    Args:
        run_id: what the measurements of this run share.
        budget_s: wall-clock seconds for all of it.
        seed: of the order.
        rule: when one visit ends.
        max_visits: visits after which a case is let go though its interval is wider than the target.
        anchors: cases that are visited again and again, to see the machine drift.
        anchor_every_s: seconds from one visit of the anchors to the next.
        max_rounds: passes over the cases after which to stop; None where only the budget limits them.
    """

    run_id: str
    budget_s: float
    seed: int = 0
    rule: StoppingRule = field(default_factory=StoppingRule)
    max_visits: int = 4
    anchors: tuple[Case, ...] = ()
    anchor_every_s: float = 10.0
    max_rounds: int | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.budget_s) and self.budget_s > 0):
            raise OutOfRange(f"a time budget must be a positive number of seconds, not {self.budget_s}")


@dataclass(frozen=True)
class Unmeasured:
    """A case without a measurement, and why.

    Args:
        case: the case.
        reason: in one line.
        refused: whether the device cannot run it (too little memory, no such kernel); else the budget ended.
    """

    case: Case
    reason: str
    refused: bool = False


Refuse = Callable[[Unmeasured], None]


@dataclass(frozen=True)
class RunSummary:
    """What a run did, in all its sessions.

    Args:
        measured: cases with a measurement; converged: those whose median is as certain as was asked.
        visits: measurements of cases; rounds: passes over the cases in this session.
        elapsed_s: of this session.
        unmeasured: the other cases, in the caller's order.
    """

    run_id: str
    measured: int
    converged: int
    visits: int
    rounds: int
    elapsed_s: float
    unmeasured: tuple[Unmeasured, ...]


class _History:
    """What is known of one case so far."""

    def __init__(self, planned: Planned) -> None:
        self.case, self.weight = planned.case, planned.weight
        self.samples_s: list[float] = []
        self.visits = 0
        self.visit_s = 0.0
        self.preempted = False
        self.refused = bool(planned.refused)
        self.reason = planned.refused or "the time budget ended before it"
        for measurement in planned.visits:
            self.add(measurement, sum(measurement.device_s) * measurement.inner)

    def add(self, measurement: Measurement, visit_s: float) -> None:
        """Take one visit that took so many seconds with all that belongs to it."""
        self.visits += 1
        self.visit_s = visit_s
        self.samples_s += measurement.device_s
        self.preempted = "preempted" in measurement.flags

    @property
    def halfwidth(self) -> float:
        """Relative uncertainty of its median, over all visits together."""
        width = median_halfwidth(self.samples_s)
        # Samples that wait for the scheduler agree well with one another: on its tick, not on the kernel.
        doubtful = self.visits < MIN_VISITS or self.preempted
        return max(width, UNSEEN_DRIFT) if doubtful else width

    @property
    def benefit(self) -> float:
        """Weighted seconds by which one more visit shrinks its uncertainty, for every second that the visit takes.

        An uncertainty falls with the square root of the visits; too few samples for an interval count as 100 %.
        """
        gained = 1 - sqrt(self.visits / (self.visits + 1))
        return self.weight * min(self.halfwidth, 1.0) * median(self.samples_s) * gained / max(self.visit_s, 1e-9)


def measure(
    cases: Sequence[Planned],
    backend: Backend,
    record: Record,
    settings: RunSettings,
    progress: Progress = lambda done, total, text: None,
    refuse: Refuse = lambda item: None,
) -> RunSummary:
    """Measure cases on a device until the budget is spent or all have converged.

    Args:
        cases: what to measure, the most useful first.
        backend: the device.
        record: called with every measurement as soon as there is one.
        settings: budget, order, stopping rule, anchors.
        progress: called before every visit and at the end of each round.
        refuse: called with every case that the device cannot run, as soon as that is known.
    """
    histories = [_History(planned) for planned in cases]
    start_s = time.monotonic()
    with sampling(backend) as sampler:
        run = _Run(backend, record, refuse, settings, progress, sampler)
        if any(_open(history, settings) for history in histories):
            run.visit_anchors()
            _rounds(run, histories)
            run.visit_anchors()
    measured = [history for history in histories if history.visits]
    return RunSummary(
        run_id=settings.run_id,
        measured=len(measured),
        converged=sum(history.halfwidth <= settings.rule.target for history in measured),
        visits=sum(history.visits for history in measured),
        rounds=run.rounds,
        elapsed_s=time.monotonic() - start_s,
        unmeasured=tuple(Unmeasured(h.case, h.reason, h.refused) for h in histories if not h.visits),
    )


def _rounds(run: _Run, histories: Sequence[_History]) -> None:
    """Pass over the cases until the budget is spent, all are done, or none can end in the time that is left."""
    settings = run.settings
    first = [history for history in _shuffled_in_blocks(histories, settings.seed) if not history.visits]
    if any(_open(history, settings) for history in first):
        run.round([history for history in first if _open(history, settings)])
    while run.goes_on and (wanted := [history for history in histories if history.visits and _open(history, settings)]):
        wanted.sort(key=lambda history: -history.benefit)
        if not run.round(wanted[: max(LEAST_ROUND, -(-len(wanted) // 2))]):
            break


def _open(history: _History, settings: RunSettings) -> bool:
    """Whether a case should be visited once more."""
    if history.refused:
        return False
    if not history.visits:
        return True
    return history.visits < settings.max_visits and history.halfwidth > settings.rule.target


def _shuffled_in_blocks(histories: Sequence[_History], seed: int) -> list[_History]:
    """The cases in the caller's order, neighbours swapped at random."""
    draw = random.Random(seed)  # noqa: S311 - an order, no secret
    order: list[_History] = []
    for start in range(0, len(histories), BLOCK):
        block = list(histories[start : start + BLOCK])
        draw.shuffle(block)
        order += block
    return order


class _Run:
    """The rounds of one session of a run."""

    def __init__(
        self,
        backend: Backend,
        record: Record,
        refuse: Refuse,
        settings: RunSettings,
        progress: Progress,
        sampler: StateSampler,
    ) -> None:
        self.backend, self.record, self.refuse = backend, record, refuse
        self.settings, self.progress, self.sampler = settings, progress, sampler
        self.deadline_s = time.monotonic() + settings.budget_s
        self.rounds = 0
        self.anchors = list(settings.anchors)
        self.anchors_s = 0.0  # how long the last visit of all anchors took
        self.anchored_s = -inf  # when it ended

    @property
    def time_left_s(self) -> float:
        """Until the budget is spent but for a last visit of the anchors."""
        return self.deadline_s - self.anchors_s - time.monotonic()

    @property
    def goes_on(self) -> bool:
        """Whether another round may begin."""
        limit = self.settings.max_rounds
        return self.time_left_s > 0 and (limit is None or self.rounds < limit)

    def round(self, histories: Sequence[_History]) -> int:
        """Visit the cases in this order while time is left; returns how many visits were recorded."""
        self.rounds += 1
        environment = self.backend.environment()
        recorded = 0
        for done, history in enumerate(histories):
            if self.time_left_s <= history.visit_s:
                continue  # a shorter one may still end in time
            if time.monotonic() - self.anchored_s >= max(self.settings.anchor_every_s, ANCHOR_PAUSES * self.anchors_s):
                self.visit_anchors()
            self.progress(done, len(histories), f"round {self.rounds}: {describe(history.case)}")
            recorded += self._visit(history, environment)
        self.progress(len(histories), len(histories), f"round {self.rounds}: done")
        return recorded

    def visit_anchors(self) -> None:
        """Visit every anchor once; one that cannot be measured is let go."""
        begun_s = time.monotonic()
        for case in list(self.anchors):
            try:
                found = visit_anchor(case, self.backend, self.settings.run_id, self.deadline_s)
            except (OutOfMemory, BadInput):
                self.anchors.remove(case)
                continue
            if found is not None:
                self.record(found)
        self.anchored_s = time.monotonic()
        self.anchors_s = self.anchored_s - begun_s

    def _visit(self, history: _History, environment: Environment) -> bool:
        """Measure one case once more; says whether that gave a measurement."""
        begun_s = time.monotonic()
        try:
            with self.backend.open(history.case) as kernel, self.sampler.window() as window:
                visit = sample_until(kernel, self.settings.rule, self.deadline_s - self.anchors_s)
        except (OutOfMemory, BadInput) as error:
            history.reason, history.refused = str(error), True
            self.refuse(Unmeasured(history.case, history.reason, refused=True))
            return False
        if isinstance(visit, Visit):
            taken = measurement_of(history.case, visit, self.backend, environment, self.settings)
            measurement = window.summary.added_to(taken)
            history.add(measurement, time.monotonic() - begun_s)
            self.record(measurement)
            return True
        history.reason = visit
        history.visit_s = inf  # not tried again
        return False


def describe(case: Case) -> str:
    """A case in one short line.

    >>> from oracle.execution import Execution
    >>> from oracle.layer import Phase
    >>> from oracle.layers import Linear
    >>> from oracle.pricing import LayerCall
    >>> describe(Case(LayerCall(Linear(8, 4), Phase.FORWARD, 32), Execution()))
    'linear forward, 32 x (8,) -> (4,)'
    """
    layer = case.call.layer
    if isinstance(layer, Parameters):
        return f"update of {layer.text}"
    return f"{layer.kind} {case.call.phase}, {case.call.samples} x {layer.input_shapes[0]} -> {layer.output_shape}"
