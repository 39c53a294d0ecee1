"""Which cases to measure.

Two kinds. The unique calls of the steps that the user asks about are measured themselves: 23 shapes make the 53
convolutions of ResNet-50, repeats of a shape differ by half a percent, and no fit predicts a shape as well as its own
measurement. Under a strategy a step's calls are those of its plan, shards included. And a generic grid per family
(`calibration.grid`) separates launches, arithmetic and traffic, so that other models, other batch sizes and shards can
be priced from constants. A few calls with large results show what fresh pages cost (`calibration.fresh_pages`).

The order is that of usefulness, so that a measurement which runs out of its budget has the best of both: first the
extremes of every family, which cost little and without which a family cannot be priced at all; then the steps' calls by
the share that they have in a step, and what is left of the grid. Of the many small calls that make the last tenth of
the steps those come first that stand for the others (`calibration.medoids`): a neighbour that was measured prices them.

A case weighs as much as it counts in the steps: its calls over the step's time, so that one percent of a short step is
worth as much as one percent of a long one. A generic case weighs as much as a call that happens once in a mean step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest

import numpy as np

from calibration.features import canonical, family, features
from calibration.grid import HEAD, generic_calls, head, large_calls
from calibration.medoids import choose_medoids
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.model import ModelGraph
from oracle.plan import Plan, tasks_of
from oracle.pricing import LayerCall
from oracle.questions import kernels_asked, passes_of
from oracle.updates import Parameters
from profiler.case import Case
from profiler.run import Planned

LARGEST_CASE_BYTES = 2 * 2**30
"""The memory that one case may need: enough for the models' own shapes, and there is no machine that lacks it."""

EXTREMES = 4
"""Rows of each table that come before everything else: what a launch and one rate need."""

HEAD_SHARE = 0.9
"""The share of every step that is measured call by call, the largest first, before medoids stand for the rest."""

MEDOID_SHARE = 4
"""One of so many calls of the rest stands for its neighbours."""

Step = Mapping[LayerCall, int]
"""The calls of one training step on one device, with how often each occurs."""


def model_calls(graph: ModelGraph, samples: int) -> Step:
    """The calls of one training step of a model on one device, with how often each occurs."""
    counts: Counter[LayerCall] = Counter()
    for task in tasks_of(graph, graph.nodes, samples):
        counts[canonical(task.call)] += task.count
    return counts


def plan_calls(plan: Plan) -> Step:
    """The calls of one training step of a plan's device (of all stages' devices in a pipeline), shards as they run."""
    asked = kernels_asked(plan)
    per_step = np.array([passes_of(plan, where) for where in asked.places], dtype=np.float64) @ asked.counts
    counts: Counter[LayerCall] = Counter()
    for call, count in zip(asked.questions, per_step.tolist(), strict=True):
        counts[canonical(call)] += round(count)
    return counts


def bytes_held(call: LayerCall, execution: Execution) -> int:
    """Memory that a case may need: operands, result and their gradients, and four copies of the parameters.

    An update has no operands: it needs the parameters, their gradients and its states.
    """
    layer = call.layer
    if call.phase is Phase.UPDATE:
        return execution.parameter_bytes * (2 + execution.optimizer_cost.states) * layer.params
    activations = 2 * call.samples * (layer.input_items + layer.output_items)
    return execution.item_bytes * activations + 4 * 4 * layer.params


def default_cases(models: Sequence[tuple[ModelGraph, int]], execution: Execution, *, quick: bool) -> list[Case]:
    """The cases of `planned_cases` for serial steps of some models, each with its samples per device."""
    steps = [model_calls(graph, samples) for graph, samples in models]
    return [planned.case for planned in planned_cases(steps, execution, quick=quick)]


