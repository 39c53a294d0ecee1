"""`Case`: a job under a strategy, with whatever is asked of it worked out once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from oracle.breakdown import KernelItem, MoveItem, kernels_of, moves_of
from oracle.errors import NotCalibrated
from oracle.plan import Job, Plan, StepPart, Strategy
from oracle.predictor import Predictor
from oracle.projection import Projection, total_of
from oracle.whatif import WhatIf


@dataclass(frozen=True)
class Case:
    """A job under a strategy, with whatever the detectors ask of it worked out once.

    Args:
        predictor: prices it.
        job: what is asked; the strategy can be planned for it.
        strategy: how it is spread.
    """

    predictor: Predictor
    job: Job
    strategy: Strategy

    @cached_property
    def projection(self) -> Projection:
        """The step."""
        return self.predictor.project(self.job, self.strategy)

    @cached_property
    def plan(self) -> Plan:
        """What the busiest device does."""
        return self.strategy.plan(self.job)

    @cached_property
    def kernels(self) -> tuple[KernelItem, ...]:
        """The kernels by layer."""
        return kernels_of(self.plan, self.predictor.layers)

    @cached_property
    def moves(self) -> tuple[MoveItem, ...]:
        """The transfers, one by one."""
        return moves_of(self.plan, self.predictor.links(self.job.cluster))

    @property
    def step_s(self) -> float:
        """Seconds of the step, 0 where it cannot be planned."""
        return self.projection.step.middle if self.projection.step is not None else 0.0

    def communication_s(self, parts: Iterable[StepPart]) -> float:
        """Seconds that the step waits for transfers in some parts."""
        return total_of(self.projection.communication, tuple(parts)).middle

    def changed(self, what: WhatIf) -> tuple[str, Case] | None:
        """The case with a change, if it applies, can be done and asks nothing that no timer knows."""
        change = what(self.job, self.strategy)
        if change is None or change.strategy.limit(change.job).refusal(change.strategy.name, change.job):
            return None
        case = Case(self.predictor, change.job, change.strategy)
        try:
            return (change.text, case) if case.projection.step is not None else None
        except NotCalibrated:
            return None

    def samples_per_s(self) -> float:
        """Samples of all devices per second."""
        return self.job.global_batch / self.step_s
