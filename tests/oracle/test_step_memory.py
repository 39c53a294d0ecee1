"""What one device holds in a step."""

from __future__ import annotations

import pytest

from oracle.execution import Execution
from oracle.layers import ELEMENTWISE, LAYERS, Attention, Elementwise, Embedding, Linear, Loss, Norm
from oracle.machine import Cluster
from oracle.memory import AUTOGRAD, KEEPS, Memory, MemoryKind, memory_of
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job
from oracle.strategies import STRATEGIES
from oracle.windows import Conv, Pool

ALONE = Cluster("here", "any")


def small_net(*, inplace: bool = True) -> ModelGraph:
    """conv1 - bn - relu - conv2 - add(conv2, relu) - max pool - fc - loss."""
    shape = (4, 8, 8)
    build = GraphBuilder("small", (3, 8, 8))
    build.add("conv1", Conv.of((3, 8, 8), 4, 3, padding=1, bias=False))
    build.add("bn", Norm("batch", shape))
    build.add("relu", Elementwise("relu", shape, inplace=inplace))
    build.add("conv2", Conv.of(shape, 4, 3, padding=1, bias=False))
    build.add("add", Elementwise("add", shape), "conv2", "relu")
    build.add("pool", Pool.of("max", shape, 2))
    build.add("fc", Linear(64, 10))
    build.add("loss", Loss("cross_entropy", (10,)))
    return build.graph()


def held(model: ModelGraph, samples: int, execution: Execution = Execution()) -> Memory:
    return memory_of(STRATEGIES["serial"].plan(Job(model, samples, 1, ALONE, execution)), AUTOGRAD)


def test_a_small_net_by_hand() -> None:
    # Parameters: 108 + 8 + 144 + 650 = 910.
    assert held(small_net(), 2).by_kind_bytes == {
        MemoryKind.WEIGHTS: 4 * 910,
        MemoryKind.GRADIENTS: 4 * 910,
        MemoryKind.OPTIMIZER: 4 * 910,  # one momentum each
        MemoryKind.BUFFERS: 2 * 4 * 4 + 8,  # running mean and variance of 4 channels, and a count
        MemoryKind.INPUT: 2 * (4 * 3 * 64 + 8),  # pixels and a label
        # conv1's result for bn; bn's result, which relu overwrites, for relu and conv2; the sum for the pool; the
        # pool's result for fc. Statistics of bn, indices of the pool, log-softmax.
        MemoryKind.ACTIVATIONS: 2 * 4 * (256 + 256 + 256 + 64) + 2 * 4 * 4 + 2 * 8 * 64 + 2 * 4 * 10,
        MemoryKind.TRANSIENT: 2 * 4 * (256 + 256),  # of the result and the operand of conv2
    }
    assert held(small_net(), 2).total_bytes == 3 * 3640 + 40 + 1552 + 7792 + 4096


def test_what_a_small_net_keeps_is_what_torch_saves() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    nn, functional = torch.nn, torch.nn.functional
    conv1, conv2 = (nn.Conv2d(channels, 4, 3, padding=1, bias=False) for channels in (3, 4))
    bn, fc = nn.BatchNorm2d(4), nn.Linear(64, 10)
    weights = [*conv1.parameters(), *conv2.parameters(), *fc.parameters(), *bn.parameters(), *bn.buffers()]
    held_anyway = {tensor.untyped_storage().data_ptr() for tensor in weights}
    saved = {}

    def note(tensor):  # type: ignore[no-untyped-def]
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage  # keeps it, so that no other storage gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        relu = functional.relu(bn(conv1(torch.randn(2, 3, 8, 8))), inplace=True)
        pooled = functional.max_pool2d(conv2(relu) + relu, 2)
        loss = functional.cross_entropy(fc(pooled.flatten(1)), torch.zeros(2, dtype=torch.long))
    assert loss.item() > 0
    saved_bytes = sum(storage.nbytes() for address, storage in saved.items() if address not in held_anyway)
    ours = held(small_net(), 2).by_kind_bytes
    # The loss also saves its weights' sum, one number.
    assert saved_bytes == ours[MemoryKind.INPUT] + ours[MemoryKind.ACTIVATIONS] + 4


def test_relu_out_of_place_costs_nothing_where_its_input_is_not_kept() -> None:
    assert held(small_net(inplace=False), 2).by_kind_bytes == held(small_net(), 2).by_kind_bytes


