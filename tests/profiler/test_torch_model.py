"""A graph as a torch module: parameters, shapes, gradients; and real steps of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from oracle.errors import BadInput, OutOfMemory, OutOfRange  # noqa: E402
from oracle.execution import OPTIMIZERS, Execution  # noqa: E402
from oracle.layers import Attention, Elementwise, Embedding, Linear, Loss, Norm  # noqa: E402
from oracle.model import INPUT, GraphBuilder, ModelGraph  # noqa: E402
from oracle.operations import Matmul, Other  # noqa: E402
from oracle.windows import Conv, Pool  # noqa: E402
from profiler.backends.base import open_backend  # noqa: E402
from profiler.backends.cpu import Cpu  # noqa: E402
from profiler.backends.torch_device import sets_of_inputs  # noqa: E402
from profiler.steps.serial import StepSettings, TrainingStep, step_bytes, time_steps  # noqa: E402
from profiler.steps.subject import of_graph  # noqa: E402
from profiler.stopping import StoppingRule  # noqa: E402
from profiler.torch_model import GraphModule, random_batch  # noqa: E402

CPU = torch.device("cpu")
SAMPLES = 4
SETTINGS = StepSettings("run-1", StoppingRule(min_samples=3, max_samples=3))


def plain() -> ModelGraph:
    """AlexNet's parts: convolution, in-place relu, pooling, flattening, dropout, classifier."""
    build = GraphBuilder("plain", (3, 16, 16))
    build.add("conv", Conv.of((3, 16, 16), 8, 3, stride=2, padding=1))
    build.add("relu", Elementwise("relu", build.shape(), inplace=True))
    build.add("pool", Pool.of("max", build.shape(), 2))
    build.add("drop", Elementwise("dropout", build.shape()))
    build.add("classes", Linear(8 * 4 * 4, 5))
    build.add("loss", Loss("cross_entropy", (5,)))
    return build.graph()


def odd() -> ModelGraph:
    """What only traced models have: a product of activations, and operations without a kind."""
    build = GraphBuilder("odd", (4, 6))
    build.add("q", Linear(6, 6, rows=4))
    build.add("k", Linear(6, 6, rows=4), INPUT)
    build.add("scores", Matmul(1, 4, 6, 4), "q", "k")
    build.add("scaled", Other("div+pow", (16, 24), (3, 7), moved=80, backward_moved=80, weights=(5,)), "scores", "q")
    build.add("loss", Loss("mse", (3, 7)))
    return build.graph()


def residual(inplace: bool = True) -> ModelGraph:
    """ResNet's parts: the sum writes into the branch, and the relu before it is read twice."""
    build = GraphBuilder("residual", (4, 8, 8))
    build.add("stem", Conv.of((4, 8, 8), 6, 3, padding=1, bias=False))
    build.add("stem_norm", Norm("batch", build.shape()))
    build.add("stem_relu", Elementwise("relu", build.shape(), inplace))
    build.add("branch", Conv.of(build.shape(), 6, 3, padding=1, bias=False))
    build.add("branch_norm", Norm("batch", build.shape()))
    build.add("sum", Elementwise("add", build.shape(), inplace), "branch_norm", "stem_relu")
    build.add("sum_relu", Elementwise("relu", build.shape(), inplace))
    build.add("pool", Pool.of("avg", build.shape(), 8))
    build.add("classes", Linear(6, 5))
    build.add("loss", Loss("cross_entropy", (5,)))
    return build.graph()


def volume() -> ModelGraph:
    """CosmoFlow's parts: three axes and a regression without its loss."""
    build = GraphBuilder("volume", (2, 8, 8, 8))
    build.add("conv", Conv.of((2, 8, 8, 8), 4, 3, padding=1))
    build.add("pool", Pool.of("max", build.shape(), 2))
    build.add("up", Conv.of(build.shape(), 2, 2, stride=2, transposed=True))
    build.add("norm", Norm("instance", build.shape()))
    build.add("out", Linear(2 * 8 * 8 * 8, 4))
    return build.graph()


def tokens() -> ModelGraph:
    """A transformer's parts: heads are read from (tokens, width) as they lie."""
    build = GraphBuilder("tokens", (6,))
    build.add("table", Embedding(11, 8, 6))
    build.add("norm", Norm("layer", build.shape()))
    queries, keys, values = (build.add(name, Linear(8, 8, rows=6), "norm") for name in "qkv")
    build.add("attention", Attention(2, 6, 6, 4, causal=True), queries, keys, values)
    build.add("out", Linear(8, 8, rows=6))
    build.add("skip", Elementwise("add", (6, 8)), "out", "table")
    build.add("gelu", Elementwise("gelu", (6, 8)))
    build.add("words", Linear(8, 11, rows=6))
    build.add("loss", Loss("cross_entropy", (6, 11)))
    return build.graph()


def sequence() -> ModelGraph:
    """One axis; an in-place layer on the sample itself, and a product that is read twice."""
    build = GraphBuilder("sequence", (2, 9))
    build.add("first", Elementwise("relu", (2, 9), inplace=True))
    build.add("conv", Conv.of((2, 9), 4, 3, padding=1))
    build.add("pool", Pool.of("avg", build.shape(), 3))
    build.add("product", Elementwise("mul", build.shape()), "pool", "pool")
    build.add("norm", Norm("group", build.shape(), groups=2))
    build.add("loss", Loss("mse", build.shape()))
    return build.graph()


GRAPHS = [plain, residual, volume, tokens, sequence, odd]
every_graph = pytest.mark.parametrize("graph", [make() for make in GRAPHS], ids=lambda graph: graph.name)


