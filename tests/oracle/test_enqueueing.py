"""A step takes what its host needs or what its devices need, whichever is longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from oracle.bottlenecks import find_bottlenecks
from oracle.breakdown import kernels_of
from oracle.case import Case
from oracle.estimate import DRAWS, Floats
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Elementwise, Linear, Loss
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link, Tier
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job, StepPart, Strategy, tasks_of
from oracle.predictor import Predictor
from oracle.pricing import IdealTimer, LayerCall, Prices
from oracle.projection import Projection, total_of
from oracle.strategies import STRATEGIES
from oracle.strategies.choices import parse_strategy
from oracle.strategies.data import Data
from oracle.strategies.pipeline import Pipeline
from oracle.strategies.serial import Serial
from oracle.sweep import sweep

CLUSTER = Cluster(
    "nodes", "any", (Tier("node", Link(1e-6, 1e10), 4), Tier("all", Link(1e-5, 1e9), 64)), 2.0**40, device_spread=0.05
)
VARIANTS = ("data,buckets=2KiB", "pipeline,segments=3,schedule=1f1b", "data+pipeline,accumulation=2,segments=5",
            "owt,scheme=b,update=round", "data+filter,buckets=1KiB")  # fmt: skip
HOW: dict[str, Strategy] = {**STRATEGIES, **{text: parse_strategy(text) for text in VARIANTS}}
STEP_S = 5e-4


@dataclass(frozen=True)
class HostTimer:
    """Kernels at a rate; the host needs so long for a call, or for each tensor of an update, and STEP_S for a step."""

    call_s: float
    flop_per_s: float = 1e10

    def price(self, calls: Sequence[LayerCall]) -> Prices:
        return IdealTimer.of_rate(self.flop_per_s).price(calls)

    def enqueue(self, calls: Sequence[LayerCall], execution: Execution) -> Floats:
        fused = execution.update == "fused"
        updates = np.array([call.phase is Phase.UPDATE for call in calls])
        tensors = [len(call.layer.param_shapes) * (not fused) if call.phase is Phase.UPDATE else 1 for call in calls]
        spread = np.append(1.0, np.linspace(0.9, 1.1, DRAWS))
        own_s: Floats = self.call_s * np.array(tensors) + STEP_S * updates
        return np.outer(own_s, spread)


def net() -> ModelGraph:
    build = GraphBuilder("net", (256,))
    for index in range(4):
        build.add(f"fc{index}", Linear(256, 256))
        build.add(f"relu{index}", Elementwise("relu", (256,), inplace=True))
    build.add("loss", Loss("cross_entropy", (256,)))
    return build.graph(dataset_samples=1000)


def run(
    call_s: float, how: Strategy, batch: int = 64, devices: int = 1, execution: Execution | None = None
) -> Projection:
    job = Job(net(), batch, devices, CLUSTER, execution or Execution())
    return Predictor(HostTimer(call_s), LinkTimer).project(job, how)


def seconds(projection: Projection) -> float:
    assert projection.step is not None
    return projection.step.middle


def calls_of_a_step() -> tuple[int, int]:
    """Calls of forward and backward, and tensors that are updated."""
    tasks = tasks_of(net(), net().nodes, 64)
    updates = [task for task in tasks if task.part is StepPart.UPDATE]
    calls = sum(t.count for t in tasks if t.part is not StepPart.UPDATE)
    return calls, sum(len(t.call.layer.param_shapes) * t.count for t in updates)


def test_a_step_is_the_longer_of_host_and_device() -> None:
    # The host needs call_s for every call and tensor and STEP_S once; the device's time does not depend on it.
    calls, tensors = calls_of_a_step()
    device_s = seconds(run(1e-12, Serial()))
    for call_s in (1e-9, 1e-4, 1e-3):
        host_s = call_s * (calls + tensors) + STEP_S
        answer = run(call_s, Serial())
        assert total_of(answer.host).middle == pytest.approx(host_s)
        assert seconds(answer) == pytest.approx(max(host_s, device_s))
        assert total_of(answer.host_wait).middle == pytest.approx(max(0.0, host_s - device_s))


def test_what_a_timer_does_not_know_of_its_host_leaves_a_step_as_it_is() -> None:
    job = Job(net(), 64, 4, CLUSTER)
    for name, how in HOW.items():
        plain = Predictor(IdealTimer.of_rate(1e10), LinkTimer).project(job, how)
        quick = Predictor(HostTimer(1e-15), LinkTimer).project(job, how)
        assert not {**plain.host, **plain.host_wait}, name
        if plain.step is not None and plain.step.middle > STEP_S:
            assert quick.step is not None
            assert quick.step.middle == plain.step.middle


@pytest.mark.parametrize("name", list(HOW))
def test_the_parts_of_a_step_add_up_to_it_where_it_waits_for_the_host(name: str) -> None:
    answer = run(1e-3, HOW[name], devices=4)
    if answer.step is None:
        assert answer.reason
        return
    parts = answer.forward_backward + answer.gradient_exchange + answer.weight_update
    assert parts.middle == pytest.approx(answer.step.middle)
    assert parts.draws == pytest.approx(answer.step.draws)
    assert answer.step.middle >= total_of(answer.host).middle * (1 - 1e-12)
    assert min(time.middle for time in answer.host_wait.values()) >= 0


@pytest.mark.parametrize("call_s", [1e-7, 2e-5, 1e-3])
def test_every_row_of_a_sweep_is_its_own_projection(call_s: float) -> None:
    predictor, batches, devices = Predictor(HostTimer(call_s), LinkTimer), (8, 24, 64, 200), (2, 4)
    job = Job(net(), 64, 1, CLUSTER)
    table = sweep(predictor, job, HOW, devices, batches)
    names = list(HOW)
    checked = 0
    for row in np.flatnonzero(np.isfinite(table.step_s)).tolist():
        own = replace(job, devices=int(table.devices[row]), global_batch=int(table.global_batch[row]))
        answer = predictor.project(own, HOW[names[int(table.strategy[row])]])
        assert table.step_s[row] == pytest.approx(seconds(answer), rel=1e-9)
        checked += 1
    assert checked > len(HOW)


def test_a_hidden_exchange_costs_nothing_beside_a_slow_host() -> None:
    # Both take what the host needs: whether the exchange is hidden or waited for, the devices are done before it.
    plain, hidden = (run(1e-2, how, devices=4) for how in (Data(), Data(bucket_bytes=2.0**11)))
    assert seconds(plain) == pytest.approx(total_of(plain.host).middle)
    assert seconds(hidden) == pytest.approx(seconds(plain))
    assert plain.communication_total.middle > hidden.communication_total.middle


def test_a_pipeline_waits_for_the_busiest_host() -> None:
    # Twice the segments are twice the calls of every host, but no more updates.
    once, twice = (run(1e-3, Pipeline(segments=count), devices=3) for count in (2, 4))
    passes = [total_of(each.host, (StepPart.FORWARD, StepPart.BACKWARD_DATA)).middle for each in (once, twice)]
    assert passes[1] == pytest.approx(2 * passes[0])
    assert seconds(once) == pytest.approx(total_of(once.host).middle)
    serial = run(1e-3, Serial())
    assert total_of(once.host).middle < 2 * total_of(serial.host).middle


def test_a_cuda_graph_asks_once() -> None:
    assert not run(1e-3, Serial(), execution=Execution(graph=True)).host


def test_the_bottleneck_names_remedies_that_were_computed() -> None:
    case = Case(Predictor(HostTimer(1e-3), LinkTimer), Job(net(), 64, 1, CLUSTER), Serial())
    found = {item.name: item for item in find_bottlenecks(case)}["enqueueing by the host"]
    waits = total_of(case.projection.host_wait).middle
    assert found.share == pytest.approx(waits / case.step_s)
    graph = next(remedy for remedy in found.remedies if "CUDA graph" in remedy.text)
    assert graph.share == 0
    assert graph.speedup == pytest.approx(case.step_s / (case.step_s - waits))


def test_a_fused_optimizer_is_named_where_the_update_is_what_the_host_lags_in() -> None:
    case = Case(Predictor(HostTimer(1e-3), LinkTimer), Job(net(), 64, 1, CLUSTER), Serial())
    fused = replace(case, job=replace(case.job, execution=Execution(update="fused")))
    # Eight tensors of weights and biases, a millisecond each.
    assert case.step_s - fused.step_s == pytest.approx(8e-3)


def test_nothing_is_said_of_a_host_that_is_fast_enough() -> None:
    case = Case(Predictor(HostTimer(1e-9, 1e8), LinkTimer), Job(net(), 64, 1, CLUSTER), Serial())
    assert "enqueueing by the host" not in {item.name for item in find_bottlenecks(case)}
    assert not any("host" in note for note in case.projection.notes)


def test_kernels_carry_their_hosts_seconds() -> None:
    plan = Serial().plan(Job(net(), 64, 1, CLUSTER))
    items = kernels_of(plan, HostTimer(1e-3))
    calls, tensors = calls_of_a_step()
    assert sum(item.host_s or 0.0 for item in items) == pytest.approx(1e-3 * (calls + tensors) + STEP_S)
    # A step of the optimizer is shared out by tensors, of which each layer has two.
    updates = [item for item in items if item.part is StepPart.UPDATE]
    assert [item.host_s for item in updates] == [pytest.approx(2e-3 + STEP_S / 4)] * 4
    assert all(item.host_s is None for item in kernels_of(plan, IdealTimer.of_rate(1e10)))
