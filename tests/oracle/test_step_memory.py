"""What one device holds in a step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from oracle.autograd import AUTOGRAD, OVERHEADS, Autograd, Overheads, UpdateLoop
from oracle.execution import Execution
from oracle.kept import KEEPS
from oracle.layer import Layer
from oracle.layers import ELEMENTWISE, LAYERS, Attention, Concat, Elementwise, Embedding, Linear, Loss, Norm
from oracle.loading import load_model
from oracle.machine import Cluster, Link
from oracle.memory import Memory, MemoryKind, largest_batch, memory_of, refusal_of
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Held, Job, Microbatched
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


def held(model: ModelGraph, samples: int, execution: Execution = Execution(), rule: Autograd = AUTOGRAD) -> Memory:
    return memory_of(STRATEGIES["serial"].plan(Job(model, samples, 1, ALONE, execution)), rule)


def kept_bytes(
    model: ModelGraph, samples: int = 1, rule: Autograd = AUTOGRAD, execution: Execution = Execution()
) -> float:
    """Activations at the end of forward, the last result among them."""
    plan = STRATEGIES["serial"].plan(Job(model, samples, 1, ALONE, execution))
    return rule.kept_bytes(plan, range(1))


def test_a_small_net_by_hand() -> None:
    # Parameters: 108 + 8 + 144 + 650 = 910. The fullest moment is backward of the pool.
    assert held(small_net(), 2).by_kind_bytes == {
        MemoryKind.WEIGHTS: 4 * 910,
        MemoryKind.GRADIENTS: 4 * 650,  # of fc
        MemoryKind.OPTIMIZER: 4 * 910,  # one momentum each
        MemoryKind.BUFFERS: 2 * 4 * 4 + 8,  # running mean and variance of 4 channels, and a count
        MemoryKind.INPUT: 2 * (4 * 3 * 64 + 8),  # pixels and a label
        # conv1's result for bn; bn's result, which relu overwrites, for relu and conv2; the sum for the pool, and its
        # indices; statistics of bn.
        MemoryKind.ACTIVATIONS: 2 * (4 * 3 * 256 + 8 * 64) + 2 * 4 * 4,
        MemoryKind.TRANSIENT: 2 * 4 * (64 + 256),  # of the pool's result and operand
    }


def test_with_large_weights_the_update_is_the_fullest_moment() -> None:
    build = GraphBuilder("wide", (100,))
    build.add("fc1", Linear(100, 1000, bias=False))
    build.add("fc2", Linear(1000, 10, bias=False))
    build.add("loss", Loss("cross_entropy", (10,)))
    params, sgd, adam = 110_000, Execution(), Execution(optimizer="adam")
    fixed_bytes = {MemoryKind.INPUT: 400 + 8, MemoryKind.WEIGHTS: 4 * params, MemoryKind.GRADIENTS: 4 * params}
    momentum = {MemoryKind.OPTIMIZER: 4 * params}
    # Backward of fc1 has all gradients too, and the gradient of its result.
    assert held(build.graph(), 1, sgd).by_kind_bytes == fixed_bytes | momentum | {MemoryKind.TRANSIENT: 4000}
    # Two copies of the largest tensor make Adam's denominator.
    states, room = {MemoryKind.OPTIMIZER: 8 * params}, {MemoryKind.UPDATE: 2 * 4 * 100_000}
    assert held(build.graph(), 1, adam).by_kind_bytes == fixed_bytes | states | room


def test_gradients_that_meet_are_three_tensors_where_the_first_is_shared() -> None:
    build = GraphBuilder("meet", (1,))
    first = build.add("fc", Linear(1, 1000, bias=False))
    others = [build.add(op, Elementwise(op, (1000,)), first) for op in ("silu", "gelu")]
    build.add("join", Concat((1000,) * 3), first, *others)
    memory = held(build.graph(), 1).by_kind_bytes
    # The join's gradient, of which fc's result has a view; GELU's gradient of that result; and their sum.
    assert memory[MemoryKind.TRANSIENT] == 4 * (3000 + 1000 + 1000)
    # What SiLU and GELU keep, and the last result.
    assert memory[MemoryKind.ACTIVATIONS] == 4 * (1000 + 3000)


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
    # The loss also saves its weights' sum, one number.
    assert saved_bytes == held(small_net(), 2).by_kind_bytes[MemoryKind.INPUT] + kept_bytes(small_net(), 2) + 4


def test_relu_out_of_place_costs_nothing_where_its_input_is_not_kept() -> None:
    assert held(small_net(inplace=False), 2).by_kind_bytes == held(small_net(), 2).by_kind_bytes


def test_a_tensor_that_two_layers_keep_is_one_tensor() -> None:
    build = GraphBuilder("fork", (8,))
    stem = build.add("stem", Linear(8, 16))
    build.add("left", Linear(16, 4), stem)
    build.add("right", Linear(16, 4), stem)
    build.add("product", Elementwise("mul", (4,)), "left", "right")
    # The product itself is the last result, which its reader holds.
    assert kept_bytes(build.graph()) == 4 * (16 + 4 + 4 + 4)


@pytest.mark.parametrize(
    ("layer", "expected_bytes"),
    [
        (Elementwise("relu", (8,)), 0),  # its result, which is held anyway
        (Elementwise("gelu", (8,)), 4 * 8),  # its operand, which the layer before it gave
        (Elementwise("add", (8,)), 0),
        (Concat((8, 8)), 0),
        (Norm("layer", (8,)), 4 * 8 + 2 * 4),
        (Norm("group", (4, 2), groups=2), 4 * 8 + 2 * 4 * 2),
        (Norm("instance", (4, 2)), 4 * 8 + 2 * 4 * 4),
        (Pool.of("max", (2, 4), 2), 4 * 8 + 8 * 4),
        (Pool.of("avg", (2, 4), 2), 4 * 8),
        (Pool.of("avg", (2, 4), 4), 0),  # over everything: a mean
        (Loss("mse", (8,)), 4 * 8),
        (Loss("cross_entropy", (8,)), 4 * 8),  # log-softmax, not its operand
    ],
)
def test_what_single_layers_keep(layer: Layer, expected_bytes: int) -> None:
    build = GraphBuilder("one", (3,))
    build.add("fc", Linear(3, 8))
    build.add("layer", layer, *["fc"] * len(layer.input_shapes))
    result_bytes = 0 if isinstance(layer, Loss) else 4 * layer.output_items
    assert kept_bytes(build.graph()) == expected_bytes + result_bytes


def test_dropout_keeps_a_mask_as_wide_as_the_device_makes_it() -> None:
    build = GraphBuilder("drop", (3,))
    build.add("fc", Linear(3, 8))
    build.add("dropout", Elementwise("dropout", (8,)))
    assert kept_bytes(build.graph()) == 4 * 8 + 4 * 8
    assert kept_bytes(build.graph(), rule=Autograd(OVERHEADS["cuda"])) == 4 * 8 + 8


def test_attention_keeps_its_operands_its_result_and_a_sum_per_query() -> None:
    build = GraphBuilder("attend", (6,))
    words = build.add("table", Embedding(10, 8, 6))
    rows = [build.add(name, Linear(8, 8, rows=6), words) for name in "qkv"]
    build.add("attention", Attention(2, 6, 6, 4), *rows)
    # The table's result for three layers, q, k, v and the result (48 items each), 2 heads x 6 queries in float32.
    assert kept_bytes(build.graph()) == 4 * 48 * 5 + 4 * 12
    assert held(build.graph(), 1).by_kind_bytes[MemoryKind.INPUT] == 8 * 6  # 64-bit tokens


def test_mixed_precision_halves_activations_and_casts_weights() -> None:
    memory = held(small_net(), 2, Execution("bf16")).by_kind_bytes
    assert memory[MemoryKind.WEIGHTS] == 4 * 910
    # The fullest moment is backward of fc: all casts are there, though not those of bn.
    assert memory[MemoryKind.CASTS] == 2 * (108 + 144 + 650)
    assert memory[MemoryKind.TRANSIENT] == 2 * 2 * (10 + 64)
    # A narrow copy of the pixels is kept for conv1.
    assert memory[MemoryKind.ACTIVATIONS] == 2 * (2 * (192 + 3 * 256 + 64) + 8 * 64) + 2 * 4 * 4


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("sgd_momentum", 1), ("adam", 2), ("adamw", 2)])
def test_optimizers_keep_their_states(optimizer: str, states: int) -> None:
    memory = held(small_net(), 1, Execution(optimizer=optimizer)).by_kind_bytes
    assert memory.get(MemoryKind.OPTIMIZER, 0) == states * 4 * 910


def test_foreach_makes_room_for_all_parameters_and_fused_for_none() -> None:
    model, adam = load_model("vgg16"), Execution(optimizer="adam")
    by_loop = {loop: held(model, 1, adam, Autograd(Overheads(loop))).by_kind_bytes for loop in UpdateLoop}
    assert by_loop[UpdateLoop.SINGLE_TENSOR][MemoryKind.UPDATE] == 2 * 4 * 25_088 * 4096
    assert by_loop[UpdateLoop.FOREACH][MemoryKind.UPDATE] == 4 * model.params
    assert MemoryKind.UPDATE not in by_loop[UpdateLoop.FUSED]


def test_overheads_are_kinds_of_their_own() -> None:
    cluster = Cluster.of_link("any", Link(1e-6, 1e9))
    plan = STRATEGIES["data"].plan(Job(small_net(), 4, 2, cluster))
    overheads = Overheads(
        communicator_bytes=7e6, context_bytes=5e6, workspace_bytes=3e6, rounding_bytes=10, fragmentation=0.5
    )
    found = memory_of(plan, Autograd(overheads)).by_kind_bytes
    tensors_bytes = held(small_net(), 2).total_bytes
    assert found[MemoryKind.BUCKETS] == 4 * 910  # gradients, once more
    assert found[MemoryKind.COMMUNICATION] == 7e6  # one group
    assert (found[MemoryKind.CONTEXT], found[MemoryKind.WORKSPACE]) == (5e6, 3e6)
    # conv1, bn (2), conv2 and fc (2) have six tensors with gradients and momenta, and there are eight layers.
    assert found[MemoryKind.ROUNDING] == 10 * (3 * 6 + 8)
    assert found[MemoryKind.FRAGMENTATION] == 0.5 * tensors_bytes


def test_each_further_pass_in_flight_adds_what_it_keeps_and_its_input() -> None:
    plan = STRATEGIES["serial"].plan(Job(small_net(), 2, 1, ALONE))
    three, four = (memory_of(replace(plan, schedule=Microbatched(count)), AUTOGRAD) for count in (3, 4))
    assert four.total_bytes - three.total_bytes == kept_bytes(small_net(), 2) + 2 * (4 * 3 * 64 + 8)


def test_shared_out_states_count_by_their_shares() -> None:
    plan = STRATEGIES["serial"].plan(Job(small_net(), 2, 1, ALONE))
    shares = Held(weights=1 / 2, gradients=1 / 4, optimizer=1 / 5, transfer_bytes=123.0)
    found = memory_of(replace(plan, held=shares), AUTOGRAD).by_kind_bytes
    assert found[MemoryKind.WEIGHTS] == 4 * 910 / 2
    assert found[MemoryKind.GRADIENTS] == 4 * 650 / 4  # of fc, in backward of the pool
    assert found[MemoryKind.OPTIMIZER] == 4 * 910 / 5
    assert found[MemoryKind.TRANSFERS] == 123.0


def test_recomputation_keeps_what_enters_each_segment() -> None:
    # Two segments of four layers: the sum, first of the second segment, reads results of conv2 and relu.
    assert kept_bytes(small_net(), 1, execution=Execution(recomputed_segments=2)) == 4 * (256 + 256)


def test_buckets_that_are_views_and_single_devices_cost_nothing() -> None:
    plan = STRATEGIES["data"].plan(Job(small_net(), 4, 2, Cluster.of_link("any", Link(1e-6, 1e9))))
    assert MemoryKind.BUCKETS not in memory_of(plan, Autograd(Overheads(bucket_copies=0))).by_kind_bytes
    alone = memory_of(STRATEGIES["data"].plan(Job(small_net(), 4, 1, ALONE)), AUTOGRAD)
    assert alone == held(small_net(), 4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50"])
def test_memory_grows_with_the_batch_and_holds_weights_and_gradients(name: str, optimizer: str, precision: str) -> None:
    model, execution = load_model(name), Execution(precision, optimizer=optimizer)
    totals = [held(model, samples, execution).total_bytes for samples in (1, 2, 3, 7, 64, 1000)]
    assert totals == sorted(totals)
    assert totals[0] >= 2 * 4 * model.params


def test_it_fits_where_the_device_is_large_enough() -> None:
    needs = {MemoryKind.WEIGHTS: 600.0, MemoryKind.ACTIVATIONS: 400.0}
    assert Memory(needs, None).fits is None
    assert Memory(needs, None).risk is None
    assert Memory(needs, 1000.0).fits
    assert Memory(needs, 1000.0).refusal is None
    assert Memory(needs, 999.0).refusal == "does not fit: a device needs 1000 B and has 999 B (600 B are weights)"


def test_the_risk_is_that_of_a_normal_logarithm() -> None:
    needs = {MemoryKind.WEIGHTS: 1000.0}
    assert Memory(needs, 1000.0, spread=0.1).risk == pytest.approx(0.5)
    # One and two deviations of room; and none of either side without a spread.
    assert Memory(needs, 1000.0 * math.exp(0.1), spread=0.1).risk == pytest.approx(0.1587, abs=1e-4)
    assert Memory(needs, 1000.0 * math.exp(0.2), spread=0.1).risk == pytest.approx(0.0228, abs=1e-4)
    assert (Memory(needs, 1000.0, spread=0).risk, Memory(needs, 999.0, spread=0).risk) == (0, 1)


@pytest.mark.parametrize(("strategy", "devices"), [("serial", 1), ("data", 1), ("data", 3)])
def test_the_largest_batch_fits_and_the_next_does_not(strategy: str, devices: int) -> None:
    cluster = replace(Cluster.of_link("any", Link(1e-6, 1e9)), memory_bytes=2e9)
    job, rule = Job(load_model("resnet50"), 5, devices, cluster), Autograd(OVERHEADS["cpu"])
    batch = largest_batch(job, STRATEGIES[strategy], rule)
    assert batch is not None
    fits = [memory_of(STRATEGIES[strategy].plan(replace(job, global_batch=b)), rule).fits for b in (batch, batch + 1)]
    assert fits == [True, False]


def test_a_refusal_says_which_batch_would_fit() -> None:
    small = replace(ALONE, memory_bytes=1e6)
    tiny = replace(ALONE, memory_bytes=10_000)
    serial, data = STRATEGIES["serial"], STRATEGIES["data"]
    job = Job(small_net(), 1000, 1, small)
    memory = memory_of(serial.plan(job), AUTOGRAD)
    batch = largest_batch(job, serial, AUTOGRAD)
    assert refusal_of(job, serial, memory, AUTOGRAD).endswith(f"; the largest global batch that fits is {batch}")
    hopeless = replace(job, cluster=tiny)
    memory = memory_of(data.plan(hopeless), AUTOGRAD)
    assert refusal_of(hopeless, data, memory, AUTOGRAD).endswith("; no batch fits")
    assert refusal_of(job, serial, Memory({}, None), AUTOGRAD) == ""
    assert largest_batch(replace(job, cluster=ALONE), serial, AUTOGRAD) is None


def test_every_kind_of_layer_says_what_it_keeps() -> None:
    assert set(KEEPS) == set(LAYERS)
    for op in ELEMENTWISE:
        KEEPS["elementwise"](Elementwise(op, (4,)))