def step_of(graph: ModelGraph, execution: Execution) -> TrainingStep:
    return TrainingStep(of_graph(graph, SAMPLES)(execution, CPU), execution, Cpu())


@every_graph
def test_a_module_has_the_graphs_parameters(graph: ModelGraph) -> None:
    module = GraphModule(graph)
    assert sum(param.numel() for param in module.parameters()) == graph.params
    for node, layer in zip(graph.nodes, module.layers, strict=True):
        assert tuple(tuple(param.shape) for param in layer.parameters()) == node.layer.param_shapes


@every_graph
def test_every_node_gives_the_shape_that_its_layer_says(graph: ModelGraph) -> None:
    module = GraphModule(graph)
    shapes = {}
    for node, layer in zip(graph.nodes, module.layers, strict=True):
        layer.register_forward_hook(lambda _, inputs, result, name=node.name: shapes.update({name: result.shape}))
    module(*random_batch(graph, SAMPLES, CPU))
    for node in graph.nodes:
        expected = () if isinstance(node.layer, Loss) else (SAMPLES, *node.layer.output_shape)
        assert tuple(shapes[node.name]) == expected, node.name


@every_graph
@pytest.mark.parametrize("memory_format", ["channels_first", "channels_last"])
def test_a_step_moves_every_parameter_and_steps_lower_the_loss(graph: ModelGraph, memory_format: str) -> None:
    torch.manual_seed(0)
    device = Cpu()
    step = step_of(graph, Execution(memory_format=memory_format))
    for group in step.optimizer.param_groups:
        group["lr"] = 0.002
    before = [param.detach().clone() for param in step.module.parameters()]
    step.run(device.stopwatch())
    names = [name for name, _ in step.module.named_parameters()]
    for name, old, new in zip(names, before, step.module.parameters(), strict=True):
        # A bias before a normalisation over the same values has no gradient but rounding errors.
        if not (graph.name in ("volume", "tokens") and name.endswith("bias")):
            assert not torch.equal(old, new), name
    first = step.loss().item()
    for _ in range(60):
        step.run(device.stopwatch())
    assert step.loss().item() < first


def test_running_in_place_does_not_change_the_gradients() -> None:
    torch.manual_seed(0)
    graph = residual(inplace=False)
    free, tight = GraphModule(graph), GraphModule(residual(inplace=True))
    tight.load_state_dict(free.state_dict())
    batch = random_batch(graph, SAMPLES, CPU)
    for module in (free, tight):
        module(*batch).backward()
    for one, other in zip(free.parameters(), tight.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_sample_is_never_overwritten() -> None:
    graph = sequence()
    sample, target = random_batch(graph, SAMPLES, CPU)
    before = sample.clone()
    GraphModule(graph)(sample, target)
    assert torch.equal(sample, before)


def test_channels_last_reaches_weights_and_sample() -> None:
    step = step_of(plain(), Execution(memory_format="channels_last"))
    assert step.subject.inputs[0].is_contiguous(memory_format=torch.channels_last)
    weight = next(step.module.parameters())
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_loss_without_a_target_is_refused() -> None:
    sample, _ = random_batch(plain(), SAMPLES, CPU)
    with pytest.raises(BadInput, match="'loss' needs a target"):
        GraphModule(plain())(sample)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_timed_by_phase_with_raw_samples(optimizer: str) -> None:
    times = time_steps(plain(), SAMPLES, Execution(optimizer=optimizer), open_backend("cpu"), SETTINGS)
    measurement = times.measurement
    assert (measurement.micro, measurement.phase, measurement.inner) == ("step", "step", 1)
    assert measurement.case == {"model": "plain", "samples": SAMPLES}
    assert measurement.execution == f"fp32/channels_first/{optimizer}"
    # Three samples end it, and a fourth had been enqueued by then.
    assert len(measurement.device_s) == len(measurement.host_s) == 4
    assert all(min(part) > 0 for part in times.laps_s)
    assert [sum(step) for step in zip(*times.laps_s, strict=True)] == list(measurement.device_s)


def test_mixed_precision_steps_keep_float32_weights() -> None:
    step = step_of(plain(), Execution("bf16"))
    step.run(Cpu().stopwatch())
    assert {param.dtype for param in step.module.parameters()} == {torch.float32}


def test_steps_that_cannot_be_are_refused_in_one_line() -> None:
    cpu = open_backend("cpu")
    with pytest.raises(OutOfRange, match="at least one sample, not 0"):
        time_steps(plain(), 0, Execution(), cpu, SETTINGS)
    with pytest.raises(BadInput, match="cpu device has no tf32"):
        time_steps(plain(), SAMPLES, Execution("tf32"), cpu, SETTINGS)
    with pytest.raises(OutOfMemory, match="a step of plain with 1000000000000 samples takes about"):
        time_steps(plain(), 10**12, Execution(), cpu, SETTINGS)


def test_the_least_memory_of_a_step_is_activations_and_three_copies_of_the_weights() -> None:
    build = GraphBuilder("tiny", (8,))
    build.add("out", Linear(8, 4, bias=False), INPUT)
    # 10 samples x 4 items x 4 bytes; 32 weights x (weight, gradient, momentum) x 4 bytes
    assert step_bytes(build.graph(), 10, Execution()) == 160 + 384


def test_inputs_rotate_through_more_memory_than_the_cache_holds_but_at_most_eight_sets() -> None:
    mib = 2.0**20
    assert [sets_of_inputs(size * mib, 64 * mib) for size in (1, 8, 20, 64, 500)] == [16, 8, 4, 1, 1]
