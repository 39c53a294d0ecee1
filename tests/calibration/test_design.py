from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from benchmarks.recovery import small_residual_network
from calibration.design import (
    EXTREMES,
    LARGEST_CASE_BYTES,
    bytes_held,
    default_cases,
    model_calls,
    plan_calls,
    planned_cases,
)
from calibration.features import QUANTITIES, family, features, quantities
from calibration.grid import HEAD, generic_calls, head, large_calls
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import CALLED, Elementwise, Linear, Norm
from oracle.loading import load_model
from oracle.machine import Cluster, parse_link
from oracle.model import GraphBuilder
from oracle.plan import Job, Plan
from oracle.pricing import LayerCall
from oracle.strategies.choices import parse_strategy
from oracle.updates import Parameters, together
from oracle.windows import Conv
from profiler.case import Case

SMALL = small_residual_network()
QUICK = default_cases([(SMALL, 8)], Execution(), quick=True)
FULL = default_cases([(SMALL, 8)], Execution(), quick=False)


def call_of(name: str, phase: Phase) -> LayerCall:
    layer = next(node.layer for node in SMALL.nodes if node.name == name)
    return LayerCall(layer, phase, 1 if phase is Phase.UPDATE else 8)


@pytest.mark.parametrize("cases", [QUICK, FULL], ids=["quick", "full"])
def test_every_call_of_a_step_is_measured_once(cases: list[Case]) -> None:
    calls = [case.call for case in cases]
    assert set(model_calls(SMALL, 8)) <= set(calls)
    assert len(set(calls)) == len(calls)


def test_calls_are_counted_as_often_as_a_step_makes_them() -> None:
    counts = model_calls(SMALL, 8)
    assert counts[call_of("a.conv1", Phase.FORWARD)] == 2
    # The optimizer updates the tensors of all layers in one call.
    (update,) = [call for call in counts if call.phase is Phase.UPDATE]
    assert counts[update] == 1
    assert update.layer == together([node.layer for node in SMALL.nodes])
    assert update.layer.params == SMALL.params


def test_an_update_that_is_too_large_is_measured_with_smaller_tensors() -> None:
    wide = GraphBuilder("wide", (2**14,))
    for number in range(3):
        wide.add(f"fc{number}", Linear(2**14, 2**14))
    # 3 * 2^28 weights of 12 bytes (with gradient and momentum) are 9 GiB: an eighth of each tensor fits into 2.
    cases = default_cases([(wide.graph(), 1)], Execution(), quick=True)
    smaller = Parameters(((2**25, 3), (2**11, 3)))
    assert LayerCall(smaller, Phase.UPDATE, 1) in {case.call for case in cases}


def test_the_first_layer_needs_no_gradient_of_its_input() -> None:
    assert call_of("conv1", Phase.BACKWARD_DATA) not in model_calls(SMALL, 8)
    assert call_of("conv1", Phase.BACKWARD_WEIGHT) in model_calls(SMALL, 8)


def test_gradients_of_a_result_with_two_readers_are_added_up() -> None:
    # The pooling and the first block's sum are both read by a block and by its shortcut: one addition each.
    added = LayerCall(Elementwise("add", (32, 16, 16)), Phase.FORWARD, 8)
    assert model_calls(SMALL, 8)[added] == 2 + 2  # and the two sums of the blocks themselves


def test_a_quick_design_has_only_the_families_of_its_models() -> None:
    wanted = {(family(call.layer, call.phase), call.phase) for call in model_calls(SMALL, 8)}
    assert {(family(case.call.layer, case.call.phase), case.call.phase) for case in QUICK} == wanted


def test_a_full_design_has_every_kind_of_layer() -> None:
    assert {case.call.layer.kind for case in FULL} == set(CALLED)


@pytest.mark.parametrize("quick", [True, False])
def test_a_design_without_models_is_the_grid(quick: bool) -> None:
    grid = generic_calls()
    sizes = [len(head(key[0], calls, HEAD) if quick else calls) for key, calls in grid.items()]
    assert len(default_cases([], Execution(), quick=quick)) == sum(sizes) + len(large_calls())


