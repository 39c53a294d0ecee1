"""Profile a model: its layers in situ, beside the whole step."""

from __future__ import annotations

import resource
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Elementwise
from oracle.model import ModelGraph
from oracle.pricing import LayerCall
from oracle.updates import together
from profiler.backends.base import Backend
from profiler.backends.torch_device import Stopwatch, TorchDevice, torch_errors
from profiler.case import Case
from profiler.insitu.attribution import SUMS, Attribution, of_graph_module, of_traced
from profiler.insitu.observer import Observer, Operation
from profiler.measurement import Environment, Measurement
from profiler.precision import switched
from profiler.steps.serial import StepSettings, TrainingStep, device_for_steps, warm_up_steps
from profiler.steps.subject import Make
from profiler.stopping import StoppingRule, decide, flags
from profiler.tracing.kinds import sample_shape
from profiler.tracing.trace import Traced
from profiler.visit import now

IN_SITU = "in-situ"
"""The flag of measurements that were taken inside a step."""

UPDATE = "update"
"""What stands for all nodes that the optimizer updates."""

FRAMEWORK = "framework"
"""What of a step is in no operation: Python, autograd's engine, memory that is given back."""


@dataclass(frozen=True)
class Question:
    """What is profiled.

    Args:
        graph: the model; samples: in a step.
        make: builds what is trained.
        traced: of a module that is not the graph's own, its trace.
    """

    graph: ModelGraph
    samples: int
    make: Make
    traced: Traced | None = None


def ordinary(totals_s: Sequence[float]) -> list[int]:
    """The steps that make an ordinary one: the middle half by their total, over which parts are averaged.

    Medians of parts do not add up to the median of the whole: where something else has the core now and then, every
    step meets it, but no single layer in more than half of the steps. Means over the same steps add up, and the middle
    half leaves out the steps that met more than usual.

    >>> ordinary([5.0, 1.0, 2.0, 9.0, 3.0])
    [2, 4, 0]
    """
    order = sorted(range(len(totals_s)), key=totals_s.__getitem__)
    cut = len(order) // 4
    return order[cut : len(order) - cut]


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer in one phase: step by step, and in an ordinary step (see `ordinary`)."""

    node: str
    layer: Layer
    phase: Phase
    samples_s: tuple[float, ...]
    ordinary_s: float


@dataclass(frozen=True)
class Profile:
    """A model's step and its parts; samples are seconds, step by step.

    Args:
        graph, samples, execution: what was run.
        forward_s, backward_s, update_s: parts of undisturbed steps.
        times: layers and phases, in the order of the model.
        sums: gradients that are added up, by the shape of a sample.
        rest_s: what of an ordinary step is in no layer.
        peak_bytes: of the tensors of a step, or of the device's allocator.
        page_faults: of an undisturbed step, on CPUs.
        stopped: which rule ended it.
    """

    graph: ModelGraph
    samples: int
    execution: Execution
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    times: tuple[LayerTime, ...]
    sums: Mapping[LayerCall, tuple[float, ...]]
    rest_s: Mapping[str, float]
    peak_bytes: float
    page_faults: float | None
    stopped: str

    @property
    def parts_s(self) -> dict[str, float]:
        """An ordinary undisturbed step: forward, backward and update."""
        parts = {"forward": self.forward_s, "backward": self.backward_s, "update": self.update_s}
        chosen = ordinary(self.steps_s)
        return {name: statistics.fmean(seconds[step] for step in chosen) for name, seconds in parts.items()}

    @property
    def steps_s(self) -> tuple[float, ...]:
        """The undisturbed steps."""
        return tuple(map(sum, zip(self.forward_s, self.backward_s, self.update_s, strict=True)))

    @property
    def step_s(self) -> float:
        """An ordinary undisturbed step."""
        return sum(self.parts_s.values())

    @property
    def layers_s(self) -> float:
        """The sum of all layers and phases."""
        return sum(time.ordinary_s for time in self.times)

    def phase_s(self, phase: Phase) -> float:
        """The sum of all layers in a phase."""
        return sum(time.ordinary_s for time in self.times if time.phase is phase)


def profile(question: Question, execution: Execution, backend: Backend, settings: StepSettings) -> Profile:
    """Time the layers of a model inside real steps.

    Args:
        question: the model, its batch and how it is built.
        execution: how it is trained.
        backend: the device, one on which torch runs.
        settings: when to stop; the rule looks at the undisturbed steps.

    Raises:
        BadInput: the device runs no training steps, or the model's steps differ from one another.
        OutOfMemory: a step does not fit.
    """
    device = device_for_steps(question.graph, question.samples, execution, backend)
    with switched(execution, device.name), torch_errors(device.device):
        step = TrainingStep(question.make(execution, device.torch_device), execution, device)
        warm_up_steps(step, device)
        observer = Observer(step.module, step.optimizer)
        with observer.logging(device.stopwatch()):
            step.run(device.stopwatch(), observer.begins)
        steps = _alternate(step, observer, device, settings)
        tensors_bytes = sum(
            tensor.untyped_storage().nbytes()
            for tensor in (*step.module.parameters(), *step.module.buffers(), *step.subject.inputs)
        )
    held_bytes = tensors_bytes + 4.0 * question.graph.params * execution.optimizer_cost.states
    attribution = _attribution(question, observer.operations, step)
    return _summary(question, execution, _Logged(observer, attribution, held_bytes), steps)


def _attribution(question: Question, operations: Sequence[Operation], step: TrainingStep) -> Attribution:
    if question.traced is not None:
        return of_traced(question.traced, operations)
    names = [name for name, _ in step.module.named_parameters()]
    return of_graph_module(question.graph, operations, names)


@dataclass(frozen=True)
class _Logged:
    observer: Observer
    attribution: Attribution
    held_bytes: float


@dataclass
class _Steps:
    """Laps of undisturbed steps, seconds of the operations of observed ones, and what the system counted."""

    plain: list[list[float]]
    observed: list[list[float]]
    faults: list[int]
    peak_bytes: float = 0.0
    stopped: str = ""


def _alternate(step: TrainingStep, observer: Observer, device: TorchDevice, settings: StepSettings) -> _Steps:
    """Undisturbed and observed steps in turn; a pair's clocks are read when the next pair has been enqueued."""
    steps = _Steps([], [], [])
    waiting: list[tuple[Stopwatch, Stopwatch]] = []
    stopped: str | None = None
    on_cuda = device.name == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device.torch_device)
    while stopped is None:
        settings.progress(len(steps.plain), settings.rule.max_samples, "training steps")
        plain, observed = device.stopwatch(), device.stopwatch()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step.run(plain)
        steps.faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        with observer.timing(observed):
            step.run(device.stopwatch(), observer.begins)
        waiting.append((plain, observed))
        if len(waiting) > 1:
            stopped = _read(waiting.pop(0), steps, observer, settings.rule)
    _read(waiting.pop(), steps, observer, settings.rule)
    if on_cuda:
        steps.peak_bytes = float(torch.cuda.max_memory_allocated(device.torch_device))
    steps.stopped = stopped
    return steps


