"""Which strategy, with which choices, for a job: all of them priced and ranked.

Every strategy of the registry is tried with a handful of its choices (buckets, grids, segments, schedules, group
sizes); of each the fastest that fits is ranked. Where none fits, activations are computed again or gradients are
accumulated (`oracle.savings`). Two options tie where the draws of the *difference* of their steps straddle zero: they
share the uncertainty of most of their constants, which their own intervals would count twice. What cannot be done is in
the answer with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from oracle.layer import Shape
from oracle.plan import PIPELINES, Job, Strategy
from oracle.predictor import Predictor
from oracle.projection import Projection
from oracle.savings import no_help, savings
from oracle.sharding import spatial_ways
from oracle.strategies import STRATEGIES
from oracle.strategies.channel import Channel
from oracle.strategies.choices import write_strategy
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid
from oracle.strategies.owt import SCHEMES, Owt
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.spatial import Spatial
from oracle.strategies.zero import STAGES, Zero
from oracle.whatif import BUCKET_BYTES

GRIDS = 4
"""How many grids of a number of devices are tried, those with the least surface first."""

GROUPS = 3
"""How many sizes of a model-parallel group are tried, the largest first."""

_ONE_PASS = (Spatial, Filter, Channel)
"""What buckets of gradients can be cut from: stages that run once, one after another."""


@dataclass(frozen=True, eq=False)
class Option:
    """A variant and what is predicted of it.

    Args:
        strategy: what was tried, with its choices.
        projection: its step, which can be done.
        tied: whether its step cannot be told from that of the fastest option.
    """

    strategy: Strategy
    projection: Projection
    tied: bool = False

    @property
    def label(self) -> str:
        """The strategy with its choices, as `parse_strategy` reads it."""
        return write_strategy(self.strategy)

    @property
    def recomputed_segments(self) -> int:
        """In how many segments activations are computed again, which a label does not say."""
        return self.projection.job.execution.recomputed_segments

    @property
    def seconds_per_sample(self) -> float:
        """Step time over global batch, by which different batches compare."""
        step = self.projection.step
        return math.inf if step is None else step.middle / self.projection.job.global_batch

    @property
    def memory_bytes(self) -> float:
        """What a device holds."""
        memory = self.projection.memory
        return math.inf if memory is None else memory.total_bytes


@dataclass(frozen=True)
class Refusal:
    """A strategy that cannot be used, and why."""

    strategy: str
    reason: str


@dataclass(frozen=True)
class Ranking:
    """All strategies for one job.

    Args:
        job: what was asked.
        options: of every strategy that can be used its fastest variant, the fastest first.
        tried: all variants that can be used.
        refused: the strategies that cannot.
    """

    job: Job
    options: tuple[Option, ...]
    tried: tuple[Option, ...]
    refused: tuple[Refusal, ...]


def rank(predictor: Predictor, job: Job, names: Sequence[str] = tuple(STRATEGIES)) -> Ranking:
    """Price all variants of some strategies for a job and rank them.

    Raises:
        NotCalibrated: a timer knows nothing of something that every one of them asks.
    """
    asked = [(name, how) for name in names for how in variants(job, STRATEGIES[name])]
    projections = predictor.project_known((job, how) for _, how in asked)
    found: dict[str, list[Option]] = {name: [] for name in names}
    for (name, how), projection in zip(asked, projections, strict=True):
        found[name].append(Option(how, projection))
    usable = {name: _usable(predictor, options) for name, options in found.items()}
    best = [min(options, key=lambda option: option.seconds_per_sample) for options in usable.values() if options]
    best.sort(key=lambda option: option.seconds_per_sample)
    refused = tuple(Refusal(name, _why_not(predictor, found[name])) for name, options in usable.items() if not options)
    return Ranking(job, tuple(_with_ties(best)), tuple(o for options in usable.values() for o in options), refused)


def _usable(predictor: Predictor, options: Sequence[Option]) -> list[Option]:
    """The options that can be used; where only memory is short for all of them, what saves enough of it."""
    usable = [option for option in options if option.projection.feasible]
    if usable:
        return usable
    too_large = [option for option in options if option.projection.step is not None]
    saving = (
        pair for option in too_large for pair in savings(option.projection.job, option.strategy, predictor.memory)
    )
    return [Option(how, predictor.project(job, how)) for job, how in saving]


def _why_not(predictor: Predictor, options: Sequence[Option]) -> str:
    """Why no variant can be used: of the smallest where only memory is short, whatever saves some of it."""
    priced = [option for option in options if option.projection.step is not None]
    if not priced:
        return options[0].projection.reason
    smallest = min(priced, key=lambda option: option.memory_bytes)
    job, how = smallest.projection.job, smallest.strategy
    reasons = (predictor.project(job, how, suggest_batch=True).reason, no_help(job, how))
    return "; ".join(filter(None, reasons))


def _with_ties(options: Sequence[Option]) -> Iterator[Option]:
    for option in options:
        first, own = options[0].projection.step, option.projection.step
        if first is not None and own is not None:
            yield replace(option, tied=option is not options[0] and (own - first).interval()[0] <= 0)


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """The options that no other beats in time per sample, memory and devices at once, the fastest first."""
    # Of options that are the same in all three the first stays: serial training before groups of one device.
    points = {(o.seconds_per_sample, o.memory_bytes, o.projection.job.devices): o for o in reversed(options)}
    kept = [
        option
        for point, option in points.items()
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in points if other != point)
    ]
    return tuple(sorted(kept, key=lambda option: option.seconds_per_sample))


def variants(job: Job, strategy: Strategy) -> tuple[Strategy, ...]:
    """A strategy with the choices that are worth trying for a job; some may be beyond its limits."""
    if isinstance(strategy, Hybrid):
        return tuple(_hybrids(job, strategy))
    if job.devices == 1:
        return (strategy,)
    return (strategy, Data(bucket_bytes=BUCKET_BYTES)) if isinstance(strategy, Data) else tuple(_inner(job, strategy))


def _inner(job: Job, strategy: Strategy) -> Iterator[Strategy]:
    if isinstance(strategy, Spatial):
        yield from map(Spatial, grids(job))
        yield strategy
    elif isinstance(strategy, Pipeline):
        for kind in PIPELINES:
            for per_stage in (2, 4, 8):
                yield Pipeline(segments=min(per_stage * job.devices, job.global_batch), kind=kind)
    elif isinstance(strategy, Owt):
        yield from map(Owt, SCHEMES)
    elif isinstance(strategy, Zero):
        yield from map(Zero, STAGES)
    else:
        yield strategy


def _hybrids(job: Job, strategy: Hybrid) -> Iterator[Strategy]:
    most = min(job.devices, (job.cluster.tiers[0].devices if job.cluster.tiers else 1) or job.devices)
    # One group of all devices is the plain strategy, which is tried on its own.
    sizes = [size for size in range(min(most, job.devices - 1), 1, -1) if job.devices % size == 0][:GROUPS]
    outer = [strategy.outer]
    if isinstance(strategy.inner, _ONE_PASS):
        outer.append(replace(strategy.outer, bucket_bytes=BUCKET_BYTES))
    for size in sizes:
        asked = replace(job, devices=size, global_batch=max(1, -(-job.global_batch * size // job.devices)))
        for inner in _inner(asked, strategy.inner):
            yield from (Hybrid(data, inner, size) for data in outer)
    if not sizes:
        yield strategy


def grids(job: Job) -> list[Shape]:
    """Grids of all devices along the spatial axes of a sample, those with the smallest blocks' surface first.

    >>> from oracle.loading import load_model
    >>> from oracle.machine import Cluster, parse_link
    >>> link = Cluster.of_link("any", parse_link("1us,1GB/s"))
    >>> grids(Job(load_model("resnet50"), 8, 4, link))
    [(4,), (2, 2), (1, 4)]
    """
    extents = spatial_ways(job.model.nodes[0].layer)
    found = [_trimmed(grid) for grid in _factorisations(job.devices, len(extents))]
    found = [grid for grid in found if all(ways <= extent for ways, extent in zip(grid, extents, strict=False))]
    return sorted(found, key=lambda grid: sum(w / e for w, e in zip(grid, extents, strict=False) if w > 1))[:GRIDS]


def _factorisations(devices: int, axes: int) -> Iterator[Shape]:
    if axes == 0:
        return
    if axes == 1:
        yield (devices,)
        return
    for first in range(devices, 0, -1):
        if devices % first == 0:
            for rest in _factorisations(devices // first, axes - 1):
                yield (first, *rest)


def _trimmed(grid: Shape) -> Shape:
    """Without the axes at the end that are not split."""
    last = max((axis for axis, ways in enumerate(grid) if ways > 1), default=0)
    return grid[: last + 1]
