from __future__ import annotations

import pytest

from calibration.features import QUANTITIES, canonical, execution_of, family, features, quantities, stand_ins
from oracle.errors import BadInput, UnknownName
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Attention, Elementwise, Embedding, Linear, Loss, Norm
from oracle.pricing import LayerCall
from oracle.windows import Conv, Pool

IMAGE = (16, 8, 8)
FAMILIES: dict[str, Layer] = {
    "conv1d": Conv.of((16, 8), 16, 3),
    "conv2d": Conv.of(IMAGE, 16, 3),
    "conv3d": Conv.of((16, 8, 8, 8), 16, 3),
    "conv2d_depthwise": Conv.of(IMAGE, 32, 3, groups=16),
    "conv2d_grouped": Conv.of(IMAGE, 32, 1, groups=4),
    "conv2d_transposed": Conv.of(IMAGE, 8, 2, stride=2, transposed=True),
    "linear": Linear(16, 8),
    "norm_batch": Norm("batch", IMAGE),
    "pool2d_max": Pool.of("max", IMAGE, 2),
    "pool3d_avg": Pool.of("avg", (16, 8, 8, 8), 2),
    "elementwise_gelu": Elementwise("gelu", IMAGE),
    "embedding": Embedding(100, 16, 8),
    "attention": Attention(2, 8, 8, 16),
    "loss_cross_entropy": Loss("cross_entropy", (10,)),
}


@pytest.mark.parametrize(("name", "layer"), FAMILIES.items())
def test_family_names_what_decides_efficiency(name: str, layer: Layer) -> None:
    assert family(layer, Phase.FORWARD) == name


def test_all_updates_are_one_family() -> None:
    assert {family(layer, Phase.UPDATE) for layer in FAMILIES.values()} == {"update"}


def test_pointwise_and_general_convolutions_are_one_family() -> None:
    assert family(Conv.of(IMAGE, 32, 1, stride=2), Phase.FORWARD) == "conv2d"


def test_a_full_convolution_of_one_channel_is_not_depthwise() -> None:
    assert family(Conv.of((1, 8, 8), 8, 3), Phase.FORWARD) == "conv2d"


@pytest.mark.parametrize(("name", "layer"), FAMILIES.items())
def test_only_arithmetic_kernels_have_a_flop_rate(name: str, layer: Layer) -> None:
    arithmetic = name.startswith(("conv", "linear", "attention"))
    assert ("flop_per_s" in quantities(layer, Phase.FORWARD)) is arithmetic
    assert "flop_per_s" not in quantities(layer, Phase.UPDATE)


def test_an_update_counts_its_tensors_and_words() -> None:
    # Weight and bias: 2 tensors, 4 * 2 + 2 = 10 parameters; momentum: 4 operations and 5 words of 4 bytes for each.
    call = LayerCall(Linear(4, 2), Phase.UPDATE, 1)
    assert dict(zip(QUANTITIES, features([call], Execution())[0], strict=True)) == {
        "launch_s": 2,
        "flop_per_s": 40,
        "bytes_per_s": 200,
        "call_s": 1,
    }


def test_half_precision_halves_traffic_and_keeps_arithmetic() -> None:
    calls = [LayerCall(layer, Phase.FORWARD, 2) for layer in FAMILIES.values()]
    single, half = features(calls, Execution()), features(calls, Execution(precision="bf16"))
    assert (half[:, 2] == single[:, 2] / 2).all()
    assert (half[:, 1] == single[:, 1]).all()


def test_updates_of_one_layer_are_one_call_whatever_the_samples() -> None:
    layer = Linear(4, 2)
    assert canonical(LayerCall(layer, Phase.UPDATE, 64)) == canonical(LayerCall(layer, Phase.UPDATE, 8))
    assert canonical(LayerCall(layer, Phase.FORWARD, 64)).samples == 64


OPTIONS = [
    Execution(),
    Execution("bf16", "channels_last", "adamw"),
    Execution("fp16", attention="cudnn", update="foreach", cudnn_benchmark=True, autocast=True, graph=True, warm=True),
]


@pytest.mark.parametrize("execution", OPTIONS)
def test_an_execution_is_read_back_from_its_keys(execution: Execution) -> None:
    assert execution_of(execution.kernel_key, Phase.FORWARD).kernel_key == execution.kernel_key
    assert execution_of(execution.update_key, Phase.UPDATE).update_key == execution.update_key


def test_keys_of_another_form_are_refused() -> None:
    with pytest.raises(BadInput, match="'fp32' is no execution"):
        execution_of("fp32", Phase.FORWARD)
    with pytest.raises(UnknownName, match="unknown memory format 'sgd'"):
        execution_of("fp32/sgd", Phase.FORWARD)
    for key in ("fp32/channels_first/update=fused", "fp32/channels_first/graph=1", "fp32/channels_first/attention"):
        with pytest.raises(UnknownName, match="unknown option of an execution"):
            execution_of(key, Phase.FORWARD)


def test_only_convolutions_have_stand_ins() -> None:
    assert stand_ins("conv3d_transposed") == ("conv3d",)
    assert {stand_ins(name) for name in FAMILIES if not name.startswith("conv")} == {()}
    assert stand_ins("conv2d") == ()
