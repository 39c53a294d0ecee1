"""Every microbenchmark's closure computes what torch's autograd computes from the same tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.func import functional_call  # noqa: E402

from oracle.errors import BadInput  # noqa: E402
from oracle.execution import OPTIMIZERS, UPDATES, Execution  # noqa: E402
from oracle.layer import Layer, Phase  # noqa: E402
from oracle.layers import (  # noqa: E402
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
)
from oracle.operations import Matmul, Other  # noqa: E402
from oracle.pricing import LayerCall  # noqa: E402
from oracle.updates import together  # noqa: E402
from oracle.windows import POOLS, Conv, Pool  # noqa: E402
from profiler.backends.cpu import CpuKernel, open_cpu  # noqa: E402
from profiler.case import Case  # noqa: E402
from profiler.micro import MICROS  # noqa: E402
from profiler.micro.base import Builder, Prepared, find_micro  # noqa: E402
from profiler.precision import switched  # noqa: E402
from profiler.torch_model import module_of  # noqa: E402

SAMPLES = 3

CONVOLUTIONS = [
    Conv.of((4, 9), 6, 3, stride=2, padding=1),
    Conv.of((4, 9, 8), 6, 3, padding=1, bias=False),
    Conv.of((4, 9, 8), 6, (3, 1), stride=(2, 1), dilation=(1, 2), groups=2),
    Conv.of((4, 9, 8), 4, 3, groups=4),
    Conv.of((4, 5, 6, 7), 2, 3, padding=1),
    Conv.of((4, 9), 6, 3, stride=2, transposed=True, output_padding=1),
    Conv.of((4, 5, 6), 6, 3, stride=2, padding=1, transposed=True, output_padding=1, groups=2),
    Conv.of((4, 3, 4, 3), 2, 2, stride=2, transposed=True, bias=False),
]
POOLINGS = [
    Pool.of(op, shape, kernel, **options)
    for op in POOLS
    for shape, kernel, options in (
        ((4, 9), 3, {"stride": 2, "padding": 1}),
        ((4, 9, 8), 3, {"stride": 2, "padding": 1}),
        ((4, 9, 8), (2, 3), {"ceil_mode": True}),
        ((4, 6, 5, 7), 2, {}),
    )
]
NORMALISATIONS = [
    Norm(op, shape, groups=2 if op == "group" else 1, affine=affine)
    for op in NORMS
    for shape in ((4, 9, 8), (4, 5, 6, 3), (4, 6))
    for affine in (True, False)
]
LINEARS = [Linear(7, 5), Linear(7, 5, rows=4), Linear(7, 5, bias=False)]
ELEMENTS = [
    Elementwise(op, shape, inplace) for op in ELEMENTWISE for shape in ((4, 9, 8), (7,)) for inplace in (False, True)
]
OTHERS = [
    Concat((3, 4), (5, 6)),
    Concat((2, 3, 1)),
    Embedding(11, 6, 5),
    Attention(2, 5, 7, 4),
    Attention(2, 5, 5, 4, causal=True),
    *(Loss(op, shape) for op in LOSSES for shape in ((7,), (4, 7))),
]
OTHERS.append(Matmul(2, 5, 7, 4))
ALL = [*CONVOLUTIONS, *POOLINGS, *NORMALISATIONS, *LINEARS, *ELEMENTS, *OTHERS]
STAND_IN = Other("pow", (9,), (3, 3), moved=18, backward_moved=27, weights=(9,))
EXECUTIONS = [Execution(), Execution(memory_format="channels_last")]


def prepared(layer: Layer, phase: Phase, execution: Execution = Execution()) -> Prepared:
    call = LayerCall(layer, phase, SAMPLES)
    return find_micro(call)[1](Builder(call, execution, torch.device("cpu")))


def results(prepared: Prepared) -> list[Tensor]:
    """What the closure returns, without the gradients that it masks out."""
    result = prepared.run()
    items = (result,) if isinstance(result, Tensor) else result
    return [item.detach() for item in items if item is not None and item.numel()]


def reference(layer: Layer, inputs: tuple[Tensor, ...], params: tuple[Tensor, ...]) -> Tensor:
    """The layer's result by torch's own module, on the given tensors."""
    module = module_of(layer)
    names = [name for name, _ in module.named_parameters()]
    result = functional_call(module, dict(zip(names, params, strict=True)), inputs)
    assert isinstance(result, Tensor)
    return result


def leaves(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies on which autograd can start; indices as they are."""
    return tuple(t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in tensors)


def test_every_layer_kind_is_tried_and_has_a_microbenchmark() -> None:
    assert {layer.kind for layer in [*ALL, STAND_IN]} == set(LAYERS) == set(MICROS) - {"optimizer"}