def test_no_case_needs_more_memory_than_promised() -> None:
    large = GraphBuilder("large", (3, 512, 512))
    large.add("conv", Conv.of((3, 512, 512), 64, 3, padding=1))
    large.add("huge", Linear(64 * 512 * 512, 64))
    cases = default_cases([(large.graph(), 64)], Execution(), quick=True)
    assert max(bytes_held(case.call, Execution()) for case in cases) <= LARGEST_CASE_BYTES
    # 2 * (3 + 64) * 512 * 512 * 4 bytes = 134 MiB a sample: 8 of the 64 samples fit, and none of the linear layer.
    convs = [case.call.samples for case in cases if case.call.layer == large.nodes[0].layer]
    assert max(convs) == 8
    assert not any(case.call.layer == large.nodes[1].layer for case in cases)


def test_a_larger_share_of_the_step_is_measured_earlier() -> None:
    ranks = [QUICK.index(Case(call_of(name, Phase.FORWARD), Execution())) for name in ("conv1", "fc2")]
    assert ranks == sorted(ranks)


def test_every_quick_grid_prefix_holds_a_tiny_and_a_large_call() -> None:
    for (name, _), calls in generic_calls().items():
        table = features(head(name, calls, 2), Execution())
        assert max(table[:, 2]) > 30 * min(table[:, 2])


@pytest.mark.parametrize("key", generic_calls(), ids=".".join)
def test_grids_separate_the_constants_of_their_family(key: tuple[str, Phase]) -> None:
    # At what a launch, arithmetic, traffic and a step cost on some CPU, each is a good part of some call. Depthwise
    # convolutions on lines do so little arithmetic that no shape shows its cost.
    calls = generic_calls()[key]
    costs = features(calls, Execution()) * [1e-5, 1 / 5e10, 1 / 1e10, 2e-5]
    wanted = quantities(calls[0].layer, key[1])
    costs = costs[:, [QUANTITIES.index(name) for name in wanted]]
    most = dict(zip(wanted, (costs / costs.sum(axis=1, keepdims=True)).max(axis=0), strict=True))
    if key[0] == "conv1d_depthwise":
        del most["flop_per_s"]
    assert min(most.values()) > 0.25


def test_grid_calls_belong_to_their_family() -> None:
    for (name, phase), calls in generic_calls().items():
        assert {(family(call.layer, call.phase), call.phase) for call in calls} == {(name, phase)}


def test_every_family_has_its_extremes_before_a_model_is_measured() -> None:
    families = {(family(case.call.layer, case.call.phase), case.call.phase) for case in QUICK}
    head = [(family(case.call.layer, case.call.phase), case.call.phase) for case in QUICK[: EXTREMES * len(families)]]
    assert Counter(head) == dict.fromkeys(families, EXTREMES)


def test_then_cases_alternate_between_models_and_grid() -> None:
    own = set(model_calls(SMALL, 8))
    then = [case.call in own for case in QUICK[count_extremes([case.call for case in QUICK]) :][:20]]
    assert 8 <= sum(then) <= 12


def count_extremes(calls: Sequence[LayerCall]) -> int:
    """The extremes of all families that are among these calls."""
    families = {(family(call.layer, call.phase), call.phase) for call in calls}
    grid = generic_calls()
    return sum(len(head(key[0], grid[key], EXTREMES)) for key in families)


def test_batch_norm_backward_is_measured_even_behind_the_input() -> None:
    build = GraphBuilder("norm first", (3, 8, 8))
    build.add("norm", Norm("batch", (3, 8, 8)))
    phases = {call.phase for call in model_calls(build.graph(), 4)}
    assert Phase.BACKWARD_DATA in phases


@pytest.mark.parametrize("name", ["resnet50", "cosmoflow"])
def test_zoo_models_have_a_design(name: str) -> None:
    assert default_cases([(load_model(name), 2)], Execution(), quick=True)


def test_pricing_needs_neither_scipy_nor_scikit_learn() -> None:
    code = "import sys, calibration.timers; print([m for m in ('scipy', 'sklearn', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def plan_of(strategy: str, devices: int, batch: int = 16) -> Plan:
    job = Job(SMALL, batch, devices, Cluster.of_link("any", parse_link("1us,1GB/s")))
    return parse_strategy(strategy).plan(job)


def test_a_serial_plan_makes_the_calls_of_the_model() -> None:
    assert plan_calls(plan_of("serial", 1)) == model_calls(SMALL, 16)


def test_a_plan_makes_the_calls_of_its_shards() -> None:
    # Half of the filters on each of two devices, the whole batch on both.
    calls = plan_calls(plan_of("filter", 2))
    whole = next(node.layer for node in SMALL.nodes if node.name == "b.conv2")
    assert isinstance(whole, Conv)
    halved = [call for call in calls if isinstance(call.layer, Conv) and call.layer.in_channels == whole.in_channels]
    assert {(call.layer.output_shape[0], call.samples) for call in halved if call.phase is Phase.FORWARD} == {(16, 16)}