def _read(pair: tuple[Stopwatch, Stopwatch], steps: _Steps, observer: Observer, rule: StoppingRule) -> str | None:
    plain, observed = pair
    steps.plain.append(plain.laps_s())
    steps.observed.append(observer.seconds(observed))
    taken_s = [sum(laps) for laps in steps.plain]
    return decide(taken_s, 2 * sum(taken_s), rule)


def _summary(question: Question, execution: Execution, logged: _Logged, steps: _Steps) -> Profile:
    attribution, operations = logged.attribution, logged.observer.operations
    forward_s, backward_s, update_s = map(tuple, zip(*steps.plain, strict=True))
    spent = [_spent(attribution, operations, seconds, question.samples) for seconds in steps.observed]
    _share_out_update(attribution, [each.layers for each in spent], statistics.median(update_s))
    chosen = [spent[step] for step in ordinary([sum(seconds) for seconds in steps.observed])]
    found = Profile(
        graph=question.graph,
        samples=question.samples,
        execution=execution,
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=update_s,
        times=tuple(_times(question.graph, spent, chosen)),
        sums={call: tuple(each.sums[call] for each in spent) for call in spent[0].sums},
        rest_s={name: statistics.fmean(each.rest[name] for each in chosen) for name in spent[0].rest},
        peak_bytes=steps.peak_bytes or logged.held_bytes + logged.observer.peak_bytes,
        page_faults=None if steps.peak_bytes else float(statistics.median(steps.faults)),
        stopped=steps.stopped,
    )
    beside_s = found.step_s - found.layers_s - sum(found.rest_s.values())
    return replace(found, rest_s={**found.rest_s, FRAMEWORK: beside_s})


