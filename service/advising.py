"""Which strategy for a job (`advise`), how it scales (`scale`), and where one step's time goes (`explain`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from db.reading import Reader
from oracle.bottlenecks import Bottleneck, find_bottlenecks
from oracle.breakdown import KernelItem, MoveItem
from oracle.case import Case
from oracle.constants import Calibration
from oracle.errors import BadInput, NotCalibrated
from oracle.plan import Job
from oracle.predictor import Predictor
from oracle.projection import Projection
from oracle.search import Option, Ranking, pareto, rank
from oracle.strategies import STRATEGIES
from oracle.strategies.choices import parse_strategy, write_strategy
from service.figures import Figures, figures_of
from service.models import find_model
from service.predicting import Means, look_up
from service.requests import PlanRequest

FRONT_COUNTS = 4
"""The Pareto front looks at the devices that were asked for, at half of them, and so on: so many counts."""


@dataclass(frozen=True)
class _Asked:
    """A request with everything looked up that it names."""

    means: Means
    jobs: tuple[Job, ...]

    @property
    def predictor(self) -> Predictor:
        """Prices the jobs."""
        return self.means.predictor


@dataclass(frozen=True, eq=False)
class Row:
    """One strategy with its choices at one number of devices."""

    label: str
    projection: Projection
    figures: Figures
    tied: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        figures = self.figures.to_dict()
        return {"label": self.label, "tied": self.tied, **figures, "projection": self.projection.to_dict()}


@dataclass(frozen=True, eq=False)
class AdviceResult:
    """All strategies ranked, and what holds the fastest.

    Args:
        rows: the fastest variant of each strategy that can be used, the fastest first.
        refused: the others, each with its reason.
        front: what no other option beats in time per sample, memory and devices at once.
        bottlenecks: of the fastest.
    """

    calibration: Calibration
    ranking: Ranking
    rows: tuple[Row, ...]
    front: tuple[Row, ...]
    bottlenecks: tuple[Bottleneck, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "calibration": self.calibration.name,
            "ranked": [row.to_dict() for row in self.rows],
            "refused": [{"strategy": item.strategy, "reason": item.reason} for item in self.ranking.refused],
            "front": [row.to_dict() for row in self.front],
            "bottlenecks": [bottleneck_to_dict(item) for item in self.bottlenecks],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, eq=False)
class ScaleResult:
    """Strategies over numbers of devices."""

    calibration: Calibration
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [row.to_dict() for row in self.rows]
        return {"calibration": self.calibration.name, "rows": rows, "notes": list(self.notes)}


@dataclass(frozen=True, eq=False)
class ExplainResult:
    """One projection by layer, phase and transfer."""

    calibration: Calibration
    row: Row
    kernels: tuple[KernelItem, ...]
    moves: tuple[MoveItem, ...]
    bottlenecks: tuple[Bottleneck, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; seconds are per step."""
        return {
            "calibration": self.calibration.name,
            **self.row.to_dict(),
            "kernels": [kernel_to_dict(item) for item in self.kernels],
            "transfers": [move_to_dict(item) for item in self.moves],
            "bottlenecks": [bottleneck_to_dict(item) for item in self.bottlenecks],
            "notes": list(self.notes),
        }


def advise(store: Reader, request: PlanRequest) -> AdviceResult:
    """Rank strategies for a job.

    Raises:
        BadInput: several numbers of devices. See also `oracle.search.rank`.
    """
    if len(request.devices) > 1:
        raise BadInput("advise takes one number of devices; 'stepgauge scale' takes several")
    asked = _look_up(store, request)
    names = _names(request)
    ranking = rank(asked.predictor, asked.jobs[0], names)
    tried = list(ranking.tried)
    for devices in _fewer(request.devices[0]):
        with suppress(NotCalibrated):  # a network may have been measured with these devices only
            tried += rank(asked.predictor, _job(asked.jobs[0], request, devices), names).tried
    rows = tuple(_row(request, option) for option in ranking.options)
    front = tuple(_row(request, option) for option in pareto(tried))
    first = next(iter(ranking.options), None)
    held = find_bottlenecks(Case(asked.predictor, first.projection.job, first.strategy)) if first else ()
    return AdviceResult(asked.means.calibration, ranking, rows, front, held, asked.means.notes)


