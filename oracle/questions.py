"""What a plan asks of the timers, every question once, and where each answer belongs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from oracle.estimate import Floats
from oracle.identity import Same
from oracle.memory import stages_of_devices
from oracle.plan import Overlapped, Place, Plan, Rounds, StepPart, Task
from oracle.pricing import LayerCall, Transfer, TransferTimer
from oracle.projection import FORWARD_BACKWARD
from oracle.schedules import StageTimes
from oracle.streams import Factors
from oracle.updates import together

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
    """What the stages ask of a layer timer; the update of a device's stages is one call, asked in the first of them."""
    return _kernels(Same(tuple(stage.tasks for stage in plan.stages)), tuple(stages_of_devices(plan)))


def updates_of(plan: Plan) -> tuple[tuple[Task, tuple[int, ...]], ...]:
    """The calls of an optimizer in a step of every device, each with the stages whose tensors it updates."""
    tasks = tuple(stage.tasks for stage in plan.stages)
    return tuple(update for stages in stages_of_devices(plan) for update in _updates(tasks, stages))


def _updates(tasks: Sequence[Sequence[Task]], stages: range) -> list[tuple[Task, tuple[int, ...]]]:
    """The calls of one device: what is updated equally often in a step is updated together."""
    by_count: dict[int, list[tuple[Task, int]]] = defaultdict(list)
    for index in stages:
        for task in tasks[index]:
            if task.part is StepPart.UPDATE:
                by_count[task.count].append((task, index))
    return [
        (replace(same[0][0], call=_joint([task.call for task, _ in same])), tuple(index for _, index in same))
        for same in by_count.values()
    ]


def _joint(calls: Sequence[LayerCall]) -> LayerCall:
    return calls[0] if len(calls) == 1 else replace(calls[0], layer=together([call.layer for call in calls]))


def moves_asked(plan: Plan) -> Asked[Transfer]:
    """What the stages ask of a transfer timer."""
    return ask(((i, e.part, e.place), e.transfer, 1) for i, stage in enumerate(plan.stages) for e in stage.exchanges)


@lru_cache(maxsize=128)
def _kernels(tasks: Same[tuple[Task, ...]], devices: tuple[range, ...]) -> Asked[LayerCall]:
    """Tasks that come from `tasks_of`'s memory are recognised."""
    placed = [(i, t) for i, stage in enumerate(tasks.items) for t in stage if t.part is not StepPart.UPDATE]
    placed += [(where[0], task) for stages in devices for task, where in _updates(tasks.items, stages)]
    return ask(((i, task.part, Place.INSIDE), task.call, task.count) for i, task in placed)


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
