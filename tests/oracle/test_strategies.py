"""What single strategies promise: limits, shares, junctions, groups. What all promise is in test_projection."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.cuts import balanced_cuts
from oracle.errors import OutOfRange
from oracle.execution import Execution
from oracle.groups import Group, hop
from oracle.layer import Phase
from oracle.layers import Elementwise, Linear, Loss, Norm
from oracle.links import LinkTimer
from oracle.loading import load_model
from oracle.machine import Cluster, Link, Tier
from oracle.memory import MemoryKind
from oracle.model import GraphBuilder, ModelGraph, Node
from oracle.plan import Job, Microbatched, Overlapped, Place, Rounds, StepPart, Strategy
from oracle.pricing import IdealTimer, Transfer
from oracle.project import project
from oracle.projection import Projection
from oracle.strategies import STRATEGIES, strategy
from oracle.strategies.channel import Channel
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.owt import Owt
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.spatial import Spatial
from oracle.strategies.zero import Zero
from oracle.windows import Conv, Pool

CLUSTER = Cluster.of_link("any", Link(1e-6, 1e9))
NODES = Cluster("nodes", "any", (Tier("node", Link(1e-6, 1e10), 4), Tier("all", Link(1e-5, 1e9), nics_per_node=2)))
IDEAL = IdealTimer.of_rate(1e12)
VGG, ALEXNET, RESNET = load_model("vgg16"), load_model("alexnet"), load_model("resnet50")


def run(how: Strategy, model: ModelGraph, batch: int, devices: int, **options: object) -> Projection:
    what = Job(model, batch, devices, CLUSTER, **options)  # type: ignore[arg-type]
    return project(what, how, IDEAL, LinkTimer(CLUSTER))


def moved(how: Strategy, job: Job) -> list[tuple[str, StepPart, Transfer]]:
    return [(e.layer, e.part, e.transfer) for stage in how.plan(job).stages for e in stage.exchanges]


def seconds(projection: Projection) -> float:
    assert projection.step is not None
    return projection.step.middle


def without_bias(node: Node) -> Node:
    return replace(node, layer=replace(node.layer, bias=False)) if isinstance(node.layer, Conv | Linear) else node


def net() -> ModelGraph:
    """conv1 - bn - relu - pool - conv2 - fc - loss"""
    build = GraphBuilder("net", (4, 16, 16))
    build.add("conv1", Conv.of((4, 16, 16), 8, 3, padding=1))
    build.add("bn", Norm("batch", (8, 16, 16)))
    build.add("relu", Elementwise("relu", (8, 16, 16), inplace=True))
    build.add("pool", Pool.of("max", (8, 16, 16), 2))
    build.add("conv2", Conv.of((8, 8, 8), 8, 3, padding=1))
    build.add("fc", Linear(512, 12))
    build.add("loss", Loss("cross_entropy", (12,)))
    return build.graph(dataset_samples=1000)


# --- groups on tiers


def test_groups_lie_inside_nodes_and_reduce_across_them() -> None:
    assert Group(4).transfer(NODES, "all_gather", 8) == Transfer("all_gather", 8.0, 4, tier=0, concurrent=1)
    # 2 groups of 4: devices 0 and 4 are in different nodes, and 4 such rings leave a node at once.
    assert Group(2, stride=4).transfer(NODES, "all_reduce", 8) == Transfer("all_reduce", 8.0, 2, tier=1, concurrent=4)
    assert Group(2, stride=2).transfer(NODES, "all_reduce", 8) == Transfer("all_reduce", 8.0, 2, tier=0, concurrent=1)
    assert Group(8).transfer(NODES, "all_reduce", 8) == Transfer("all_reduce", 8.0, 8, tier=1, concurrent=1)
    assert [hop(NODES, device, 8).tier for device in range(5)] == [0, 0, 0, 1, 0]


def test_a_hybrid_puts_the_group_inside_a_node_by_default() -> None:
    job = Job(VGG, 64, 16, NODES)
    transfers = moved(strategy("data+filter"), job)
    assert {t.tier for _, part, t in transfers if part is not StepPart.GRADIENT_EXCHANGE} == {0}
    exchange = [t for _, part, t in transfers if part is StepPart.GRADIENT_EXCHANGE]
    assert [(t.group, t.tier, t.concurrent) for t in exchange] == [(4, 1, 4)]
    # 6 devices in nodes of 4: groups of 3; 7: groups of 1.
    assert strategy("data+filter").plan(replace(job, devices=6)).groups == 2
    assert strategy("data+filter").plan(replace(job, devices=7)).groups == 7


# --- filter, channel and their masks


def test_poolings_and_norms_are_replicated_on_gathered_tensors() -> None:
    nodes = {n.name: n.layer for n in Filter().plan(Job(net(), 8, 4, CLUSTER)).stages[0].nodes}
    whole = {n.name: n.layer for n in net().nodes}
    assert all(nodes[name] == whole[name] for name in ("bn", "relu", "pool", "loss"))
    assert nodes["conv1"].output_shape == (2, 16, 16)
    assert nodes["fc"].output_shape == (3,)


def test_filters_gather_results_and_add_up_the_true_inputs_gradients() -> None:
    # conv1's result is 8 x 16 x 16, but what conv2 reads was pooled to 8 x 8 x 8; fc, the last, is not gathered.
    assert [(layer, part, t.collective, t.bytes) for layer, part, t in moved(Filter(), Job(net(), 10, 4, CLUSTER))] == [
        ("conv1", StepPart.FORWARD, "all_gather", 10 * 4 * 2048),
        ("conv2", StepPart.FORWARD, "all_gather", 10 * 4 * 512),
        ("conv2", StepPart.BACKWARD_DATA, "all_reduce", 10 * 4 * 512),
        ("fc", StepPart.BACKWARD_DATA, "all_reduce", 10 * 4 * 512),
    ]


def test_channels_complete_sums_and_leave_the_first_layer_whole() -> None:
    job = Job(net(), 10, 4, CLUSTER)
    assert [(layer, part, t.collective, t.bytes) for layer, part, t in moved(Channel(), job)] == [
        ("conv2", StepPart.FORWARD, "all_reduce", 10 * 4 * 512),
        ("conv2", StepPart.BACKWARD_DATA, "all_gather", 10 * 4 * 512),
        ("fc", StepPart.FORWARD, "all_reduce", 10 * 4 * 12),
        ("fc", StepPart.BACKWARD_DATA, "all_gather", 10 * 4 * 512),
    ]
    nodes = {n.name: n.layer for n in Channel().plan(job).stages[0].nodes}
    assert nodes["conv1"].input_shapes == ((4, 16, 16),)
    assert nodes["conv2"].input_shapes == ((2, 8, 8),)


def test_masks_switch_layers_to_replicated() -> None:
    job = Job(net(), 10, 4, CLUSTER)
    stage = Filter(split=("conv1", "conv2")).plan(job).stages[0]
    assert stage.nodes[-2].layer == Linear(512, 12)
    # conv2 is now gathered for the replicated layer after it; fc needs nothing.
    assert [(e.layer, e.transfer.collective) for e in stage.exchanges] == [
        ("conv1", "all_gather"),
        ("conv2", "all_gather"),
        ("conv2", "all_reduce"),
    ]


# --- spatial


def test_halos_and_the_junction_of_a_spatial_net() -> None:
    # 4 rows a device; conv1 needs a row of 4 x 16 from each side (and no gradient of the samples), the 2/2 pooling
    # none, conv2 a row of 8 x 8 each way; its 8 x 8 x 8 results are gathered for fc and come back.
    assert [
        (layer, part, t.collective, t.bytes) for layer, part, t in moved(Spatial(), Job(net(), 10, 4, CLUSTER))
    ] == [
        ("conv1", StepPart.FORWARD, "p2p", 40 * 64),
        ("conv1", StepPart.FORWARD, "p2p", 40 * 64),
        ("conv2", StepPart.FORWARD, "p2p", 40 * 64),
        ("conv2", StepPart.FORWARD, "p2p", 40 * 64),
        ("conv2", StepPart.BACKWARD_DATA, "p2p", 40 * 64),
        ("conv2", StepPart.BACKWARD_DATA, "p2p", 40 * 64),
        ("conv2", StepPart.FORWARD, "all_gather", 40 * 512),
        ("conv2", StepPart.BACKWARD_DATA, "reduce_scatter", 40 * 512),
        ("", StepPart.GRADIENT_EXCHANGE, "all_reduce", 4 * net().params),
    ]


def test_a_second_axis_also_sends_the_corners() -> None:
    sent = [t.bytes for layer, _, t in moved(Spatial(grid=(2, 2)), Job(net(), 1, 4, CLUSTER)) if layer == "conv1"]
    assert sent == [4 * 4 * 8, 4 * 4 * 8, 4 * 4 * 10, 4 * 4 * 10]


def test_spatial_layers_become_replicated_where_extents_are_too_small() -> None:
    nodes = {n.name: n.layer for n in Spatial().plan(Job(net(), 8, 16, CLUSTER)).stages[0].nodes}
    assert nodes["conv1"].input_shapes == ((4, 3, 16),)  # one row and two neighbours'
    assert nodes["pool"].input_shapes == ((8, 16, 16),)  # 8 rows of results are too few for 16 devices
    until_conv1 = Spatial(last_split="conv1").plan(Job(net(), 8, 4, CLUSTER)).stages[0].nodes
    assert until_conv1[1].layer == Norm("batch", (8, 16, 16))


def test_volumes_are_split_along_three_axes() -> None:
    cosmoflow = load_model("cosmoflow128")
    plan = Spatial(grid=(2, 2, 2)).plan(Job(cosmoflow, 1, 8, CLUSTER))
    assert plan.stages[0].nodes[0].layer.output_shape[1:] == tuple(
        -(-extent // 2) for extent in cosmoflow.nodes[0].layer.output_shape[1:]
    )


# --- pipeline


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.data())
def test_cuts_are_balanced_as_well_as_can_be(weights: list[float], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(weights)))

    def heaviest(cuts: tuple[int, ...]) -> float:
        return max(sum(weights[a:b]) for a, b in pairwise((0, *cuts, len(weights))))

    def best(start: int, left: int) -> float:
        if left == 1:
            return sum(weights[start:])
        ends = range(start + 1, len(weights) - left + 2)
        return min(max(sum(weights[start:end]), best(end, left - 1)) for end in ends)

    cuts = balanced_cuts(weights, parts)
    assert len(cuts) == parts - 1
    assert all(first < last for first, last in pairwise((0, *cuts, len(weights))))
    assert heaviest(cuts) == pytest.approx(best(0, parts), rel=1e-9, abs=1e-9)


def test_more_parts_than_layers_are_refused() -> None:
    with pytest.raises(OutOfRange, match="3 layers can be cut into 1 to 3 parts, not 4"):
        balanced_cuts([1.0, 1.0, 1.0], 4)


def test_a_shortcut_over_a_cut_is_sent_with_it() -> None:
    build = GraphBuilder("residual", (4, 8, 8))
    build.add("a", Conv.of((4, 8, 8), 4, 3, padding=1))
    build.add("b", Conv.of((4, 8, 8), 4, 3, padding=1))
    build.add("c", Conv.of((4, 8, 8), 4, 3, padding=1))
    build.add("sum", Elementwise("add", (4, 8, 8)), "c", "a")
    plan = Pipeline(cuts=("b", "c"), segments=4).plan(Job(build.graph(), 8, 3, CLUSTER))
    sent = [[e.transfer.bytes for e in stage.exchanges] for stage in plan.stages]
    # after a: a alone; after b: b, and a for the sum; 2 samples a segment
    assert sent == [[2 * 4 * 256] * 2, [2 * 4 * 512] * 2, []]
    assert all(e.place is Place.BETWEEN for stage in plan.stages for e in stage.exchanges)


def test_batches_are_cut_as_torch_chunks_them() -> None:
    plan = Pipeline(segments=12).plan(Job(net(), 16, 2, CLUSTER))
    assert (plan.stages[0].samples, plan.schedule) == (2, Microbatched(8))


def test_1f1b_holds_fewer_passes_and_is_no_slower() -> None:
    gpipe, turns = (run(Pipeline(segments=8, kind=kind), VGG, 32, 4) for kind in ("gpipe", "1f1b"))
    assert seconds(turns) <= seconds(gpipe)
    assert gpipe.memory is not None
    assert turns.memory is not None
    assert turns.memory.by_kind_bytes[MemoryKind.ACTIVATIONS] < gpipe.memory.by_kind_bytes[MemoryKind.ACTIVATIONS]
    plan = Pipeline(segments=8, kind="1f1b").plan(Job(VGG, 32, 4, CLUSTER))
    assert [plan.in_flight(stage) for stage in range(4)] == [4, 3, 2, 1]


# --- owt


def test_the_worked_example_of_owt() -> None:
    # K = 8, b = 128, weights without biases: 427.6 MB by data parallelism; 17.3, 66.1 and 88.1 MB by owt.
    bare = replace(ALEXNET, nodes=tuple(map(without_bias, ALEXNET.nodes)))
    job = Job(bare, 1024, 8, CLUSTER)
    wire = {"all_reduce": 2 * 7 / 8, "all_gather": 7 / 8, "p2p": 1.0}
    data = [wire[t.collective] * t.bytes for _, _, t in moved(Data(), job)]
    assert sum(data) == pytest.approx(427.6e6, rel=1e-3)
    stages = Owt(scheme="a").plan(job).stages
    sent = [[(e, wire[e.transfer.collective] * e.transfer.bytes) for e in stage.exchanges] for stage in stages]
    assert sum(b for e, b in sent[0] if e.part is StepPart.GRADIENT_EXCHANGE) == pytest.approx(17.3e6, rel=2e-3)
    assert sum(b for e, b in sent[0] if e.place is Place.BETWEEN) == pytest.approx(66.1e6, rel=1e-3)
    assert sum(b for e, b in sent[1]) == pytest.approx(88.1e6, rel=1e-3)


@pytest.mark.parametrize("scheme", ["b", "c"])
def test_the_other_schemes_send_as_much_in_rounds(scheme: str) -> None:
    plan = Owt(scheme=scheme).plan(Job(ALEXNET, 1024, 8, CLUSTER))
    assert plan.schedule == Rounds(8)
    junction = next(e.transfer for e in plan.stages[0].exchanges if e.place is Place.BETWEEN)
    share = 7 / 8 if scheme == "c" else 1
    # Over all rounds each worker sends its 128 samples to 7 others: (b) in its own round, (c) a share in every round.
    in_all_rounds = {"b": junction.messages * junction.bytes, "c": 8 * share * junction.bytes}[scheme]
    assert in_all_rounds == 7 * 128 * 9216 * 4


def test_rounds_hide_what_is_sent_behind_what_is_computed() -> None:
    # By hand: t = 7 (alpha + 16 x 9216 x 4 bytes / 1 GB/s) each way, exposed 2 t + 7 max(0, 2 t - t_fc).
    job = Job(ALEXNET, 1024, 8, CLUSTER)
    answer = project(job, Owt(), IDEAL, LinkTimer(CLUSTER))
    t = 7 * (1e-6 + 16 * 9216 * 4 / 1e9)
    fc = Owt().plan(job).stages[1]
    t_fc = sum(
        task.count * task.call.layer.work(task.call.phase, 128).flop / 1e12
        for task in fc.tasks
        if task.call.phase is not Phase.UPDATE
    ) + float(LinkTimer(CLUSTER).price([e.transfer for e in fc.exchanges]).middle_s.sum())
    inside = 8 * float(LinkTimer(CLUSTER).price([e.transfer for e in fc.exchanges]).middle_s.sum())
    exchange = 14 * (1e-6 + (2_468_544 + 1152) * 4 / 8 / 1e9)
    exposed = 2 * t + 7 * max(0.0, 2 * t - t_fc)
    assert answer.communication_total.middle == pytest.approx(exposed + inside + exchange, rel=1e-9)
    assert (answer.hidden.middle + exposed) == pytest.approx(16 * t, rel=1e-9)


def test_fully_connected_weights_are_updated_once_or_in_every_round() -> None:
    once, often = (run(Owt(update=update), ALEXNET, 1024, 8) for update in ("step", "round"))
    assert seconds(often) > seconds(once)
    gathered = (run(Owt(scheme="a", update=update), ALEXNET, 1024, 8) for update in ("step", "round"))
    assert len({seconds(each) for each in gathered}) == 1


# --- data, zero, recomputation, stragglers


def test_buckets_hide_the_exchange_behind_backward() -> None:
    whole, cut = run(Data(), RESNET, 64, 8), run(Data(bucket_bytes=25 * 2**20), RESNET, 64, 8)
    assert seconds(cut) < seconds(whole)
    assert cut.hidden.middle > 0
    sent = cut.hidden.middle + cut.gradient_exchange.middle
    buckets = Data(bucket_bytes=25 * 2**20).plan(Job(RESNET, 64, 8, CLUSTER))
    assert isinstance(buckets.schedule, Overlapped)
    assert sum(stage.params for stage in buckets.stages) == RESNET.params
    # More messages, the same bytes.
    assert sent == pytest.approx(whole.gradient_exchange.middle + (len(buckets.stages) - 1) * 14e-6, rel=1e-6)


def test_one_bucket_hides_nothing() -> None:
    whole, cut = run(Data(), RESNET, 64, 8), run(Data(bucket_bytes=1e12), RESNET, 64, 8)
    assert seconds(cut) == pytest.approx(seconds(whole), rel=1e-12)


def test_accumulation_exchanges_once_for_several_passes() -> None:
    once, four = run(Data(), VGG, 128, 4), run(Data(accumulation=4), VGG, 128, 4)
    assert four.gradient_exchange.middle == once.gradient_exchange.middle
    assert four.compute_total.middle == pytest.approx(once.compute_total.middle)
    assert four.samples_per_device == once.samples_per_device == 32
    assert four.memory is not None
    assert once.memory is not None
    assert four.memory.total_bytes < once.memory.total_bytes
    bucketed = run(Data(accumulation=4, bucket_bytes=25 * 2**20), VGG, 128, 4)
    assert seconds(bucketed) <= seconds(four)


def test_synchronised_norms_and_buffers_cost_latency() -> None:
    job = Job(net(), 16, 4, CLUSTER)
    how = Data(synchronised_norm=True, broadcast_buffers=True)
    assert [(layer, part, t.collective, t.bytes) for layer, part, t in moved(how, job)] == [
        ("", StepPart.FORWARD, "broadcast", 8 * 8 + 8),
        ("bn", StepPart.FORWARD, "all_gather", 4 * 4 * 17),
        ("bn", StepPart.BACKWARD_DATA, "all_reduce", 4 * 16),
        ("", StepPart.GRADIENT_EXCHANGE, "all_reduce", 4 * net().params),
    ]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_moves_what_it_says(stage: int) -> None:
    job = Job(VGG, 32, 4, CLUSTER)
    sent = moved(Zero(stage), job)
    whole = 4 * VGG.params
    volumes = {
        name: sum(t.bytes for _, _, t in sent if t.collective == name) for name in ("all_gather", "reduce_scatter")
    }
    # Stages 1 and 2 move data parallelism's volume, stage 3 half as much again.
    assert volumes == {"all_gather": whole * (2 if stage == 3 else 1), "reduce_scatter": whole}


def test_each_stage_of_zero_holds_less() -> None:
    adam = Execution(optimizer="adam")
    memories = [run(how, RESNET, 8, 8, execution=adam).memory for how in (Data(), Zero(1), Zero(2), Zero(3))]
    totals = [memory.total_bytes for memory in memories if memory is not None]
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4
    last = memories[-1]
    assert last is not None
    assert last.by_kind_bytes[MemoryKind.OPTIMIZER] == pytest.approx(2 * 4 * RESNET.params / 8)


@pytest.mark.parametrize("name", STRATEGIES)
def test_recomputation_trades_time_for_memory(name: str) -> None:
    devices = min(4, STRATEGIES[name].limit(Job(VGG, 32, 1, CLUSTER)).max_devices)
    kept = run(strategy(name), VGG, 32, devices)
    again = run(strategy(name), VGG, 32, devices, execution=Execution(recomputed_segments=6))
    assert seconds(again) > seconds(kept)
    assert kept.memory is not None
    assert again.memory is not None
    assert again.memory.total_bytes < kept.memory.total_bytes or name.endswith("pipeline")
    assert again.memory.total_bytes <= kept.memory.total_bytes  # a pipeline's fullest device may hold mostly weights


def test_recomputing_runs_forward_once_more() -> None:
    kept, again = (
        run(strategy("serial"), VGG, 8, 1),
        run(strategy("serial"), VGG, 8, 1, execution=Execution(recomputed_segments=1)),
    )
    assert seconds(again) - seconds(kept) == pytest.approx(kept.compute[StepPart.FORWARD].middle, rel=1e-9)


def test_steps_wait_longer_for_the_slowest_of_more_devices() -> None:
    spread = replace(CLUSTER, device_spread=0.05)
    waits = []
    for devices in (1, 2, 16, 256):
        answer = project(Job(VGG, 256, devices, spread), Data(), IDEAL, LinkTimer(spread))
        waits.append(answer.stragglers.middle / answer.compute_total.middle)
    assert waits[0] == 0
    assert waits == sorted(waits)
    # The expected maxima of 2, 16 and 256 standard normals are 0.564, 1.766 and 2.82 (Tippett, Biometrika 17, 1925).
    assert np.allclose(np.log1p(waits[1:]) / 0.05, [0.564, 1.766, 2.82], atol=0.05)