@pytest.mark.parametrize("execution", EXECUTIONS, ids=lambda e: e.memory_format)
@pytest.mark.parametrize("layer", [layer for layer in ALL if "dropout" not in layer.to_dict().values()], ids=repr)
def test_forward_returns_the_layer_of_its_inputs(layer: Layer, execution: Execution) -> None:
    case = prepared(layer, Phase.FORWARD, execution)
    inputs = leaves(case.inputs)
    if isinstance(layer, Elementwise) and layer.inplace:
        inputs = tuple(x.detach() for x in inputs)  # autograd refuses to overwrite a leaf
    expected = reference(layer, inputs, leaves(case.params)).detach()
    (result,) = results(case)
    torch.testing.assert_close(result, expected)
    if not isinstance(layer, Loss):
        assert result.shape == (SAMPLES, *layer.output_shape)


BACKWARD = [
    (layer, phase)
    for layer in ALL
    for phase in layer.phases
    if phase in (Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT) and "dropout" not in layer.to_dict().values()
]


@pytest.mark.parametrize("execution", EXECUTIONS, ids=lambda e: e.memory_format)
@pytest.mark.parametrize(("layer", "phase"), BACKWARD, ids=repr)
def test_backward_returns_the_gradients_that_autograd_gives(layer: Layer, phase: Phase, execution: Execution) -> None:
    case = prepared(layer, phase, execution)
    inputs, params = leaves(case.inputs), leaves(case.params)
    wanted = params if phase is Phase.BACKWARD_WEIGHT else (*inputs, *params) if layer.kind == "norm" else inputs
    if layer.kind == "loss":
        wanted = inputs[:1]  # not the target
    out_of_place = replace(layer, inplace=False) if isinstance(layer, Elementwise) else layer
    expected = torch.autograd.grad(reference(out_of_place, inputs, params), wanted, case.gradient)
    found = results(case)
    assert len(found) == len(expected)
    for result, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(result, gradient, rtol=1e-4, atol=1e-4)


