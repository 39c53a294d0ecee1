"""Which cases to measure.

Two kinds. The unique calls of the models that the user cares for are measured themselves: 23 shapes make the 53
convolutions of ResNet-50, repeats of a shape differ by half a percent, and no fit predicts a shape as well as its own
measurement. And a generic grid per family (`calibration.grid`) separates launches, arithmetic and traffic, so that
other models, other batch sizes and shards can be priced from constants.

The order is that of usefulness, so that a measurement which runs out of its budget has the best of both: first the
extremes of every family, which cost little and without which a family cannot be priced at all; then, in turn, the
models' calls by the share that they have in a step, and what is left of the grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from calibration.features import canonical, family
from calibration.grid import HEAD, generic_calls
from oracle.execution import Execution
from oracle.model import ModelGraph
from oracle.plan import tasks_of
from oracle.pricing import LayerCall
from profiler.case import Case

LARGEST_CASE_BYTES = 2 * 2**30
"""The memory that one case may need: enough for the models' own shapes, and there is no machine that lacks it."""


EXTREMES = 4
"""Calls of each family that come before everything else: what a launch and one rate need."""


def model_calls(graph: ModelGraph, samples: int) -> Mapping[LayerCall, int]:
    """The calls of one training step of a model on one device, with how often each occurs."""
    counts: Counter[LayerCall] = Counter()
    for task in tasks_of(graph, graph.nodes, samples):
        counts[canonical(task.call)] += task.count
    return counts


def bytes_held(call: LayerCall, execution: Execution) -> int:
    """Memory that a case may need: operands, result and their gradients, and four copies of the parameters."""
    layer = call.layer
    activations = 2 * call.samples * (layer.input_items + layer.output_items)
    return execution.item_bytes * activations + 4 * 4 * layer.params


def default_cases(models: Sequence[tuple[ModelGraph, int]], execution: Execution, *, quick: bool) -> list[Case]:
    """The cases to measure for a calibration, the most useful first, each once.

    Args:
        models: the models that will be asked for, each with its samples per device.
        execution: how they are trained.
        quick: only the families of these models and the heads of their grids; else every family, in full.

    Returns:
        Cases that need at most LARGEST_CASE_BYTES each: a model's call that is larger is measured with fewer samples,
        and dropped where one sample is too large.
    """
    ranked = _fitting(_by_share(models, execution), execution)
    wanted = {(family(call.layer, call.phase), call.phase) for call in ranked}
    grid = [
        calls[:HEAD] if quick else calls
        for key, calls in generic_calls().items()
        if not (quick and models) or key in wanted
    ]
    extremes = _fitting(_in_turn([calls[:EXTREMES] for calls in grid]), execution)
    others = _fitting(_in_turn([calls[EXTREMES:] for calls in grid]), execution)
    return [Case(call, execution) for call in dict.fromkeys([*extremes, *_in_turn([ranked, others])])]


def _by_share(models: Sequence[tuple[ModelGraph, int]], execution: Execution) -> list[LayerCall]:
    """Calls by the largest share that they have in the time of any of the models."""
    shares: dict[LayerCall, float] = {}
    for graph, samples in models:
        costs = {call: count * _nominal_s(call, execution) for call, count in model_calls(graph, samples).items()}
        total = sum(costs.values())
        for call, cost in costs.items():
            shares[call] = max(shares.get(call, 0.0), cost / total)
    return sorted(shares, key=lambda call: -shares[call])


def _nominal_s(call: LayerCall, execution: Execution) -> float:
    """Seconds on no device in particular: good enough to rank calls before anything is measured."""
    work = call.layer.work(call.phase, call.samples, execution)
    return 5e-6 + work.flop / 1e11 + work.bytes / 1e10


def _fitting(calls: Iterable[LayerCall], execution: Execution) -> list[LayerCall]:
    return list(chain.from_iterable(_shrunk(call, execution) for call in calls))


def _shrunk(call: LayerCall, execution: Execution) -> Iterator[LayerCall]:
    samples = call.samples
    while samples and bytes_held(LayerCall(call.layer, call.phase, samples), execution) > LARGEST_CASE_BYTES:
        samples //= 2
    if samples:
        yield LayerCall(call.layer, call.phase, samples)


def _in_turn(lists: Sequence[Sequence[LayerCall]]) -> list[LayerCall]:
    """The first of each list, then the second of each, and so on."""
    return [call for row in zip_longest(*lists) for call in row if call is not None]