def test_a_tensor_that_two_layers_keep_is_one_tensor() -> None:
    build = GraphBuilder("fork", (8,))
    stem = build.add("stem", Linear(8, 16))
    build.add("left", Linear(16, 4), stem)
    build.add("right", Linear(16, 4), stem)
    build.add("product", Elementwise("mul", (4,)), "left", "right")
    assert held(build.graph(), 1).by_kind_bytes[MemoryKind.ACTIVATIONS] == 4 * (16 + 4 + 4)


@pytest.mark.parametrize(
    ("layer", "kept_bytes"),
    [
        (Elementwise("relu", (8,)), 4 * 8),
        (Elementwise("gelu", (8,)), 4 * 8),  # its operand, which the layer before it gave
        (Elementwise("dropout", (8,)), 8),  # a mask of bytes
        (Norm("layer", (8,)), 4 * 8 + 2 * 4),
        (Norm("group", (4, 2), groups=2), 4 * 8 + 2 * 4 * 2),
        (Norm("instance", (4, 2)), 4 * 8 + 2 * 4 * 4),
        (Pool.of("max", (2, 4), 2), 4 * 8 + 8 * 4),
        (Pool.of("avg", (2, 4), 2), 4 * 8),
        (Pool.of("avg", (2, 4), 4), 0),  # over everything: a mean
        (Loss("mse", (8,)), 4 * 8),
    ],
)
def test_what_single_layers_keep(layer: Elementwise | Norm | Pool | Loss, kept_bytes: int) -> None:
    build = GraphBuilder("one", (3,))
    build.add("fc", Linear(3, 8))
    build.add("layer", layer)
    assert held(build.graph(), 1).by_kind_bytes.get(MemoryKind.ACTIVATIONS, 0) == kept_bytes


def test_attention_keeps_its_operands_its_result_and_a_sum_per_query() -> None:
    build = GraphBuilder("attend", (6,))
    words = build.add("table", Embedding(10, 8, 6))
    rows = [build.add(name, Linear(8, 8, rows=6), words) for name in "qkv"]
    build.add("attention", Attention(2, 6, 6, 4), *rows)
    memory = held(build.graph(), 1)
    # The table's result for three layers, q, k, v and the result (48 items each), 2 heads x 6 queries in float32.
    assert memory.by_kind_bytes[MemoryKind.ACTIVATIONS] == 4 * 48 * 5 + 4 * 12
    assert memory.by_kind_bytes[MemoryKind.INPUT] == 8 * 6  # 64-bit tokens


def test_mixed_precision_halves_activations_and_casts_weights() -> None:
    memory = held(small_net(), 2, Execution("bf16")).by_kind_bytes
    assert memory[MemoryKind.WEIGHTS] == 4 * 910
    assert memory[MemoryKind.CASTS] == 2 * (108 + 144 + 650)  # not those of bn
    assert memory[MemoryKind.TRANSIENT] == 2 * 2 * 512
    # A narrow copy of the pixels is kept for conv1; log-softmax stays float32.
    assert memory[MemoryKind.ACTIVATIONS] == 2 * 2 * (192 + 256 + 256 + 256 + 64) + 2 * 4 * 4 + 2 * 8 * 64 + 2 * 4 * 10


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("sgd_momentum", 1), ("adam", 2), ("adamw", 2)])
def test_optimizers_keep_their_states(optimizer: str, states: int) -> None:
    memory = held(small_net(), 1, Execution(optimizer=optimizer)).by_kind_bytes
    assert memory.get(MemoryKind.OPTIMIZER, 0) == states * 4 * 910


def test_it_fits_where_the_device_is_large_enough() -> None:
    needs = {MemoryKind.WEIGHTS: 600.0, MemoryKind.ACTIVATIONS: 400.0}
    assert Memory(needs, None).fits is None
    assert Memory(needs, 1000.0).fits
    assert Memory(needs, 1000.0).refusal is None
    assert Memory(needs, 999.0).refusal == "does not fit: a device needs 1e+03 B and has 999 B (600 B are weights)"


def test_every_kind_of_layer_says_what_it_keeps() -> None:
    assert set(KEEPS) == set(LAYERS)
    for op in ELEMENTWISE:
        KEEPS["elementwise"](Elementwise(op, (4,)))