def test_what_has_no_kind_is_stood_in_for_by_a_copy_of_as_many_bytes() -> None:
    # 18 items moved a sample are 9 read and 9 written; 27 are 14 each, rounded up.
    for phase, items in ((Phase.FORWARD, 9), (Phase.BACKWARD_DATA, 14)):
        (copied,) = results(prepared(STAND_IN, phase))
        assert copied.shape == (SAMPLES, items)


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_clears_half_and_doubles_the_rest(inplace: bool) -> None:
    layer = Elementwise("dropout", (50, 50), inplace)
    forward = prepared(layer, Phase.FORWARD)
    backward = prepared(layer, Phase.BACKWARD_DATA)
    assert backward.gradient is not None
    for case, source in ((forward, forward.inputs[0]), (backward, backward.gradient)):
        (result,) = results(case)
        kept = result != 0
        torch.testing.assert_close(result[kept], 2 * source.detach()[kept])
        # 7,500 items: five standard deviations of the kept share are 5 * 0.5 / sqrt(7500) = 0.029.
        assert abs(kept.float().mean().item() - 0.5) < 0.03


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_update_is_the_optimizers_third_step_under_a_constant_gradient(name: str) -> None:
    case = prepared(Linear(7, 5), Phase.UPDATE, Execution(optimizer=name))
    before = [param.detach().clone() for param in case.params]
    rate = 1e-4
    for param, old, new in zip(case.params, before, results(case), strict=True):
        assert param.grad is not None
        # momentum: 1 + 0.9 + 0.81 gradients; adam with constant gradients: m / sqrt(v) = sign; adamw decays by 0.01
        moved = {"sgd": param.grad, "sgd_momentum": 2.71 * param.grad}.get(name, param.grad.sign())
        decayed = old * (1 - rate * 0.01) if name == "adamw" else old
        torch.testing.assert_close(new, decayed - rate * moved, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_repeating_an_operation_in_place_never_yields_denormal_or_infinite_numbers(op: str) -> None:
    case = prepared(Elementwise(op, (64,), inplace=True), Phase.FORWARD)
    for _ in range(500):
        (result,) = results(case)
    assert torch.isfinite(result).all()
    assert ((result == 0) | (result.abs() > torch.finfo(torch.float32).tiny)).all()


def test_forward_of_a_batch_normalisation_leaves_a_graph_as_in_training() -> None:
    result = prepared(Norm("batch", (4, 9, 8)), Phase.FORWARD).run()
    assert isinstance(result, Tensor)
    assert result.requires_grad


def test_channels_last_reaches_inputs_weights_and_gradients() -> None:
    case = prepared(CONVOLUTIONS[1], Phase.BACKWARD_WEIGHT, Execution(memory_format="channels_last"))
    assert case.gradient is not None
    for tensor in (case.inputs[0], case.params[0], case.gradient):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layer", [CONVOLUTIONS[1], LINEARS[0], POOLINGS[1], NORMALISATIONS[0], ELEMENTS[0]], ids=repr)
def test_mixed_precision_keeps_parameters_of_updates_and_norms_in_float32(layer: Layer) -> None:
    execution = Execution("bf16")
    case = prepared(layer, Phase.FORWARD, execution)
    (result,) = results(case)
    assert result.dtype == case.inputs[0].dtype == torch.bfloat16
    if layer.kind == "norm":
        assert case.params[0].dtype == torch.float32
    if layer.params:
        assert prepared(layer, Phase.UPDATE, execution).params[0].dtype == torch.float32


def test_a_phase_that_a_layer_does_not_have_is_refused() -> None:
    with pytest.raises(BadInput, match="a pool layer has no update phase; it has forward, backward_data"):
        prepared(POOLINGS[0], Phase.UPDATE)


def test_a_normalisation_over_a_single_value_is_refused() -> None:
    with pytest.raises(BadInput, match="one value per channel"):
        prepared(Norm("instance", (4,)), Phase.FORWARD)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_implementation_of_an_update_computes_the_same(name: str, update: str) -> None:
    torch.manual_seed(0)
    plain = prepared(Linear(7, 5), Phase.UPDATE, Execution(optimizer=name))
    torch.manual_seed(0)
    other = prepared(Linear(7, 5), Phase.UPDATE, Execution(optimizer=name, update=update))
    for expected, found in zip(results(plain), results(other), strict=True):
        torch.testing.assert_close(found, expected)


def test_tensors_of_a_model_are_updated_in_one_step() -> None:
    layers = [Linear(7, 5), Norm("batch", (4, 9, 8)), Linear(5, 5, bias=False)]
    case = prepared(together(layers), Phase.UPDATE)
    before = [param.detach().clone() for param in case.params]
    assert [param.numel() for param in case.params] == [35, 25, 5, 4, 4]
    for old, new in zip(before, results(case), strict=True):
        assert not torch.equal(old, new)


@pytest.mark.parametrize("attention", ["math", "flash"])
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD_DATA])
def test_implementations_of_attention_agree(attention: str, phase: Phase) -> None:
    layer = Attention(2, 16, 16, 8, causal=True)
    torch.manual_seed(0)
    expected = results(prepared(layer, phase))
    torch.manual_seed(0)
    with switched(Execution(attention=attention), "cpu"):
        found = results(prepared(layer, phase))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_implementation_that_the_device_lacks_is_refused_in_one_line() -> None:
    case = Case(LayerCall(Attention(2, 16, 16, 8), Phase.FORWARD, 2), Execution(attention="cudnn"))
    with pytest.raises(BadInput, match="cannot run this"), open_cpu().open(case) as kernel:
        kernel.sample(1)
    graph = Case(LayerCall(Linear(4, 4), Phase.FORWARD, 2), Execution(graph=True))
    with pytest.raises(BadInput, match="no CUDA graphs"), open_cpu().open(graph):
        pass


@pytest.mark.parametrize("layer", [CONVOLUTIONS[1], CONVOLUTIONS[5], *LINEARS], ids=repr)
def test_autocast_times_the_casts_of_float32_weights(layer: Layer) -> None:
    forward = prepared(layer, Phase.FORWARD, Execution("bf16", autocast=True))
    (result,) = results(forward)
    assert forward.params[0].dtype == torch.float32
    assert forward.inputs[0].dtype == result.dtype == torch.bfloat16
    weight_gradients = results(prepared(layer, Phase.BACKWARD_WEIGHT, Execution("bf16", autocast=True)))
    assert {gradient.dtype for gradient in weight_gradients} == {torch.float32}
    (of_input,) = results(prepared(layer, Phase.BACKWARD_DATA, Execution("bf16", autocast=True)))
    assert of_input.dtype == torch.bfloat16


def test_a_warm_case_runs_on_one_set_of_inputs() -> None:
    call = LayerCall(Elementwise("relu", (64,)), Phase.FORWARD, 2)
    for execution, sets in ((Execution(), 16), (Execution(warm=True), 1)):
        with open_cpu().open(Case(call, execution)) as kernel:
            kernel.sample(32)
            # Outputs are kept, one for each set of inputs.
            assert isinstance(kernel, CpuKernel)
            assert len(kernel.rotation.keep) == sets
