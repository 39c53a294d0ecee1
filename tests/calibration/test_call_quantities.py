from __future__ import annotations

import numpy as np
import pytest

from calibration.call_quantities import call_quantities
from calibration.quantities import Processor
from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import LAYERS, Attention, Concat, Elementwise, Embedding, Linear, Loss, Norm
from oracle.operations import Matmul, Other
from oracle.pricing import LayerCall
from oracle.updates import Parameters
from oracle.windows import Conv, Pool

CPU = Processor(8, 32e6)
EXAMPLES: tuple[Layer, ...] = (
    Conv.of((64, 28, 28), 32, 3, padding=1, bias=False),
    Conv.of((64, 14, 14), 32, 4, stride=2, padding=1, bias=False, transposed=True),
    Conv.of((8, 100), 16, 5, bias=False),
    Linear(512, 10),
    Norm("batch", (64, 28, 28)),
    Norm("layer", (128, 768)),
    Pool.of("max", (64, 28, 28), 3, stride=2, padding=1),
    Elementwise("relu", (64, 28, 28)),
    Elementwise("softmax", (12, 128, 128)),
    Concat((32, 16), (28, 28)),
    Embedding(30000, 768, 128),
    Attention(12, 128, 128, 64),
    Matmul(12, 128, 64, 128),
    Loss("cross_entropy", (1000,)),
    Other("pow+mean", (1000,), (10, 100), moved=2000, backward_moved=5000, weights=(1000,)),
)


def test_every_kind_of_layer_is_among_the_examples() -> None:
    assert {example.kind for example in EXAMPLES} == set(LAYERS)


@pytest.mark.parametrize("layer", EXAMPLES, ids=str)
def test_every_phase_of_every_layer_has_the_bytes_of_its_work(layer: Layer) -> None:
    for phase in layer.phases:
        found = call_quantities([LayerCall(layer, phase, 4)], Execution(), CPU)
        assert found.bytes[0] == pytest.approx(layer.work(phase, 4).bytes)
        assert np.isfinite(found.columns).all()
        assert found.launches[0] == (len(layer.param_shapes) if phase is Phase.UPDATE else 1)


def test_a_transposed_convolution_is_the_mirrored_one_run_backwards() -> None:
    plain = Conv.of((32, 28, 28), 64, 4, stride=2, padding=1, bias=False)
    mirrored = Conv.of(plain.output_shape, 32, 4, stride=2, padding=1, bias=False, transposed=True)
    assert mirrored.output_shape == (32, 28, 28)
    for phase, other in ((Phase.FORWARD, Phase.BACKWARD_DATA), (Phase.BACKWARD_DATA, Phase.FORWARD)):
        found = call_quantities([LayerCall(mirrored, phase, 4)], Execution(), CPU)
        expected = call_quantities([LayerCall(plain, other, 4)], Execution(), CPU)
        assert np.array_equal(found.columns, expected.columns)


def test_layouts_of_a_linear_layer_differ_by_phase() -> None:
    # 8 samples, 512 -> 10: (8, 10, 512) forward, (8, 512, 10) backward-data, (10, 512, 8) backward-weight.
    layer = Linear(512, 10, bias=False)
    expected = {
        Phase.FORWARD: (8, 10, 512),
        Phase.BACKWARD_DATA: (8, 512, 10),
        Phase.BACKWARD_WEIGHT: (10, 512, 8),
    }
    for phase, axes in expected.items():
        found = call_quantities([LayerCall(layer, phase, 8)], Execution(), CPU)
        assert 2 ** found.dims[0, 1:] == pytest.approx(axes)


def test_calls_of_several_kinds_are_refused() -> None:
    calls = [LayerCall(Linear(8, 8), Phase.FORWARD, 2), LayerCall(Linear(8, 8), Phase.UPDATE, 2)]
    with pytest.raises(BadInput, match="one kind of layer in one phase"):
        call_quantities(calls, Execution(), CPU)


def test_an_update_walks_over_tensors_as_large_as_that_of_most_elements() -> None:
    # Equal tensors: as many rows as tensors. One of 1,000 beside 100 of 1: an element lies among (1000^2 + 100) / 1100.
    for sizes, rows, cols in (((64, 8),), 8.0, 64.0), (((1000, 1), (1, 100)), 1100 / (1000100 / 1100), 1000100 / 1100):
        found = call_quantities([LayerCall(Parameters(sizes), Phase.UPDATE, 1)], Execution(), CPU)
        assert 2 ** found.dims[0] == pytest.approx([rows, cols])
        assert found.launches[0] == sum(count for _, count in sizes)