def _times(graph: ModelGraph, spent: Sequence[_Spent], chosen: Sequence[_Spent]) -> Iterator[LayerTime]:
    for node in graph.nodes:
        for phase in node.layer.phases:
            key = (node.name, phase)
            if key in spent[0].layers:
                samples_s = tuple(each.layers[key] for each in spent)
                yield LayerTime(
                    node.name, node.layer, phase, samples_s, statistics.fmean(e.layers[key] for e in chosen)
                )


@dataclass
class _Spent:
    layers: dict[tuple[str, Phase], float]
    rest: dict[str, float]
    sums: dict[LayerCall, float]


def _spent(attribution: Attribution, operations: Sequence[Operation], seconds: Sequence[float], samples: int) -> _Spent:
    """What each layer and phase took of one observed step, and what is in none."""
    spent = _Spent(defaultdict(float), defaultdict(float), {})
    sums: defaultdict[LayerCall, list[float]] = defaultdict(list)
    for index, (place, operation, second) in enumerate(zip(attribution.places, operations, seconds, strict=True)):
        if place is None:
            for node, share in attribution.updates[index].items():
                spent.layers[node, Phase.UPDATE] += share * second
        elif isinstance(place, tuple):
            spent.layers[place] += second
        else:
            spent.rest[place] += second
            if place == SUMS:
                layer = Elementwise("add", sample_shape(operation.shape, samples))
                sums[LayerCall(layer, Phase.FORWARD, samples)].append(second)
    spent.sums = {call: statistics.fmean(each) for call, each in sums.items()}
    return spent


def _share_out_update(
    attribution: Attribution, layers: Sequence[dict[tuple[str, Phase], float]], update_s: float
) -> None:
    """Add to every node's update what the undisturbed update takes beside its operations, by tensors."""
    total = sum(attribution.tensors.values())
    for each in layers:
        kernels_s = sum(seconds for (_, phase), seconds in each.items() if phase is Phase.UPDATE)
        beside_s = max(0.0, update_s - kernels_s)
        for node, count in attribution.tensors.items():
            each[node, Phase.UPDATE] += beside_s * count / total


def measurements_of(
    found: Profile, run_id: str, device: str, environment: Environment, rule: StoppingRule
) -> list[Measurement]:
    """One measurement for each distinct layer call: the mean over the nodes that make it, step by step.

    The update is one call with the tensors of all nodes, of undisturbed steps.
    """
    by_call: defaultdict[LayerCall, list[tuple[str, tuple[float, ...]]]] = defaultdict(list)
    updated = [node.layer for node in found.graph.nodes if Phase.UPDATE in node.layer.phases]
    if updated:
        by_call[LayerCall(together(updated), Phase.UPDATE, found.samples)].append((UPDATE, found.update_s))
    for time in found.times:
        if time.phase is Phase.UPDATE:
            continue
        by_call[LayerCall(time.layer, time.phase, found.samples)].append((time.node, time.samples_s))
    for call, samples_s in found.sums.items():
        by_call[call].append((SUMS, samples_s))
    return [
        _measurement(found, call, parts)(run_id, device, environment, rule)
        for call, parts in by_call.items()
        if all(min(samples_s) > 0 for _, samples_s in parts)
    ]


def _measurement(
    found: Profile, call: LayerCall, parts: Sequence[tuple[str, tuple[float, ...]]]
) -> Callable[[str, str, Environment, StoppingRule], Measurement]:
    means_s = tuple(map(statistics.fmean, zip(*(samples_s for _, samples_s in parts), strict=True)))
    case = Case(call, found.execution)
    nodes = {node: statistics.median(samples_s) for node, samples_s in parts}

    def make(run_id: str, device: str, environment: Environment, rule: StoppingRule) -> Measurement:
        return Measurement(
            micro="optimizer" if call.phase is Phase.UPDATE else call.layer.kind,
            case={**case.to_dict(), "model": found.graph.name, "nodes": nodes},
            phase=call.phase.value,
            execution=case.execution_key,
            device_s=means_s,
            host_s=means_s,
            inner=1,
            device=device,
            environment=environment,
            run_id=run_id,
            taken_at=now(),
            stopped=found.stopped,
            flags=(IN_SITU, *flags(means_s, rule)),
        )

    return make
