"""What holds a projection, why, and what the engine says would change it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracle.bottlenecks import Bottleneck, find_bottlenecks
from oracle.breakdown import SHARED_UPDATE
from oracle.case import Case
from oracle.detectors import DETECTORS
from oracle.layers import Elementwise, Linear, Loss, Norm
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link, Tier
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job, Microbatched, Overlapped, Strategy
from oracle.predictor import Predictor
from oracle.pricing import IdealTimer, LayerCall
from oracle.projection import FORWARD_BACKWARD, total_of
from oracle.strategies import STRATEGIES
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.serial import Serial
from oracle.strategies.spatial import Spatial
from oracle.strategies.zero import Zero
from oracle.windows import Conv, Pool

SLOW = Cluster.of_link("any", Link(1e-6, 1e9))
LATE = Cluster.of_link("any", Link(1e-3, 1e15))
FREE = Cluster.of_link("any", Link(0.0, 1e18))
NODES = Cluster(
    "nodes", "any", (Tier("node", Link(1e-6, 1e10), 4), Tier("all", Link(1e-5, 1e8), 64, oversubscription=2.0))
)
IDEAL = Predictor(IdealTimer.of_rate(1e10), LinkTimer)


def net() -> ModelGraph:
    build = GraphBuilder("net", (4, 16, 16))
    build.add("conv1", Conv.of((4, 16, 16), 8, 3, padding=1))
    build.add("bn", Norm("batch", (8, 16, 16)))
    build.add("relu", Elementwise("relu", (8, 16, 16), inplace=True))
    build.add("pool", Pool.of("max", (8, 16, 16), 2))
    build.add("conv2", Conv.of((8, 8, 8), 8, 3, padding=1))
    build.add("fc1", Linear(512, 256))
    build.add("fc2", Linear(256, 8))
    build.add("loss", Loss("cross_entropy", (8,)))
    return build.graph(dataset_samples=1000)


def case(strategy: Strategy, cluster: Cluster = SLOW, devices: int = 4, batch: int = 64) -> Case:
    return Case(IDEAL, Job(net(), batch, devices, cluster), strategy)


def found(what: Case) -> dict[str, Bottleneck]:
    return {item.name: item for item in find_bottlenecks(what)}


def test_what_does_not_fit_is_not_called_a_risk() -> None:
    little, enough = (found(case(Data(), replace(SLOW, memory_bytes=size))) for size in (1e6, 4e6))
    assert little["capacity"].why.endswith("do not fit")
    assert "capacity" not in enough


def test_no_remedy_of_a_slow_step_makes_it_slower() -> None:
    for strategy in (Data(), Filter(), Spatial(), Pipeline(), Hybrid(Data(), Filter(), 2)):
        for finding in find_bottlenecks(case(strategy, NODES)):
            assert all(remedy.speedup > 1 for remedy in finding.remedies if finding.of == "the step")


def test_a_tier_is_named_where_there_are_several() -> None:
    assert "over 4 devices ('node' links)" in found(case(Data(), NODES))["gradient exchange"].why
    assert found(case(Data(), SLOW))["gradient exchange"].why.endswith("over 4 devices")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("gradient exchange", case(Data())),
        ("layer-wise collectives", case(Filter())),
        ("point-to-point transfers", case(Spatial(), LATE)),
        ("congestion", case(Hybrid(Data(), Filter(), 4), NODES, 8)),
        ("redundant or inefficient shard compute", case(Filter())),
        ("weight update", case(Data(), batch=4)),
        ("load balance between stages", case(Pipeline())),
        ("redundancy", case(Data(), batch=4)),
        ("capacity", case(Data(), replace(SLOW, memory_bytes=1e6))),
        ("stragglers", case(Data(), replace(SLOW, device_spread=0.1))),
        ("number of devices", case(Filter(), devices=8)),
    ],
)
def test_each_row_of_the_table_is_found_where_it_belongs(name: str, what: Case) -> None:
    item = found(what)[name]
    assert item.why
    assert item.text.startswith(name)


def test_every_detector_is_tested_above_or_below() -> None:
    # Ten rows above, launches below, and the host in test_enqueueing.py; the number of devices is no detector.
    assert len(DETECTORS) == 12


def test_a_share_is_the_projections_own_number() -> None:
    what = case(Data())
    projection = what.projection
    assert projection.step is not None
    share = projection.gradient_exchange.middle / projection.step.middle
    assert found(what)["gradient exchange"].share == pytest.approx(share)


def test_a_remedy_is_a_projection() -> None:
    what = case(Data())
    remedies = {remedy.text: remedy for remedy in found(what)["gradient exchange"].remedies}
    doubled = IDEAL.project(replace(what.job, global_batch=128), Data())
    assert doubled.step is not None
    remedy = remedies["twice the batch per device"]
    assert remedy.share == pytest.approx(doubled.gradient_exchange.middle / doubled.step.middle)
    assert remedy.speedup == pytest.approx(128 / doubled.step.middle / (64 / what.step_s))


def test_startup_and_bytes_are_told_apart() -> None:
    assert "bandwidth-bound" in found(case(Data()))["gradient exchange"].why
    assert "latency-bound (100% is startup)" in found(case(Data(), LATE))["gradient exchange"].why


def test_a_free_network_holds_nobody() -> None:
    for name, strategy in STRATEGIES.items():
        what = Case(IDEAL, Job(net(), 64, 4, FREE), strategy)
        if what.strategy.limit(what.job).refusal(name, what.job) is None:
            assert not [item for item in find_bottlenecks(what) if item.category == "communication"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_shares_of_a_step_are_shares(name: str) -> None:
    what = Case(IDEAL, Job(net(), 64, 4, SLOW), STRATEGIES[name])
    if what.strategy.limit(what.job).refusal(name, what.job) is not None:
        pytest.skip("cannot use 4 devices")
    items = [item for item in find_bottlenecks(what) if item.of == "the step"]
    # Congestion counts transfers again, and fixed costs count kernels again.
    apart = [
        item.share for item in items if item.name not in ("congestion", "launches and other fixed cost of kernels")
    ]
    assert all(share >= 0 for share in apart)
    assert sum(apart) <= 1 + 1e-9


def test_a_remedy_that_does_not_fit_is_not_named() -> None:
    what = case(Data())
    assert what.projection.memory is not None
    tight = case(Data(), replace(SLOW, memory_bytes=1.05 * what.projection.memory.total_bytes))
    assert "twice the batch per device" not in [item.text for item in found(tight)["gradient exchange"].remedies]


def test_what_a_kernel_costs_without_samples_is_named() -> None:
    # 1 ms a call plus 1 us a sample: with 16 samples nearly everything is fixed.
    timer = IdealTimer(lambda call: 1e-3 + 1e-6 * call.samples)
    what = Case(Predictor(timer, LinkTimer), Job(net(), 16, 1, FREE), Serial())
    kernels = total_of(what.projection.compute, FORWARD_BACKWARD).middle
    item = found(what)["launches and other fixed cost of kernels"]
    assert item.share == pytest.approx(kernels * 1000 / 1016 / what.step_s)


# --- layer by layer


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_items_of_a_step_add_up_to_it(name: str) -> None:
    what = Case(IDEAL, Job(net(), 64, 4, SLOW), STRATEGIES[name])
    if what.strategy.limit(what.job).refusal(name, what.job) is not None:
        pytest.skip("cannot use 4 devices")
    if isinstance(what.plan.schedule, Microbatched):
        pytest.skip("stages run on devices of their own")
    assert sum(item.seconds for item in what.kernels) == pytest.approx(what.projection.compute_total.middle)
    moved = sum(item.seconds for item in what.moves)
    waited = what.projection.communication_total + what.projection.hidden
    assert moved == pytest.approx(waited.middle)


def test_equal_layers_share_what_they_run() -> None:
    build = GraphBuilder("twins", (8,))
    build.add("a", Linear(8, 8))
    build.add("b", Linear(8, 8))
    build.add("c", Linear(8, 8))
    what = Case(IDEAL, Job(build.graph(), 4, 1, FREE), Serial())
    forward = [item for item in what.kernels if item.part == "forward"]
    assert [item.layer for item in forward] == ["a", "b", "c"]
    assert {item.count for item in forward} == {1.0}


def test_an_update_of_shared_weights_belongs_to_no_layer() -> None:
    what = case(Zero())
    assert isinstance(what.plan.schedule, Overlapped)
    assert {item.layer for item in what.kernels if item.part == "update"} == {SHARED_UPDATE}


def test_a_lonely_transfer_has_no_neighbours_to_share_links_with() -> None:
    congested = case(Hybrid(Data(), Filter(), 4), NODES, 8).moves[-1]
    # 4 groups on the one network card of a node: alone it takes a quarter of what its bytes take.
    bytes_s = congested.seconds - congested.latency_s
    assert congested.alone_s == pytest.approx(congested.latency_s + bytes_s / 4, rel=1e-3)


def test_calls_are_priced_as_the_plan_has_them() -> None:
    what = case(Filter())
    conv = next(item for item in what.kernels if item.layer == "conv2" and item.part == "forward")
    assert isinstance(conv.call, LayerCall)
    assert conv.call.layer.output_shape == (2, 8, 8)  # a quarter of 8 filters
