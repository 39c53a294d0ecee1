"""Layers inside real steps: every one is timed, none twice, and the step computes what it computed before."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from benchmarks import third_party  # noqa: E402
from oracle.errors import BadInput  # noqa: E402
from oracle.execution import Execution  # noqa: E402
from oracle.layer import Phase  # noqa: E402
from oracle.layers import Elementwise, Linear, Loss, Norm  # noqa: E402
from oracle.model import INPUT, GraphBuilder, ModelGraph  # noqa: E402
from oracle.plan import tasks_of  # noqa: E402
from oracle.pricing import LayerCall  # noqa: E402
from oracle.windows import Conv, Pool  # noqa: E402
from profiler.backends.base import open_backend  # noqa: E402
from profiler.backends.cpu import Cpu  # noqa: E402
from profiler.insitu.attribution import COPIES, SUMS  # noqa: E402
from profiler.insitu.observer import Observer  # noqa: E402
from profiler.insitu.profile import FRAMEWORK, IN_SITU, Profile, Question, measurements_of, profile  # noqa: E402
from profiler.measurement import Environment  # noqa: E402
from profiler.steps.serial import StepSettings, TrainingStep  # noqa: E402
from profiler.steps.subject import of_factory, of_graph  # noqa: E402
from profiler.stopping import StoppingRule  # noqa: E402
from profiler.tracing.factory import Factory  # noqa: E402
from profiler.tracing.trace import trace  # noqa: E402

SAMPLES = 4
RULE = StoppingRule(min_samples=3, max_samples=3)
SETTINGS = StepSettings("run-1", RULE)


def residual() -> ModelGraph:
    """A stem, a block with a sum in place and a skip, a classifier."""
    build = GraphBuilder("residual", (3, 8, 8))
    build.add("stem", Conv.of((3, 8, 8), 4, 3, padding=1))
    entry = build.add("stem_relu", Elementwise("relu", build.shape(), inplace=True))
    build.add("conv", Conv.of(build.shape(), 4, 3, padding=1, bias=False))
    build.add("norm", Norm("batch", build.shape()))
    build.add("sum", Elementwise("add", build.shape(), inplace=True), "norm", entry)
    build.add("relu", Elementwise("relu", build.shape(), inplace=True))
    build.add("pool", Pool.of("avg", build.shape(), 8))
    build.add("classes", Linear(4, 5))
    build.add("loss", Loss("cross_entropy", (5,)))
    return build.graph()


def profiled(graph: ModelGraph, execution: Execution = Execution()) -> Profile:
    return profile(Question(graph, SAMPLES, of_graph(graph, SAMPLES)), execution, open_backend("cpu"), SETTINGS)


def profiled_factory(make: Callable[[], Any], execution: Execution = Execution()) -> Profile:
    factory = Factory("nets.py:net", make)
    traced = trace(factory)
    question = Question(traced.graph, SAMPLES, of_factory(factory, traced.graph, SAMPLES), traced)
    return profile(question, execution, open_backend("cpu"), SETTINGS)


def expected(graph: ModelGraph) -> set[tuple[str, Phase]]:
    """What a step runs: all phases, but backward-data only where something trainable lies before."""
    return {
        (node.name, phase)
        for node in graph.nodes
        for phase in node.layer.phases
        if phase is not Phase.BACKWARD_DATA
        or graph.needs_data_gradient[node.name]
        or (node.layer.params and Phase.BACKWARD_WEIGHT not in node.layer.phases)
    }


@pytest.mark.parametrize("optimizer", ["sgd_momentum", "adam"])
@pytest.mark.parametrize("update", ["for_loop", "foreach"])
def test_every_layer_and_phase_of_a_graph_is_timed(optimizer: str, update: str) -> None:
    found = profiled(residual(), Execution(optimizer=optimizer, update=update))
    assert {(time.node, time.phase) for time in found.times} == expected(found.graph)
    assert ("stem", Phase.BACKWARD_DATA) not in expected(found.graph)
    assert all(min(time.samples_s) > 0 for time in found.times)


MODELS: dict[str, Callable[[], Any]] = {
    "resnet18": partial(third_party.resnet18, width=4, extent=32, samples=SAMPLES, classes=10),
    "unet": partial(third_party.unet, width=4, extent=16, samples=SAMPLES),
    "encoder": partial(third_party.encoder, width=64, depth=1, vocabulary=50, tokens=8, samples=SAMPLES),
    "decoder": partial(third_party.decoder, width=64, depth=1, vocabulary=50, tokens=8, samples=SAMPLES),
    "depthwise": third_party.depthwise,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_with_a_kind_of_any_module_is_timed(name: str) -> None:
    found = profiled_factory(MODELS[name])
    timed = {(time.node, time.phase) for time in found.times}
    kinds = {node.name: node.layer.kind for node in found.graph.nodes}
    missed = expected(found.graph) - timed
    # A gradient of other operations may be nothing but views, and then nothing runs.
    assert {(kinds[node], phase) for node, phase in missed} <= {("other", Phase.BACKWARD_DATA)}
    assert timed <= expected(found.graph) | {(node.name, Phase.BACKWARD_DATA) for node in found.graph.nodes}


def test_mixed_precision_is_lined_up_with_the_trace_though_it_casts() -> None:
    found = profiled_factory(MODELS["resnet18"], Execution("bf16"))
    assert {(time.node, time.phase) for time in found.times} == expected(found.graph)


def test_layers_rest_and_framework_add_up_to_the_step() -> None:
    found = profiled(residual())
    assert found.layers_s + sum(found.rest_s.values()) == pytest.approx(found.step_s)
    assert set(found.rest_s) >= {SUMS, COPIES, FRAMEWORK}
    assert found.step_s == pytest.approx(sum(found.parts_s.values()))


def test_gradients_that_meet_are_sums() -> None:
    # The relu after the stem is read by the convolution and by the sum: two gradients of 4 x 8 x 8 are added.
    found = profiled(residual())
    assert set(found.sums) == {LayerCall(Elementwise("add", (4, 8, 8)), Phase.FORWARD, SAMPLES)}
    asked = {(task.call.layer, task.call.phase) for task in tasks_of(found.graph, found.graph.nodes, SAMPLES)}
    assert (Elementwise("add", (4, 8, 8)), Phase.FORWARD) in asked


def test_an_observed_step_computes_the_same_gradients() -> None:
    torch.manual_seed(0)
    device, execution = Cpu(), Execution()
    step = TrainingStep(of_graph(residual(), SAMPLES)(execution, device.torch_device), execution, device)
    for group in step.optimizer.param_groups:
        group["lr"] = 0.0
    step.run(device.stopwatch())
    plain = [param.grad.clone() for param in step.module.parameters() if param.grad is not None]
    observer = Observer(step.module, step.optimizer)
    with observer.logging(device.stopwatch()):
        step.run(device.stopwatch(), observer.begins)
    for gradient, param in zip(plain, step.module.parameters(), strict=True):
        torch.testing.assert_close(param.grad, gradient)


def test_both_halves_of_a_convolutions_backward_are_timed_apart() -> None:
    device, execution = Cpu(), Execution()
    step = TrainingStep(of_graph(residual(), SAMPLES)(execution, device.torch_device), execution, device)
    step.run(device.stopwatch())
    observer = Observer(step.module, step.optimizer)
    with observer.logging(device.stopwatch()):
        step.run(device.stopwatch(), observer.begins)
    halves = Counter(operation.half for operation in observer.operations if operation.name == "convolution_backward")
    assert halves == {"data": 1, "weight": 2}  # the stem reads the sample


def test_there_is_a_measurement_for_each_distinct_call_with_the_mean_over_its_nodes() -> None:
    build = GraphBuilder("twins", (8,))
    build.add("entry", Linear(8, 8), INPUT)
    build.add("first", Linear(8, 8))
    build.add("second", Linear(8, 8))
    found = profiled(build.graph())
    measurements = measurements_of(found, "run-1", "a CPU", Environment({}, {}), RULE)
    by_phase = {item.phase: item for item in measurements}
    assert len(measurements) == len(by_phase) == 4
    assert set(by_phase["forward"].case["nodes"]) == {"entry", "first", "second"}
    assert set(by_phase["backward_data"].case["nodes"]) == {"first", "second"}
    times = {(time.node, time.phase): time.samples_s for time in found.times}
    wanted = [times[node, Phase.BACKWARD_DATA][0] for node in ("first", "second")]
    assert by_phase["backward_data"].device_s[0] == pytest.approx(math.fsum(wanted) / 2)
    assert all(IN_SITU in item.flags for item in measurements)
    update = by_phase["update"]
    assert update.micro == "optimizer"
    # One call with the tensors of all layers, whose weights and biases are alike; it took what the step says.
    assert update.case["layer"] == {"kind": "parameters", "tensors": ((64, 3), (8, 3))}
    assert update.device_s == found.update_s


def test_the_peak_is_at_least_weights_gradients_momentum_and_activations() -> None:
    build = GraphBuilder("wide", (64,))
    build.add("fc", Linear(64, 1000), INPUT)
    # 65,000 parameters in three copies, and results of 4 x 1000.
    assert profiled(build.graph()).peak_bytes >= 4 * (3 * 65_000 + 4 * 1000)


class Moody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.random = random.Random(0)

    def forward(self, x: Tensor) -> Any:
        for _ in range(self.random.randrange(1, 50)):
            x = torch.tanh(self.fc(x))
        return x


def test_steps_that_differ_are_refused() -> None:
    with pytest.raises(BadInput, match=r"the steps of this model differ: \d+ operations in one"):
        profiled_factory(lambda: (Moody(), torch.randn(SAMPLES, 8)))
