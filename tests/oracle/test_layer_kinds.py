"""Every kind of layer against torch itself (on the meta device: shapes and counts, no arithmetic), and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from oracle.errors import BadInput, OutOfRange
from oracle.execution import OPTIMIZERS, PRECISIONS, Execution
from oracle.layer import Layer, Phase, Shape
from oracle.layers import (
    ELEMENTWISE,
    LAYERS,
    LOSSES,
    NORMS,
    Attention,
    Concat,
    Elementwise,
    Embedding,
    Linear,
    Loss,
    Norm,
    layer_from_dict,
)
from oracle.loading import load_model
from oracle.operations import Matmul, Other
from oracle.windows import POOLS, Conv, Pool
from oracle.zoo import ZOO

SAMPLES = 2
COUNTED = (Conv, Linear, Attention, Matmul)
"""The kinds that torch's FlopCounterMode counts; it takes all others for free."""

reproducible = settings(derandomize=True, deadline=None, max_examples=100)


def numbers(rank: int, low: int, high: int) -> st.SearchStrategy[Shape]:
    return st.tuples(*[st.integers(low, high)] * rank)


@st.composite
def conv_options(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of a convolution, possible or not; one channel per group makes it depthwise."""
    rank, groups, transposed = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.booleans())
    return {
        "in_channels": groups * draw(st.integers(1, 3)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "extents": draw(numbers(rank, 3, 12)),
        "kernel": draw(numbers(rank, 1, 5)),
        "stride": draw(numbers(rank, 1, 3)),
        "padding": draw(numbers(rank, 0, 3)),
        "dilation": draw(numbers(rank, 1, 3)),
        "groups": groups,
        "bias": draw(st.booleans()),
        "transposed": transposed,
        "output_padding": draw(numbers(rank, 0, 2)) if transposed else (),
    }


@st.composite
def pool_options(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of a pooling, possible or not."""
    rank, op = draw(st.integers(1, 3)), draw(st.sampled_from(POOLS))
    # torch's avg_pool3d alone wants extents as large as the kernel before padding.
    smallest = 5 if rank == 3 and op == "avg" else 1
    return {
        "op": op,
        "shape": (draw(st.integers(1, 6)), *draw(numbers(rank, smallest, 12))),
        "kernel": draw(numbers(rank, 1, 5)),
        "stride": draw(numbers(rank, 1, 4)),
        "padding": draw(numbers(rank, 0, 2)),
        "ceil_mode": draw(st.booleans()),
    }


@st.composite
def possible(draw: st.DrawFn, kind: type[Layer], options: st.SearchStrategy[dict[str, Any]]) -> Any:
    """Layers of a kind, without the options that it refuses."""
    try:
        return kind(**draw(options))
    except OutOfRange:
        reject()


@st.composite
def norms(draw: st.DrawFn) -> Norm:
    op, groups = draw(st.sampled_from(NORMS)), draw(st.integers(1, 3))
    rank = draw(st.integers(0 if op in ("batch", "layer") else 1, 3))
    shape = (groups * draw(st.integers(1, 4)), *draw(numbers(rank, 2, 6)))
    return Norm(op, shape, groups if op == "group" else 1, draw(st.booleans()))


SIZES = st.integers(1, 40)
SHAPES = st.integers(1, 4).flatmap(lambda rank: numbers(rank, 1, 6))
CONVOLUTIONS = possible(Conv, conv_options())
OTHER_KINDS: dict[type[Layer], st.SearchStrategy[Any]] = {
    Linear: st.builds(Linear, SIZES, SIZES, st.integers(1, 5), st.booleans()),
    Norm: norms(),
    Pool: possible(Pool, pool_options()),
    Elementwise: st.builds(Elementwise, st.sampled_from(sorted(ELEMENTWISE)), SHAPES, st.booleans()),
    Concat: st.builds(Concat, st.lists(SIZES, min_size=2, max_size=4).map(tuple), numbers(2, 1, 6)),
    Embedding: st.builds(Embedding, SIZES, SIZES, SIZES),
    Attention: st.builds(Attention, st.integers(1, 4), SIZES, SIZES, st.sampled_from((8, 16, 64)), st.booleans()),
    Matmul: st.builds(Matmul, st.integers(1, 4), SIZES, SIZES, SIZES),
    Loss: st.builds(Loss, st.sampled_from(LOSSES), SIZES.map(lambda classes: (classes,))),
    Other: st.builds(Other, st.just("copy"), SIZES.map(lambda n: (n,)), SHAPES, SIZES, SIZES),
}
ANY_LAYER = st.one_of(CONVOLUTIONS, *OTHER_KINDS.values())


def conv_twin(torch: Any, layer: Conv) -> Any:
    cls = getattr(torch.nn, f"Conv{'Transpose' if layer.transposed else ''}{len(layer.extents)}d")
    options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups", "bias")}
    if layer.transposed:
        options["output_padding"] = layer.output_padding
    return cls(layer.in_channels, layer.out_channels, layer.kernel, **options)


def norm_twin(torch: Any, layer: Norm) -> Any:
    rank = max(1, len(layer.shape) - 1)
    if layer.op == "layer":
        return torch.nn.LayerNorm(layer.shape[-1], elementwise_affine=layer.affine)
    if layer.op == "group":
        return torch.nn.GroupNorm(layer.groups, layer.shape[0], affine=layer.affine)
    return getattr(torch.nn, f"{layer.op.title()}Norm{rank}d")(layer.shape[0], affine=layer.affine)


def pool_twin(torch: Any, layer: Pool) -> Any:
    cls = getattr(torch.nn, f"{layer.op.title()}Pool{len(layer.kernel)}d")
    return cls(layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)


def elementwise_twin(torch: Any, layer: Elementwise) -> Any:
    nn = torch.nn
    twins = {
        "relu": nn.ReLU(inplace=layer.inplace),
        "sigmoid": nn.Sigmoid(),
        "tanh": nn.Tanh(),
        "silu": nn.SiLU(inplace=layer.inplace),
        "gelu": nn.GELU(),
        "dropout": nn.Dropout(inplace=layer.inplace),
        "softmax": nn.Softmax(-1),
        "add": torch.add,
        "mul": torch.mul,
    }
    return twins[layer.op]


def attention_twin(torch: Any, layer: Attention) -> Any:
    # The fused kernel, whose backward pass computes the scores again; named, because torch chooses another on a CPU.
    return lambda *qkv: torch.ops.aten._scaled_dot_product_flash_attention(*qkv, 0.0, layer.causal)[0]


def loss_twin(torch: Any, layer: Loss) -> Any:
    # The scalar of each sample; its mean over the batch is no layer's work.
    if layer.op == "mse":
        return lambda y: torch.nn.functional.mse_loss(y, torch.empty_like(y), reduction="none").mean(-1, keepdim=True)
    classes = torch.empty(SAMPLES, dtype=torch.long)
    return lambda y: torch.nn.functional.cross_entropy(y, classes, reduction="none")[:, None]


def other_twin(torch: Any, layer: Other) -> Any:
    # Any operation that gives the shape from the operand.
    return lambda x: x.sum(-1).reshape(-1, *(1 for _ in layer.shape)).expand(-1, *layer.shape)


TWINS: dict[type[Layer], Callable[[Any, Any], Any]] = {
    Conv: conv_twin,
    Linear: lambda torch, layer: torch.nn.Linear(layer.in_features, layer.out_features, layer.bias),
    Norm: norm_twin,
    Pool: pool_twin,
    Elementwise: elementwise_twin,
    Concat: lambda torch, layer: lambda *tensors: torch.cat(tensors, 1),
    Embedding: lambda torch, layer: torch.nn.Embedding(layer.vocabulary, layer.width),
    Attention: attention_twin,
    Matmul: lambda torch, layer: torch.matmul,
    Loss: loss_twin,
    Other: other_twin,
}
"""What torch runs for each kind of layer."""


def torch_flop(layer: Layer, phase: Phase) -> int:
    """Run one phase on the meta device; check all shapes on the way and return what torch counts."""
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    with torch.device("meta"):
        twin = TWINS[type(layer)](torch, layer)
        dtype = torch.long if isinstance(layer, Embedding) else torch.float32
        operands = [torch.empty((SAMPLES, *shape), dtype=dtype) for shape in layer.input_shapes]
    weights = list(twin.parameters()) if isinstance(twin, torch.nn.Module) else []
    assert tuple(tuple(weight.shape) for weight in weights) == layer.param_shapes
    targets = operands if phase is Phase.BACKWARD_DATA else weights if phase is Phase.BACKWARD_WEIGHT else []
    for tensor in [*operands, *weights]:
        tensor.requires_grad_(any(tensor is target for target in targets))
    with counter(display=False) as forward:
        result = twin(*[operand.clone() for operand in operands])  # in-place layers may not write to a leaf
    assert tuple(result.shape) == (SAMPLES, *layer.output_shape)
    if phase is Phase.FORWARD:
        return int(forward.get_total_flops())
    with counter(display=False) as backward:
        gradients = torch.autograd.grad(result, targets, torch.empty_like(result))
    assert [gradient.shape for gradient in gradients] == [target.shape for target in targets]
    return int(backward.get_total_flops())


def agrees_with_torch(layer: Layer) -> None:
    for phase in layer.phases:
        if phase is Phase.UPDATE:
            continue
        counted = torch_flop(layer, phase)
        ours = layer.work(phase, SAMPLES).flop
        if not isinstance(layer, COUNTED):
            assert counted == 0 < ours
        elif isinstance(layer, Conv) and layer.groups > 1 and phase is Phase.BACKWARD_WEIGHT:
            # torch (2.13) counts every output channel against every input channel here, `groups` times too many;
            # groups share nothing, so that they do `groups` times the work of one.
            assert counted == layer.groups * ours
            assert layer.groups * torch_flop(one_group(layer), phase) == ours
        else:
            assert counted == ours


def one_group(layer: Conv) -> Conv:
    first, second = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    return dataclasses.replace(layer, in_channels=first, out_channels=second, groups=1)


def test_every_kind_of_layer_is_compared_with_torch() -> None:
    assert set(TWINS) == {Conv, *OTHER_KINDS} == set(LAYERS.values())


@pytest.mark.parametrize("name", ZOO)
def test_every_layer_of_the_zoo_equals_torch_in_shapes_flop_and_parameters(name: str) -> None:
    for layer in dict.fromkeys(node.layer for node in load_model(name).nodes):
        agrees_with_torch(layer)


@settings(reproducible, max_examples=200)
@given(CONVOLUTIONS)
def test_random_convolutions_equal_torch_in_shapes_flop_and_parameters(layer: Conv) -> None:
    agrees_with_torch(layer)


@pytest.mark.parametrize("kind", OTHER_KINDS, ids=lambda kind: kind.kind)
@reproducible
@given(st.data())
def test_random_layers_of_other_kinds_equal_torch(kind: type[Layer], data: st.DataObject) -> None:
    agrees_with_torch(data.draw(OTHER_KINDS[kind]))


@pytest.mark.parametrize(("kind", "options"), [(Conv, conv_options()), (Pool, pool_options())])
@reproducible
@given(st.data())
def test_a_window_is_refused_only_where_torch_refuses_it(
    kind: type[Layer], options: st.SearchStrategy[dict[str, Any]], data: st.DataObject
) -> None:
    torch = pytest.importorskip("torch")
    values = data.draw(options)
    try:
        kind(**values)
    except OutOfRange:
        # A layer that was never checked, so that torch may judge it.
        layer = object.__new__(kind)
        vars(layer).update(values)
        shape = values["shape"] if kind is Pool else (values["in_channels"], *values["extents"])
        with pytest.raises((RuntimeError, ValueError)):
            TWINS[kind](torch, layer)(torch.zeros(SAMPLES, *shape))


@settings(reproducible, max_examples=300)
@given(ANY_LAYER, st.sampled_from(sorted(PRECISIONS)), st.sampled_from(sorted(OPTIMIZERS)), st.integers(1, 3))
def test_no_phase_is_without_work(layer: Layer, precision: str, optimizer: str, samples: int) -> None:
    execution = Execution(precision=precision, optimizer=optimizer)
    for phase in layer.phases:
        work = layer.work(phase, samples, execution)
        assert work.flop > 0
        assert work.bytes > 0


@settings(reproducible, max_examples=200)
@given(ANY_LAYER, st.integers(3, 5000))
def test_work_is_a_straight_line_in_the_samples(layer: Layer, samples: int) -> None:
    # What prices layers over many batches at once (`CalibratedTimer.over_samples`) rests on it.
    for phase in layer.phases:
        one, two, many = (layer.work(phase, count) for count in (1, 2, samples))
        assert many.flop == pytest.approx(one.flop + (samples - 1) * (two.flop - one.flop), rel=1e-12)
        assert many.bytes == pytest.approx(one.bytes + (samples - 1) * (two.bytes - one.bytes), rel=1e-12)


def test_work_of_a_convolution_by_hand() -> None:
    layer = Conv.of((2, 4, 4), 3, 3, padding=1)
    # two samples: x 2*32, y 2*48, weights 3*2*9 = 54, biases 3; each weight at 16 positions
    flop = 2 * 2 * 54 * 16
    forward, data = layer.work(Phase.FORWARD, 2), layer.work(Phase.BACKWARD_DATA, 2)
    assert (forward.flop, forward.bytes) == (flop, 4 * (64 + 96 + 54 + 3))
    assert (data.flop, data.bytes) == (flop, 4 * (64 + 96 + 54))
    assert layer.work(Phase.FORWARD, 2, Execution(precision="bf16")).bytes == forward.bytes / 2
    # SGD with momentum reads weight, gradient and momentum, and writes weight and momentum, of 57 parameters
    assert layer.work(Phase.UPDATE, 2).bytes == 4 * 5 * 57


def test_a_product_of_activations_by_hand() -> None:
    layer = Matmul(batch=3, rows=4, inner=5, columns=6)
    # per sample 3 products of 4 x 5 by 5 x 6: 2 * 3 * 4 * 5 * 6 = 720; reads 60 + 90, writes 72
    forward, backward = layer.work(Phase.FORWARD, 2), layer.work(Phase.BACKWARD_DATA, 2)
    assert (forward.flop, forward.bytes) == (2 * 720, 2 * 4 * (60 + 90 + 72))
    # two products of that size: read the gradient and both operands, write two gradients
    assert (backward.flop, backward.bytes) == (2 * 1440, 2 * 4 * (72 + 2 * (60 + 90)))
    assert layer.params == 0


def test_other_operations_cost_what_they_move_and_update_their_weights() -> None:
    layer = Other("pow+mean", (10,), (10,), moved=40, backward_moved=70, flop=5, backward_flop=500, weights=(10, 2))
    assert layer.phases == (Phase.FORWARD, Phase.BACKWARD_DATA, Phase.UPDATE)
    assert layer.params == 12
    assert (layer.work(Phase.FORWARD, 3).flop, layer.work(Phase.FORWARD, 3).bytes) == (3 * 40, 3 * 4 * 40)
    assert (layer.work(Phase.BACKWARD_DATA, 3).flop, layer.work(Phase.BACKWARD_DATA, 3).bytes) == (1500, 840)


def test_a_view_runs_nothing() -> None:
    assert Other("view", (10,), (5,)).phases == ()


TIED = [
    (Linear(6, 4, rows=3), (4,)),
    (Conv.of((6, 8, 8), 4, 3), (4,)),
    (Embedding(11, 6, 5), None),
    (Linear(6, 4, bias=False), None),
]


@pytest.mark.parametrize(("layer", "bias"), TIED, ids=str)
def test_tied_weights_are_computed_with_but_neither_held_nor_updated(layer: Any, bias: Shape | None) -> None:
    tied = dataclasses.replace(layer, tied=True)
    assert tied.param_shapes == (() if bias is None else (bias,))
    assert set(layer.phases) - set(tied.phases) == (set() if bias else {Phase.UPDATE})
    for phase in (Phase.FORWARD, Phase.BACKWARD_WEIGHT):
        assert tied.work(phase, 2) == layer.work(phase, 2)


def test_work_is_refused_without_samples_and_in_a_phase_the_layer_lacks() -> None:
    with pytest.raises(OutOfRange, match="at least one sample, not 0"):
        Linear(2, 3).work(Phase.FORWARD, 0)
    with pytest.raises(OutOfRange, match="no update phase; it has forward, backward_data"):
        Elementwise("relu", (4,)).work(Phase.UPDATE, 1)


@settings(reproducible, max_examples=300)
@given(ANY_LAYER)
def test_a_layer_survives_json(layer: Layer) -> None:
    assert layer_from_dict(json.loads(json.dumps(layer.to_dict()))) == layer


BAD_LAYERS: dict[str, dict[str, Any]] = {
    "unknown kind": {"kind": "convolution"},
    "no kind": {"in_features": 3, "out_features": 4},
    "kind of a wrong type": {"kind": ["linear"]},
    "kind of two lines": {"kind": "linear\nlinear"},
    "missing field": {"kind": "linear", "in_features": 3},
    "unknown field": {"kind": "linear", "in_features": 3, "out_features": 4, "width": 1},
    "NaN": {"kind": "linear", "in_features": float("nan"), "out_features": 4},
    "a fraction": {"kind": "linear", "in_features": 3.0, "out_features": 4},
    "a bool for a number": {"kind": "linear", "in_features": True, "out_features": 4},
    "a number for a bool": {"kind": "linear", "in_features": 3, "out_features": 4, "bias": 1},
    "zero": {"kind": "linear", "in_features": 0, "out_features": 4},
    "a number beyond all models": {"kind": "linear", "in_features": 10**400, "out_features": 4},
    "a shape beyond all models": {"kind": "elementwise", "op": "relu", "shape": [2] * 2000},
    "a text for a shape": {"kind": "elementwise", "op": "relu", "shape": "64"},
    "a product beyond all models": {"kind": "elementwise", "op": "relu", "shape": [2**40] * 9},
    "a nested shape": {"kind": "elementwise", "op": "relu", "shape": [[3], 4]},
    "an unknown operation": {"kind": "elementwise", "op": "rule", "shape": [3]},
    "a negative padding": {**Conv.of((3, 8, 8), 4, 3).to_dict(), "padding": [-1, 0]},
    "a rank too few": {**Conv.of((3, 8, 8), 4, 3).to_dict(), "kernel": [3]},
    "groups that do not divide": {**Conv.of((3, 8, 8), 4, 3).to_dict(), "groups": 2},
    "output padding of a plain convolution": {**Conv.of((3, 8, 8), 4, 3).to_dict(), "output_padding": [1, 1]},
    "a lone tensor to join": {"kind": "concat", "channels": [3], "extents": [4, 4]},
    "no room": {**Conv.of((3, 8, 8), 4, 3).to_dict(), "kernel": [9, 9]},
}


@pytest.mark.parametrize("values", BAD_LAYERS.values(), ids=list(BAD_LAYERS))
def test_a_bad_layer_is_refused_in_one_short_line(values: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        layer_from_dict(values)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
