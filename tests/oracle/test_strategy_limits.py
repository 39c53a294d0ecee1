"""Which devices and choices a strategy refuses, and what it says. That limits hold is in test_projection."""

from __future__ import annotations

import pytest

from oracle.errors import BadInput, OutOfRange, UnknownName
from oracle.execution import Execution
from oracle.layers import Elementwise, Linear, Loss, Norm
from oracle.links import LinkTimer
from oracle.loading import load_model
from oracle.machine import Cluster, Link
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job, Microbatched, Strategy
from oracle.pricing import IdealTimer
from oracle.project import project
from oracle.projection import Projection
from oracle.strategies import strategy
from oracle.strategies.channel import Channel
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid
from oracle.strategies.owt import Owt
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.spatial import Spatial
from oracle.strategies.zero import Zero
from oracle.windows import Conv, Pool

CLUSTER = Cluster.of_link("any", Link(1e-6, 1e9))
VGG = load_model("vgg16")


def run(how: Strategy, model: ModelGraph, batch: int, devices: int) -> Projection:
    return project(Job(model, batch, devices, CLUSTER), how, IdealTimer.of_rate(1e12), LinkTimer(CLUSTER))


def net(*, groups: int = 1) -> ModelGraph:
    """conv1 - bn - relu - pool - conv2 - fc - loss"""
    build = GraphBuilder("net", (4, 16, 16))
    build.add("conv1", Conv.of((4, 16, 16), 8, 3, padding=1))
    build.add("bn", Norm("batch", (8, 16, 16)))
    build.add("relu", Elementwise("relu", (8, 16, 16), inplace=True))
    build.add("pool", Pool.of("max", (8, 16, 16), 2))
    build.add("conv2", Conv.of((8, 8, 8), 8, 3, padding=1, groups=groups))
    build.add("fc", Linear(512, 12))
    build.add("loss", Loss("cross_entropy", (12,)))
    return build.graph(dataset_samples=1000)


@pytest.mark.parametrize(
    ("how", "batch", "devices", "possible", "reason"),
    [
        ("filter", 32, 128, "1 to 64 devices", "conv1_1 has 64 filters"),
        ("channel", 32, 65, "1 to 64 devices", "conv1_2 has 64 channels"),
        ("data", 32, 33, "1 to 32 devices", "a global batch of 32 has no sample for more"),
        ("zero", 3, 4, "1 to 3 devices", "a global batch of 3 has no sample for more"),
        ("pipeline", 32, 40, "1 to 39 devices", "it has 39 layers"),
        ("spatial", 32, 225, "1 to 224 devices", "conv1_1 has 224 rows"),
        ("owt", 13, 5, "1 to 4 devices", "a worker's share of a global batch of 13 has no sample for more rounds"),
        ("data+filter", 4, 257, "1 to 256 devices",
         "4 groups of 64: a global batch of 4 has no sample for more, and conv1_1 has 64 filters"),
    ],
)  # fmt: skip
def test_refusals_say_what_is_possible_and_why(how: str, batch: int, devices: int, possible: str, reason: str) -> None:
    refusal = f"{how} parallelism can use {possible} for vgg16, not {devices} ({reason})"
    assert run(strategy(how), VGG, batch, devices).reason == refusal


def test_owt_without_fully_connected_layers_is_refused_in_one_line() -> None:
    build = GraphBuilder("conv_net", (4, 8, 8))
    build.add("conv", Conv.of((4, 8, 8), 8, 3))
    answer = run(Owt(), build.graph(), 16, 2)
    assert answer.reason == ("owt parallelism can use 1 device for conv_net, not 2 (it has no fully connected layers)")
    build = GraphBuilder("mlp", (8,))
    build.add("fc", Linear(8, 8))
    assert "(it has no layers before the fully connected)" in run(Owt(), build.graph(), 16, 2).reason


def test_grouped_convolutions_split_by_groups_and_refuse_channels_by_name() -> None:
    grouped = net(groups=4)
    assert run(Filter(), grouped, 8, 5).reason.endswith(
        "1 to 4 devices for net, not 5 (conv2 is a convolution in 4 groups)"
    )
    assert run(Channel(), grouped, 8, 2).reason.endswith("1 device for net, not 2 (conv2 is a convolution in 4 groups)")
    assert run(Filter(), grouped, 8, 3).feasible


