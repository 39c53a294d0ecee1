"""The optimizer's call: one for all tensors that a device updates, however a strategy cuts the model into stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from oracle.breakdown import SHARED_UPDATE, kernels_of
from oracle.layer import Layer, Phase
from oracle.layers import Embedding, Linear, Loss
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link
from oracle.model import INPUT, GraphBuilder, ModelGraph
from oracle.plan import Job, StepPart, Strategy
from oracle.pricing import IdealTimer, LayerCall
from oracle.project import project
from oracle.questions import updates_of
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.owt import Owt
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.serial import Serial
from oracle.strategies.zero import Zero
from oracle.updates import Parameters, together
from oracle.windows import Conv

CLUSTER = Cluster.of_link("any", Link(1e-6, 1e9))
STEP_S, TENSOR_S, ITEM_S = 1e-3, 1e-5, 1e-9
WIDTHS = (64, 32, 32, 16)


def update_s(call: LayerCall) -> float:
    if call.phase is not Phase.UPDATE:
        return 0.0
    return STEP_S + TENSOR_S * len(call.layer.param_shapes) + ITEM_S * call.layer.params


TIMER = IdealTimer(update_s)


def net() -> ModelGraph:
    """Three fully connected layers: six tensors."""
    build = GraphBuilder("net", WIDTHS[:1])
    for number, pair in enumerate(pairwise(WIDTHS)):
        build.add(f"fc{number}", Linear(*pair))
    build.add("loss", Loss("cross_entropy", WIDTHS[-1:]))
    return build.graph()


def images() -> ModelGraph:
    build = GraphBuilder("images", (4, 8, 8))
    build.add("conv", Conv.of((4, 8, 8), 8, 3, padding=1))
    build.add("fc1", Linear(512, 64))
    build.add("fc2", Linear(64, 16))
    return build.graph()


def step_update_s(how: Strategy, devices: int, model: ModelGraph | None = None) -> float:
    found = project(Job(model or net(), 64, devices, CLUSTER), how, TIMER, LinkTimer(CLUSTER))
    return found.compute[StepPart.UPDATE].middle


def calls_s(*groups: Sequence[Layer]) -> float:
    """What calls of an optimizer on these groups of layers take, one after another."""
    return sum(update_s(LayerCall(together(layers), Phase.UPDATE, 1)) for layers in groups)


def test_a_step_of_the_optimizer_is_paid_once() -> None:
    model = net()
    expected = STEP_S + 6 * TENSOR_S + model.params * ITEM_S
    assert step_update_s(Serial(), 1) == pytest.approx(expected)
    # However many buckets gradients are exchanged in.
    assert len(Data(bucket_bytes=1.0).plan(Job(model, 64, 4, CLUSTER)).stages) == 3
    assert step_update_s(Data(bucket_bytes=1.0), 4) == pytest.approx(expected)


def test_every_device_of_a_pipeline_has_an_optimizer_of_its_own() -> None:
    job = Job(net(), 64, 2, CLUSTER)
    plan = Pipeline(segments=2).plan(job)
    stages = [[node.layer for node in stage.nodes] for stage in plan.stages]
    assert step_update_s(Pipeline(segments=2), 2) == pytest.approx(max(calls_s(layers) for layers in stages))
    assert [where for _, where in updates_of(plan)] == [(0,), (1,)]


def test_zero_updates_a_share_of_every_unit_in_one_call() -> None:
    # A unit is a flat tensor of which a device holds a quarter; every layer is a unit of its own here.
    shares = Parameters(
        tuple(sorted(((-(-node.layer.params // 4), 1) for node in net().nodes if node.layer.params), reverse=True))
    )
    assert step_update_s(Zero(unit_bytes=1.0), 4) == pytest.approx(calls_s([shares]))


def test_a_shard_updates_its_own_tensors() -> None:
    model = net()
    plan = Filter().plan(Job(model, 64, 4, CLUSTER))
    own = [node.layer for stage in plan.stages for node in stage.nodes]
    assert sum(layer.params for layer in own) < model.params
    assert step_update_s(Filter(), 4) == pytest.approx(calls_s(own))


@pytest.mark.parametrize("scheme", ["b", "c"])
def test_layers_that_are_updated_in_every_round_have_calls_of_their_own(scheme: str) -> None:
    job = Job(images(), 64, 4, CLUSTER)
    plan = Owt(scheme=scheme, update="round").plan(job)
    once, rounds = ([node.layer for node in stage.nodes] for stage in plan.stages)
    assert step_update_s(Owt(scheme=scheme, update="round"), 4, images()) == pytest.approx(calls_s(once, *[rounds] * 4))
    assert step_update_s(Owt(scheme=scheme, update="step"), 4, images()) == pytest.approx(calls_s([*once, *rounds]))


def test_tied_weights_are_updated_once() -> None:
    build = GraphBuilder("tied", (8,))
    build.add("embedding", Embedding(100, 16, 8))
    build.add("head", Linear(16, 100, rows=8, bias=False, tied=True))
    assert step_update_s(Serial(), 1, build.graph()) == pytest.approx(STEP_S + TENSOR_S + 1600 * ITEM_S)


def test_a_model_without_parameters_has_no_update() -> None:
    build = GraphBuilder("plain", (8,))
    build.add("loss", Loss("mse", (8,)), INPUT)
    plan = Serial().plan(Job(build.graph(), 4, 1, CLUSTER))
    assert not updates_of(plan)
    assert not [item for item in kernels_of(plan, TIMER) if item.part is StepPart.UPDATE]


@pytest.mark.parametrize("how", [Serial(), Data(bucket_bytes=1.0), Filter(), Pipeline(segments=2), Owt(update="round")])
def test_the_shares_of_layers_add_up_to_their_devices_updates(how: Strategy) -> None:
    job = Job(images(), 64, 1 if isinstance(how, Serial) else 2, CLUSTER)
    plan = how.plan(job)
    items = [item for item in kernels_of(plan, TIMER) if item.part is StepPart.UPDATE]
    calls = updates_of(plan)
    total = sum(task.count * update_s(task.call) for task, _ in calls)
    assert math.fsum(item.seconds for item in items) == pytest.approx(total)
    assert SHARED_UPDATE not in {item.layer for item in items}


def test_a_layers_share_is_that_of_its_tensors_and_bytes() -> None:
    # Of three layers each pays a third of the step, its two tensors and its items.
    items = [i for i in kernels_of(Serial().plan(Job(net(), 4, 1, CLUSTER)), TIMER) if i.part is StepPart.UPDATE]
    expected = [STEP_S / 3 + 2 * TENSOR_S + item.call.layer.params * ITEM_S for item in items]
    assert [item.seconds for item in items] == pytest.approx(expected)


def test_a_device_that_needs_no_time_for_updates_shares_nothing_out() -> None:
    plan = Serial().plan(Job(net(), 4, 1, CLUSTER))
    items = kernels_of(plan, IdealTimer(lambda call: 0.0))
    assert np.isfinite([item.seconds for item in items]).all()