def planned_cases(
    steps: Sequence[Step],
    execution: Execution,
    *,
    quick: bool,
    asked_first: bool = False,
    canaries: Sequence[Step] = (),
) -> list[Planned]:
    """The cases to measure for a calibration with their weights, the most useful first, each once.

    Args:
        steps: the steps that will be asked for.
        execution: how they are trained.
        quick: only the families of these steps, and of their grids the heads.
        asked_first: only the families of these steps, whose own calls come before the rest of the grid, and not in
            turn with it.
        canaries: steps whose calls are measured as those of `steps` are, but whose families do not count as theirs.

    Returns:
        Cases that need at most LARGEST_CASE_BYTES each: a step's call that is larger is measured with fewer samples,
        and dropped where one sample is too large; an update is measured with smaller tensors, as many of them.
    """
    fitting = [_fitting_step(step, execution) for step in steps]
    wanted = {(family(call.layer, call.phase), call.phase) for step in fitting for call in step}
    fitting += [_fitting_step(step, execution) for step in canaries]
    asked = _ranked(fitting, execution)
    narrow = bool(steps) and (quick or asked_first)
    whole = {key: calls for key, calls in generic_calls().items() if not narrow or key in wanted}
    grid = {key: head(key[0], calls, HEAD) if quick else calls for key, calls in whole.items()}
    first = {key: head(key[0], calls, EXTREMES) for key, calls in grid.items()}
    large = _fitting([call for key, call in large_calls().items() if key in whole], execution)
    extremes = _fitting(_in_turn(list(first.values())), execution)
    others = _fitting(_in_turn([calls[len(first[key]) :] for key, calls in grid.items()]), execution)
    then = [*asked, *others] if asked_first else _in_turn([asked, others])
    weights = _weights(fitting, execution)
    mean_weight = sum(1 / _step_s(step, execution) for step in fitting) / len(fitting) if fitting else 1.0
    ordered = dict.fromkeys([*extremes, *large, *then])
    return [Planned(Case(call, execution), weights.get(call, mean_weight)) for call in ordered]


def _fitting_step(step: Step, execution: Execution) -> Step:
    counts: Counter[LayerCall] = Counter()
    for call, count in step.items():
        for smaller in _shrunk(call, execution):
            counts[smaller] += count
    return counts


def _step_s(step: Step, execution: Execution) -> float:
    return sum(count * _nominal_s(call, execution) for call, count in step.items()) or 1.0


def _weights(steps: Sequence[Step], execution: Execution) -> Mapping[LayerCall, float]:
    """How often each call happens per second of a step, over all steps."""
    weights: dict[LayerCall, float] = defaultdict(float)
    for step in steps:
        step_s = _step_s(step, execution)
        for call, count in step.items():
            weights[call] += count / step_s
    return weights


def _ranked(steps: Sequence[Step], execution: Execution) -> list[LayerCall]:
    """Calls by the largest share that they have in any step; in the last tenth of all steps, medoids first."""
    shares: dict[LayerCall, float] = {}
    head: set[LayerCall] = set()
    for step in steps:
        costs = {call: count * _nominal_s(call, execution) for call, count in step.items()}
        total, covered = sum(costs.values()), 0.0
        for call in sorted(costs, key=lambda call: -costs[call]):
            if covered < HEAD_SHARE:
                head.add(call)
            covered += costs[call] / total
            shares[call] = max(shares.get(call, 0.0), costs[call] / total)
    ranked = sorted(shares, key=lambda call: -shares[call])
    tail = [call for call in ranked if call not in head]
    return list(dict.fromkeys([*(call for call in ranked if call in head), *_medoids(tail, execution), *tail]))


def _medoids(calls: Sequence[LayerCall], execution: Execution) -> list[LayerCall]:
    """Of every family a share of its calls, those that stand for the others."""
    families: dict[object, list[LayerCall]] = defaultdict(list)
    for call in calls:
        families[family(call.layer, call.phase), call.phase].append(call)
    found: list[LayerCall] = []
    for members in families.values():
        count = len(members) // MEDOID_SHARE
        if count >= 2:
            work = features(members, execution)
            nominal_s = np.array([_nominal_s(call, execution) for call in members])
            chosen = choose_medoids(np.log2(work + 1.0), nominal_s, count)
            found += [members[row] for row in chosen]
    return found


def _nominal_s(call: LayerCall, execution: Execution) -> float:
    """Seconds on no device in particular: good enough to rank calls before anything is measured."""
    work = call.layer.work(call.phase, call.samples, execution)
    return 5e-6 + work.flop / 1e11 + work.bytes / 1e10


def _fitting(calls: Iterable[LayerCall], execution: Execution) -> list[LayerCall]:
    return list(chain.from_iterable(_shrunk(call, execution) for call in calls))


def _shrunk(call: LayerCall, execution: Execution) -> Iterator[LayerCall]:
    if call.phase is Phase.UPDATE:
        yield _shrunk_update(call, execution)
        return
    samples = call.samples
    while samples and bytes_held(LayerCall(call.layer, call.phase, samples), execution) > LARGEST_CASE_BYTES:
        samples //= 2
    if samples:
        yield LayerCall(call.layer, call.phase, samples)


def _shrunk_update(call: LayerCall, execution: Execution) -> LayerCall:
    while isinstance(call.layer, Parameters) and bytes_held(call, execution) > LARGEST_CASE_BYTES:
        call = LayerCall(call.layer.halved(), call.phase, call.samples)
    return call


def _in_turn(lists: Sequence[Sequence[LayerCall]]) -> list[LayerCall]:
    """The first of each list, then the second of each, and so on."""
    return [call for row in zip_longest(*lists) for call in row if call is not None]