@pytest.mark.parametrize(
    ("how", "devices", "text"),
    [
        (Spatial(grid=(2, 2)), 3, "spatial parallelism cannot use 3 devices for net (a grid of 2x2 has 4)"),
        (Spatial(grid=(2, 32)), 64, "can use 1 device for net, not 64 (conv1 is too small for a grid of 2x32)"),
        (Pipeline(cuts=("bn",)), 3, "pipeline parallelism cannot use 3 devices for net (its 1 cut makes 2 stages)"),
        (Pipeline(segments=9), 2, "cannot use 2 devices for net (a batch of 8 cannot be cut into 9 segments)"),
        (Hybrid(Data(), Filter(), 3), 4, "cannot use 4 devices for net (they are no multiple of its group of 3)"),
        (Hybrid(Data(), Spatial(grid=(2, 2)), 2), 2, "data+spatial parallelism can use 1 device for net, not 2"),
        (Data(accumulation=4), 3, "no sample for more in each of 4 passes"),
        (Data(accumulation=9), 1, "cannot use 1 device for net"),
    ],
)  # fmt: skip
def test_choices_that_do_not_fit_the_job_are_refused(how: Strategy, devices: int, text: str) -> None:
    assert text in run(how, net(), 8, devices).reason


@pytest.mark.parametrize(
    "how", [Filter(split=("conv9",)), Channel(split=("conv9",)), Spatial(last_split="conv9"), Pipeline(cuts=("conv9",))]
)
def test_layers_that_are_not_there_are_named(how: Strategy) -> None:
    with pytest.raises(BadInput, match="net has no layer 'conv9' to"):
        run(how, net(), 8, 2)


def test_layers_that_cannot_be_split_are_named() -> None:
    with pytest.raises(BadInput, match="layer 'pool' of net has no filters to split: its kind is pool"):
        run(Filter(split=("pool",)), net(), 8, 2)
    with pytest.raises(BadInput, match="leave a stage without layers"):
        run(Pipeline(cuts=("bn", "bn")), net(), 8, 3)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Owt(scheme="d"),
        lambda: Owt(update="never"),
        lambda: Pipeline(kind="2f2b"),
        lambda: Microbatched(4, "2f2b"),
    ],
)
def test_unknown_choices_are_refused(build: object) -> None:
    with pytest.raises(UnknownName):
        build()  # type: ignore[operator]


@pytest.mark.parametrize(
    "build",
    [
        lambda: Zero(stage=4),
        lambda: Zero(unit_bytes=0),
        lambda: Data(accumulation=0),
        lambda: Data(bucket_bytes=0),
        lambda: Spatial(grid=(0, 2)),
        lambda: Hybrid(Data(), Filter(), 0),
        lambda: Microbatched(0),
        lambda: Execution(recomputed_segments=-1),
        lambda: Cluster("c", "d", device_spread=float("nan")),
    ],
)
def test_impossible_numbers_are_refused(build: object) -> None:
    with pytest.raises(OutOfRange):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("inner", ["spatial", "pipeline", "filter", "channel", "owt", "zero"])
def test_groups_of_any_number_of_devices_are_found_without_trying_every_size(inner: str) -> None:
    # A prime: no group but of one and of all. Trying 10^12 sizes or shares one by one would take hours.
    job = Job(VGG, 10**12, 10**12 + 39, Cluster.of_link("any", Link(1e-6, 1e9)))
    assert Hybrid(Data(), strategy(inner)).limit(job).max_devices >= 10**12


def test_a_group_larger_than_the_cluster_is_a_reason_and_no_error() -> None:
    four = Cluster.of_link("any", Link(1e-6, 1e9), 4)
    job = Job(net(), 8, 4, four)
    answer = project(job, Hybrid(Data(), Filter(), 8), IdealTimer.of_rate(1e12), LinkTimer(four))
    assert "a group has 8 devices, and cluster 'link' 4" in answer.reason