def scale(store: Reader, request: PlanRequest) -> ScaleResult:
    """Predict strategies at several numbers of devices.

    Raises:
        UnknownName: no such strategy or choice.
    """
    asked = _look_up(store, request)
    hows = list(dict.fromkeys(parse_strategy(text) for text in request.strategies)) or list(STRATEGIES.values())
    points = [(job, how) for how in hows for job in asked.jobs]
    rows = [
        Row(write_strategy(how), projection, figures_of(projection, request.rates))
        for (_, how), projection in zip(points, asked.predictor.project_known(points), strict=True)
    ]
    return ScaleResult(asked.means.calibration, tuple(rows), asked.means.notes)


def explain(store: Reader, request: PlanRequest) -> ExplainResult:
    """Break one projection down.

    Raises:
        BadInput: several strategies or numbers of devices, or a strategy that cannot use these devices.
    """
    if len(request.devices) > 1 or len(request.strategies) > 1:
        raise BadInput("explain takes one strategy and one number of devices")
    asked = _look_up(store, request)
    job = asked.jobs[0]
    how = parse_strategy(request.strategies[0] if request.strategies else "serial" if job.devices == 1 else "data")
    refusal = how.limit(job).refusal(how.name, job)
    if refusal is not None:
        raise BadInput(refusal)
    case = Case(asked.predictor, job, how)
    projection = asked.predictor.project(job, how, suggest_batch=True)
    row = Row(write_strategy(how), projection, figures_of(projection, request.rates))
    return ExplainResult(
        asked.means.calibration, row, case.kernels, case.moves, find_bottlenecks(case), asked.means.notes
    )


def _names(request: PlanRequest) -> tuple[str, ...]:
    """The strategies to rank: their choices are for the search to make."""
    for text in request.strategies:
        if "," in text:
            raise BadInput(f"advise chooses for itself: write '{text.partition(',')[0]}' instead of '{text}'")
    return tuple(dict.fromkeys(parse_strategy(text).name for text in request.strategies)) or tuple(STRATEGIES)


def _look_up(store: Reader, request: PlanRequest) -> _Asked:
    means = look_up(store, request)
    devices = request.devices[0]
    first = Job(
        model=find_model(request.model),
        global_batch=request.global_batch(devices),
        devices=devices,
        cluster=means.cluster,
        execution=request.execution,
        dataset_samples=request.dataset_samples,
    )
    jobs = tuple(_job(first, request, count) for count in request.devices)
    return _Asked(means, jobs)


def _job(job: Job, request: PlanRequest, devices: int) -> Job:
    return replace(job, devices=devices, global_batch=request.global_batch(devices))


def _fewer(devices: int) -> list[int]:
    return [devices >> shift for shift in range(1, FRONT_COUNTS) if devices >> shift]


def _row(request: PlanRequest, option: Option) -> Row:
    return Row(option.label, option.projection, figures_of(option.projection, request.rates), option.tied)


def bottleneck_to_dict(item: Bottleneck) -> dict[str, Any]:
    """Plain JSON values of a finding."""
    return {**vars(item), "remedies": [vars(remedy) for remedy in item.remedies], "text": item.text}


def kernel_to_dict(item: KernelItem) -> dict[str, Any]:
    """Plain JSON values of the kernels of one layer in one part of a step."""
    work = item.call.layer.work(item.call.phase, item.call.samples)
    return {
        "stage": item.stage,
        "layer": item.layer,
        "part": item.part.value,
        "phase": item.call.phase.value,
        "runs": item.call.layer.to_dict(),
        "samples": item.call.samples,
        "count": item.count,
        "seconds": item.seconds,
        "host_s": item.host_s,
        "flop_per_s": item.count * work.flop / item.seconds if item.seconds else None,
        "method": item.method.value,
    }


def move_to_dict(item: MoveItem) -> dict[str, Any]:
    """Plain JSON values of one exchange."""
    transfer = item.exchange.transfer
    return {
        "stage": item.stage,
        "layer": item.exchange.layer,
        "part": item.exchange.part.value,
        "waits": item.exchange.place.value,
        **vars(transfer),
        "count": item.count,
        "seconds": item.seconds,
        "latency_s": item.latency_s,
        "method": item.method.value,
    }


USE_CASES: dict[str, Callable[[Reader, PlanRequest], Any]] = {"advise": advise, "scale": scale, "explain": explain}
"""The use cases of this file by the name of their command."""