def test_an_accumulated_pass_counts_as_often_as_it_runs() -> None:
    calls, once = plan_calls(plan_of("data,accumulation=4", 2)), plan_calls(plan_of("data", 2, batch=4))
    for call, count in once.items():
        assert calls[call] == count * (1 if call.phase is Phase.UPDATE else 4)


def test_a_question_is_priced_from_its_own_shapes_alone() -> None:
    # Every call that the plans ask a timer for is among the cases.
    steps = [plan_calls(plan_of(name, devices)) for name in ("data", "filter", "channel") for devices in (2, 4)]
    cases = {planned.case.call for planned in planned_cases(steps, Execution(), quick=True, asked_first=True)}
    assert all(call in cases for step in steps for call in step)


def test_a_call_weighs_what_it_counts_in_a_second_of_its_step() -> None:
    short, long = {call_of("fc2", Phase.FORWARD): 1}, {call_of("conv1", Phase.FORWARD): 3}
    planned = {item.case.call: item.weight for item in planned_cases([short, long], Execution(), quick=True)}
    # One call of a step that is nothing else: weight x its seconds is 1; the same holds for three calls, each a third.
    fc2, conv1 = call_of("fc2", Phase.FORWARD), call_of("conv1", Phase.FORWARD)
    assert planned[fc2] * nominal_s(fc2) == pytest.approx(1.0)
    assert planned[conv1] * nominal_s(conv1) == pytest.approx(1.0)
    # A case of the grid weighs as a call that happens once in a mean step.
    generic = next(weight for call, weight in planned.items() if call not in (fc2, conv1))
    assert generic == pytest.approx((1 / nominal_s(fc2) + 1 / (3 * nominal_s(conv1))) / 2)


def nominal_s(call: LayerCall) -> float:
    """Launch, arithmetic and traffic at what `calibration.design` ranks by."""
    work = call.layer.work(call.phase, call.samples, Execution())
    return 5e-6 + work.flop / 1e11 + work.bytes / 1e10


def test_what_is_asked_comes_before_the_rest_of_the_grid() -> None:
    asked = [
        item.case.call for item in planned_cases([model_calls(SMALL, 8)], Execution(), quick=True, asked_first=True)
    ]
    own = set(model_calls(SMALL, 8))
    ranks = [rank for rank, call in enumerate(asked) if call in own]
    assert max(ranks) < count_extremes(asked) + len(large_calls()) + len(own)


def test_a_run_that_is_asked_for_models_has_the_whole_grids_of_their_families_and_no_others() -> None:
    step = model_calls(SMALL, 8)
    families = {(family(call.layer, call.phase), call.phase) for call in step}
    planned = {item.case.call for item in planned_cases([step], Execution(), quick=False, asked_first=True)}
    grid = [call for key, calls in generic_calls().items() if key in families for call in calls]
    assert planned >= {*step, *grid}
    assert {(family(call.layer, call.phase), call.phase) for call in planned} == families


def test_medoids_stand_for_the_small_calls_of_a_step() -> None:
    # One large call, and twenty small ones of one family: a quarter of them comes before the others, spread out.
    large = {LayerCall(Linear(4096, 4096), Phase.FORWARD, 512): 1}
    small = {LayerCall(Linear(16 * size, 16), Phase.FORWARD, 4): 1 for size in range(1, 21)}
    order = [item.case.call for item in planned_cases([large | small], Execution(), quick=True, asked_first=True)]
    first = [call for call in order if call in small][:5]
    widths = sorted(call.layer.input_shapes[0][0] for call in first)
    assert widths[0] == 16
    assert widths[-1] == 320
    assert max(b - a for a, b in pairwise(widths)) <= 160


def test_calls_of_canaries_are_measured_without_a_grid_of_their_own() -> None:
    step = model_calls(SMALL, 8)
    gelu = {LayerCall(Elementwise("gelu", (64, 8, 8)), Phase.FORWARD, 4): 1}
    plain = {item.case.call for item in planned_cases([step], Execution(), quick=True)}
    beside = {item.case.call for item in planned_cases([step], Execution(), quick=True, canaries=[gelu])}
    assert beside - plain == set(gelu)
