"""What a plan asks of the timers, every question once, and where each answer belongs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from oracle.estimate import Floats
from oracle.identity import Same
from oracle.plan import Overlapped, Place, Plan, Rounds, StepPart, Task
from oracle.pricing import LayerCall, Transfer, TransferTimer
from oracle.projection import FORWARD_BACKWARD
from oracle.schedules import StageTimes
from oracle.streams import Factors

Where = tuple[int, StepPart, Place]
"""The stage's index, the part of the step, and who waits."""

Question = TypeVar("Question", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Asked(Generic[Question]):
    """Distinct questions, and how often each belongs to each place: a row per place, a column per question."""

    questions: tuple[Question, ...]
    places: tuple[Where, ...]
    counts: Floats

    def sums(self, seconds: Floats) -> dict[Where, Floats]:
        """The seconds of each place, from those of each question: shape (questions, n)."""
        return dict(zip(self.places, self.counts @ seconds, strict=True))


def ask(items: Iterable[tuple[Where, Question, int]]) -> Asked[Question]:
    """Gather questions, each with its place and how often it is asked there."""
    questions: dict[Question, int] = {}
    places: dict[Where, int] = {}
    found = [
        (places.setdefault(where, len(places)), questions.setdefault(question, len(questions)), count)
        for where, question, count in items
    ]
    counts = np.zeros((len(places), len(questions)))
    for row, column, count in found:
        counts[row, column] += count
    return Asked(tuple(questions), tuple(places), counts)


def kernels_asked(plan: Plan) -> Asked[LayerCall]:
    """What the stages ask of a layer timer."""
    return _kernels(Same(tuple(stage.tasks for stage in plan.stages)))


def moves_asked(plan: Plan) -> Asked[Transfer]:
    """What the stages ask of a transfer timer."""
    return ask(((i, e.part, e.place), e.transfer, 1) for i, stage in enumerate(plan.stages) for e in stage.exchanges)


@lru_cache(maxsize=128)
def _kernels(tasks: Same[tuple[Task, ...]]) -> Asked[LayerCall]:
    """Tasks that come from `tasks_of`'s memory are recognised."""
    return ask(((i, t.part, Place.INSIDE), t.call, t.count) for i, stage in enumerate(tasks.items) for t in stage)


def factors_of(plan: Plan, timer: TransferTimer) -> Factors | None:
    """By how much kernels and transfers slow one another down where the plan has both at once; None: they do not.

    The last axis is the middle and the draws.
    """
    if not isinstance(plan.schedule, Overlapped | Rounds):
        return None
    slowdown = timer.slowdown(moves_asked(plan).questions)
    kernels, transfers = (np.append(each.middle, each.draws) for each in (slowdown.kernels, slowdown.transfers))
    return Factors(kernels, transfers) if np.any(kernels > 1) or np.any(transfers > 1) else None


def stage_times(plan: Plan, kernels: dict[Where, Floats], moves: dict[Where, Floats]) -> list[StageTimes]:
    """The times of every stage from those of every place."""
    times = [StageTimes() for _ in plan.stages]
    for (index, part, _), seconds in kernels.items():
        times[index].compute[part] = seconds
    for (index, part, place), seconds in moves.items():
        times[index].moved[place][part] = seconds
    return times


def passes_of(plan: Plan, where: Where) -> int:
    """How often per step something happens that a stage's pass (or its exchange of gradients or update) does once."""
    index, part, place = where
    if part not in FORWARD_BACKWARD:
        return 1
    # What leads to a later stage of `Rounds` is sent as often as that stage runs.
    return plan.passes(min(index + (place is Place.BETWEEN), len(plan.stages) - 1))
