"""Plans and timers to projections; every rule here holds for the whole registry of strategies where it can."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.errors import UnknownName
from oracle.estimate import DRAWS
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Elementwise, Linear, Loss, Norm
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job, Microbatched, StepPart, tasks_of
from oracle.pricing import IdealTimer, LayerCall, Method, Prices
from oracle.project import project
from oracle.projection import Projection
from oracle.strategies import STRATEGIES, strategy
from oracle.windows import Conv

LINK = Link(1e-6, 1e9)
CLUSTER = Cluster.of_link("any", LINK)
IDEAL = IdealTimer.of_rate(1e12)


@dataclass(frozen=True)
class SpreadTimer:
    """An ideal device whose rate is uncertain by 10 %, common to all calls, and half of whose calls were fitted."""

    def price(self, calls: Sequence[LayerCall]) -> Prices:
        middle = IDEAL.price(calls).middle_s
        common = np.exp(0.1 * np.random.default_rng(7).standard_normal(DRAWS))
        methods = tuple(Method.MEASURED if call.phase is Phase.FORWARD else Method.EXTRAPOLATED for call in calls)
        return Prices(middle, middle[:, None] * common, methods)


def net() -> ModelGraph:
    build = GraphBuilder("net", (3, 8, 8))
    build.add("conv1", Conv.of((3, 8, 8), 4, 3, padding=1))
    build.add("bn", Norm("batch", (4, 8, 8)))
    build.add("relu", Elementwise("relu", (4, 8, 8), inplace=True))
    build.add("conv2", Conv.of((4, 8, 8), 4, 3, padding=1))
    build.add("add", Elementwise("add", (4, 8, 8)), "conv2", "relu")
    build.add("fc", Linear(256, 10))
    build.add("loss", Loss("cross_entropy", (10,)))
    return build.graph(dataset_samples=1000)


def job(batch: int, devices: int = 1, cluster: Cluster = CLUSTER) -> Job:
    return Job(net(), batch, devices, cluster)


def run(name: str, what: Job) -> Projection:
    return project(what, strategy(name), SpreadTimer(), LinkTimer(what.cluster))


def seconds(projection: Projection) -> float:
    assert projection.step is not None
    return projection.step.middle


def flop(name: str, what: Job) -> float:
    """Operations of forward and backward on all devices together."""
    plan = strategy(name).plan(what)
    total = 0.0
    for index, stage in enumerate(plan.stages):
        calls = [(task.count, task.call) for task in stage.tasks if task.call.phase is not Phase.UPDATE]
        one_pass = sum(count * call.layer.work(call.phase, call.samples).flop for count, call in calls)
        total += plan.passes(index) * one_pass
    # The stages of a pipeline run on devices of their own, those of all else on every device of a replica.
    pipelined = isinstance(plan.schedule, Microbatched)
    return total * what.devices / (len(plan.stages) if pipelined else 1)


def splittable() -> ModelGraph:
    """Layers that divide by 4 in every way: convolutions, then a fully connected one."""
    build = GraphBuilder("splittable", (8, 16, 16))
    build.add("conv1", Conv.of((8, 16, 16), 8, 3, padding=1, bias=False))
    build.add("conv2", Conv.of((8, 16, 16), 8, 3, padding=1, bias=False))
    build.add("fc", Linear(2048, 8, bias=False))
    return build.graph()


@pytest.mark.parametrize("name", STRATEGIES)
def test_on_one_device_every_strategy_is_serial(name: str) -> None:
    one, serial = run(name, job(16)), run("serial", job(16))
    assert one.step is not None
    assert serial.step is not None
    difference = one.step - serial.step
    assert (difference.middle, difference.interval()) == (0.0, (0.0, 0.0))
    assert one.memory == serial.memory


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("devices", [2, 4])
def test_the_work_of_all_devices_is_the_work_of_one(name: str, devices: int) -> None:
    one = Job(splittable(), 16, 1, CLUSTER)
    several = replace(one, devices=min(devices, STRATEGIES[name].limit(one).max_devices))
    replicated = {"channel": ["conv1"], "spatial": ["fc"], "data+channel": ["conv1"], "data+spatial": ["fc"]}
    # What is replicated is done by every device, the rest once: on an unlimited tier a hybrid is one group.
    layers = [(node, node.name in replicated.get(name, [])) for node in splittable().nodes]
    calls = tasks_of(splittable(), [node for node, _ in layers], 16)
    again = {node.layer for node, twice in layers if twice}
    once = sum(t.count * t.call.layer.work(t.call.phase, 16).flop for t in calls if t.part is not StepPart.UPDATE)
    assert flop("serial", one) == once
    if name in {"channel", "data+channel"}:  # conv1 and conv2 have one shape; conv1 has no data gradient
        extra = 2 * splittable().nodes[0].layer.work(Phase.FORWARD, 16).flop
    else:
        extra = 3 * sum(layer.work(Phase.FORWARD, 16).flop for layer in again)
    assert flop(name, several) == once + (several.devices - 1) * extra


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 40))
def test_no_work_is_lost_whatever_the_number_of_devices(name: str, batch: int, devices: int) -> None:
    what = job(batch, devices)
    if STRATEGIES[name].limit(what).refusal(name, what) is None:
        assert flop(name, what) >= flop("serial", job(batch)) * (1 - 1e-12)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25)
@given(st.integers(1, 64), st.integers(1, 64), st.floats(1, 100), st.floats(1, 100))
def test_a_better_link_never_slows_a_step(name: str, batch: int, devices: int, sooner: float, faster: float) -> None:
    link = Link(LINK.latency_s / sooner, LINK.bandwidth_bytes_per_s * faster)
    slow, fast = run(name, job(batch, devices)), run(name, job(batch, devices, Cluster.of_link("any", link)))
    assert slow.feasible == fast.feasible
    assert not slow.feasible or seconds(fast) <= seconds(slow) * (1 + 1e-12)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25)
@given(st.integers(1, 64), st.integers(1, 64))
def test_fewer_bytes_never_slow_a_step(name: str, batch: int, devices: int) -> None:
    # The timer here asks for operations alone, so half as many bytes per activation only make transfers smaller.
    wide = job(batch, devices)
    slow, fast = run(name, wide), run(name, replace(wide, execution=Execution("bf16")))
    assert not slow.feasible or seconds(fast) <= seconds(slow) * (1 + 1e-12)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 40))
def test_the_parts_of_a_step_add_up_and_none_is_negative(name: str, batch: int, devices: int) -> None:
    answer = run(name, job(batch, devices, replace(CLUSTER, device_spread=0.03)))
    if answer.step is None:
        return
    split = answer.forward_backward + answer.gradient_exchange + answer.weight_update
    assert split.middle == pytest.approx(seconds(answer), rel=1e-12)
    times = [*answer.compute.values(), *answer.communication.values(), answer.bubble, answer.stragglers, answer.hidden]
    assert all(np.all(time.draws >= -1e-15) and time.middle >= -1e-15 for time in times)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_difference_of_an_answer_and_itself_is_exactly_zero(name: str) -> None:
    first, again = run(name, job(16, 4)).step, run(name, job(16, 4)).step
    if first is not None and again is not None:
        assert ((first - again).middle, (first - again).interval()) == (0.0, (0.0, 0.0))


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("batch", [1, 7, 32])
def test_limits_refuse_exactly_what_they_say(name: str, batch: int) -> None:
    most = STRATEGIES[name].limit(job(batch)).max_devices
    assert run(name, job(batch, most)).feasible
    for devices in range(1, min(most, 40) + 1):
        answer = run(name, job(batch, devices))
        assert answer.feasible or "cannot use" in answer.reason
    refused = run(name, job(batch, most + 1))
    assert not refused.feasible
    assert f"not {most + 1} (" in refused.reason
    assert (refused.step, refused.memory, refused.epoch, refused.samples_per_s) == (None, None, None, None)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_memory_holds_at_least_weights_and_gradients(name: str, devices: int) -> None:
    memory = run(name, job(16, devices)).memory
    if memory is not None:
        parts = 1 if name in {"serial", "data", "spatial", "data+spatial"} else devices
        assert memory.total_bytes > 2 * 4 * net().params / parts


def test_data_parallelism_adds_one_ring_all_reduce_of_all_gradients() -> None:
    data, share = run("data", job(32, 4)), run("serial", job(8))
    # 2 * 3 rounds of 1 us, 2 * 3/4 of the gradients at 1 GB/s
    exchange_s = 6e-6 + 1.5 * 4 * net().params / 1e9
    assert data.gradient_exchange.middle == pytest.approx(exchange_s, rel=1e-12)
    assert data.communication_total.middle == pytest.approx(exchange_s, rel=1e-12)
    assert data.compute_total.middle == pytest.approx(share.compute_total.middle, rel=1e-12)
    assert seconds(data) == pytest.approx(share.compute_total.middle + exchange_s, rel=1e-12)


def test_the_split_of_a_step_adds_up() -> None:
    data = run("data", job(32, 4))
    parts = (data.forward_backward + data.gradient_exchange + data.weight_update).middle
    assert parts == pytest.approx(seconds(data), rel=1e-12)
    assert sum(data.methods.values()) == pytest.approx(1.0)
    assert data.methods[Method.ASSUMED] == pytest.approx(data.gradient_exchange.middle / seconds(data))
    assert list(data.compute) == [part for part in StepPart if part is not StepPart.GRADIENT_EXCHANGE]


@given(st.integers(1, 100), st.integers(1, 100))
def test_a_step_waits_for_the_device_with_the_largest_share(batch: int, devices: int) -> None:
    data = run("data", job(batch, devices))
    if devices > batch:
        assert not data.feasible
        return
    largest = len(range(0, batch, devices))  # deal the samples out one by one
    assert data.samples_per_device == largest
    assert data.compute_total.middle == pytest.approx(run("serial", job(largest)).compute_total.middle)
    assert any("do not divide" in note for note in data.notes) == (batch % devices > 0)


def test_draws_are_shared_by_compute_and_by_answers() -> None:
    first, again = run("data", job(32, 4)).step, run("data", job(32, 4)).step
    assert first is not None
    assert again is not None
    assert (first - again).interval() == (0.0, 0.0)
    lo, hi = first.interval()
    assert lo < first.middle < hi
    # A rate common to both drops out of their ratio.
    double, single = run("serial", job(64)).forward_backward, run("serial", job(32)).forward_backward
    lo, hi = (double / single).interval()
    assert lo == pytest.approx(hi)


def test_an_epoch_is_its_steps_times_the_mean_step() -> None:
    serial = run("serial", job(300))  # 1000 samples: 4 steps
    assert serial.step is not None
    assert serial.epoch is not None
    assert serial.epoch.middle == pytest.approx(4 * serial.step.mean)
    assert serial.samples_per_s is not None
    assert serial.samples_per_s.middle == pytest.approx(300 / seconds(serial))
    nothing_known = run("serial", replace(job(300), model=replace(net(), dataset_samples=None)))
    assert nothing_known.epoch is None


def test_what_does_not_fit_has_a_reason_and_a_time() -> None:
    small = run("data", job(32, 4, replace(CLUSTER, memory_bytes=1024.0)))
    assert not small.feasible
    assert small.reason.startswith("does not fit: a device needs ")
    assert seconds(small) == seconds(run("data", job(32, 4)))
    assert run("data", job(32, 4, replace(CLUSTER, memory_bytes=1e9))).feasible


def test_notes_say_what_is_not_known() -> None:
    notes = "; ".join(run("data", job(32, 4)).notes)
    assert "priced outside the range" in notes
    assert "given, not measured" in notes
    assert "whether it fits was not checked" in notes


@pytest.mark.parametrize("what", [job(32, 4), job(2, 4), job(32, 4, replace(CLUSTER, memory_bytes=1e9))])
def test_the_json_is_plain_and_complete(what: Job) -> None:
    projection = run("data", what)
    values = json.loads(json.dumps(projection.to_dict(), allow_nan=False))
    assert values["format"] == "stepgauge-projection-1"
    assert values["feasible"] == projection.feasible
    assert (values["step_s"] is None) == (projection.step is None)
    if projection.step is not None:
        assert values["step_s"]["middle"] == projection.step.middle
        assert values["step_s"]["lo"] <= values["step_s"]["middle"] <= values["step_s"]["hi"]
        assert set(values["compute_s"]) == {"forward", "backward_data", "backward_weight", "update"}
        assert set(values["communication_s"]) == {"gradient_exchange"}
        assert sum(values["memory"]["by_kind_bytes"].values()) == values["memory"]["total_bytes"]


def test_mixed_precision_exchanges_gradients_in_float32() -> None:
    bf16 = replace(job(32, 4), execution=Execution("bf16"))
    assert run("data", bf16).gradient_exchange.middle == run("data", job(32, 4)).gradient_exchange.middle


def test_unknown_strategies_come_with_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="unknown strategy 'dta'; did you mean 'data'"):
        strategy("dta")


def test_predicting_imports_numpy_and_nothing_heavier() -> None:
    code = "import sys, oracle.project, oracle.links, oracle.strategies; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "scipy", "sklearn", "cupy", "yaml", "sqlalchemy"} & set(loaded)
