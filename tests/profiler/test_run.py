"""The measuring loop, on a device made of numbers and on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from oracle.errors import BadInput, OutOfMemory, OutOfRange
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Linear
from oracle.pricing import LayerCall
from profiler import run, visit
from profiler.anchors import ANCHOR
from profiler.backends.base import Backend, Kernel, Sample, open_backend
from profiler.case import Case, call_from_case
from profiler.measurement import Environment, Measurement
from profiler.run import (
    ANCHOR_PAUSES,
    BLOCK,
    LEAST_ROUND,
    Planned,
    Progress,
    Record,
    RunSettings,
    RunSummary,
    Unmeasured,
    describe,
    measure,
)
from profiler.stopping import StoppingRule
from profiler.visit import MAX_INNER, MIN_SAMPLE_S, host_flags, sample_until


def linear(width: int, phase: Phase = Phase.FORWARD) -> Case:
    return Case(LayerCall(Linear(width, 4), phase, 8), Execution())


class Clockwork:
    """A device on which a call takes a microsecond per feature; it can refuse cases, scatter, and be the clock."""

    name = "clockwork"
    device = "Clockwork 1"

    def __init__(self, refused: dict[int, Exception] | None = None, scatter: float = 0.0) -> None:
        self.refused, self.scatter = refused or {}, scatter
        self.now_s = 0.0
        self.opened: list[int] = []
        self.calls = 0

    def environment(self) -> Environment:
        return Environment({"device": self.device}, {})

    @contextmanager
    def open(self, case: Case) -> Iterator[Kernel]:
        layer = case.call.layer
        assert isinstance(layer, Linear)
        if layer.in_features in self.refused:
            raise self.refused[layer.in_features]
        self.opened.append(layer.in_features)
        yield _Wheel(self, layer.in_features * 1e-6)


class _Wheel:
    def __init__(self, clockwork: Clockwork, seconds: float) -> None:
        self.clockwork, self.seconds = clockwork, seconds

    def sample(self, inner: int) -> Sample:
        self.clockwork.calls += 1
        self.clockwork.now_s += self.seconds * inner
        wobble = 1 + self.clockwork.scatter * (-1) ** self.clockwork.calls
        return Sample(self.seconds * wobble, self.seconds / 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    """A device of which the time is the only time that passes."""
    device = Clockwork()
    for module in (run, visit):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: device.now_s))
    return device


def settings(budget_s: float = 60.0, seed: int = 0, max_visits: int = 4) -> RunSettings:
    return RunSettings("run-1", budget_s, seed, max_visits=max_visits)


def measure_all(
    cases: Sequence[Case],
    device: Backend,
    record: Record,
    how: RunSettings,
    progress: Progress = lambda done, total, text: None,
) -> RunSummary:
    """Measure cases that all weigh the same and were never measured before."""
    return measure([Planned(case) for case in cases], device, record, how, progress)


def test_every_case_is_visited_twice_and_recorded_at_once() -> None:
    taken: list[Measurement] = []
    cases = [linear(width) for width in (10, 20, 30)]
    summary = measure_all(cases, Clockwork(), taken.append, settings())
    assert (summary.measured, summary.converged, summary.visits, summary.rounds) == (3, 3, 6, 2)
    assert summary.unmeasured == ()
    for measurement in taken:
        call = call_from_case(measurement.case, measurement.phase)
        assert isinstance(call.layer, Linear)
        assert measurement.median_s == pytest.approx(call.layer.in_features * 1e-6)
        assert measurement.device_s[0] * measurement.inner >= 0.99 * MIN_SAMPLE_S
        assert (measurement.run_id, measurement.stopped, measurement.flags) == ("run-1", "converged", ())


def test_updates_are_recorded_under_the_optimizer_with_its_key() -> None:
    taken: list[Measurement] = []
    measure_all([linear(10, Phase.UPDATE)], Clockwork(), taken.append, settings())
    assert (taken[0].micro, taken[0].execution) == ("optimizer", "fp32/sgd_momentum")


def test_a_case_that_does_not_fit_is_named_and_the_rest_goes_on() -> None:
    device = Clockwork({20: OutOfMemory("80 GiB free, 90 GiB asked"), 30: BadInput("no such kernel")})
    summary = measure_all([linear(width) for width in (10, 20, 30)], device, lambda measurement: None, settings())
    assert summary.measured == 1
    assert [item.reason for item in summary.unmeasured] == ["80 GiB free, 90 GiB asked", "no such kernel"]


def test_a_case_that_never_converges_is_let_go_after_its_visits() -> None:
    taken: list[Measurement] = []
    summary = measure_all([linear(10)], Clockwork(scatter=0.2), taken.append, settings(max_visits=3))
    assert (summary.visits, summary.converged, summary.rounds) == (3, 0, 3)
    assert all("noisy" in measurement.flags for measurement in taken)


def test_samples_that_agree_while_the_thread_waited_do_not_count_as_converged() -> None:
    device = Clockwork()
    device.name = "cpu"  # the wheel's thread is given half of the time
    summary = measure_all([linear(10)], device, lambda measurement: None, settings(max_visits=3))
    assert (summary.visits, summary.converged) == (3, 0)


def test_a_later_round_begins_with_what_a_second_of_measuring_helps_most(clock: Clockwork) -> None:
    clock.scatter = 0.2
    cases = [Planned(linear(width), weight) for width, weight in ((10, 100.0), (20, 1.0), (40, 10.0))]
    measure(cases, clock, lambda measurement: None, settings(max_visits=2))
    # A visit of a case four times as slow costs four times as much and is worth four times as much: weights decide.
    assert clock.opened[3:] == [10, 40, 20]


def test_a_later_round_takes_the_better_half(clock: Clockwork) -> None:
    clock.scatter = 0.2
    count = 4 * LEAST_ROUND
    cases = [Planned(linear(10 * number), float(number)) for number in range(1, count + 1)]
    measure(cases, clock, lambda measurement: None, settings(max_visits=2))
    second = clock.opened[count : count + count // 2]
    assert sorted(second) == [10 * number for number in range(count // 2 + 1, count + 1)]


def test_the_first_round_keeps_the_order_of_the_blocks_and_shuffles_within() -> None:
    device = Clockwork()
    widths = list(range(1, 2 * BLOCK + 1))
    measure_all([linear(width) for width in widths], device, lambda measurement: None, settings(seed=5))
    first, second = device.opened[:BLOCK], device.opened[BLOCK : 2 * BLOCK]
    assert (sorted(first), sorted(second)) == (widths[:BLOCK], widths[BLOCK:])
    assert first != widths[:BLOCK]
    again = Clockwork()
    measure_all([linear(width) for width in widths], again, lambda measurement: None, settings(seed=5))
    assert again.opened[: 2 * BLOCK] == device.opened[: 2 * BLOCK]


def test_a_budget_that_is_too_short_keeps_the_first_cases_and_names_the_others(clock: Clockwork) -> None:
    # 20 ms per call; a visit is 3 + 2 calls until it is warm and 6 samples, 180 to 220 ms. A second has room for four
    # or five of 40; after it, what is begun is given up after one call each, until the time is over.
    cases = [linear(20_000) for _ in range(40)]
    summary = measure_all(cases, clock, lambda measurement: None, settings(1.0))
    assert summary.measured in (4, 5)
    assert summary.measured + len(summary.unmeasured) == 40
    assert summary.elapsed_s < 1.0 + 0.02
    assert {item.reason for item in summary.unmeasured} <= {
        "the time budget ended before it",
        "it would not have ended within the time budget",
        "the time budget ended after 4 of its samples, and 5 are needed",
    }


def test_a_visit_that_cannot_end_in_time_is_given_up_after_one_call(clock: Clockwork) -> None:
    summary = measure_all([linear(200_000)], clock, lambda measurement: None, settings(1.0))
    assert (summary.measured, clock.calls) == (0, 1)
    assert summary.unmeasured[0].reason == "it would not have ended within the time budget"


def test_what_was_recorded_before_an_interrupt_stays() -> None:
    taken: list[Measurement] = []
    device = Clockwork({30: KeyboardInterrupt()})  # type: ignore[dict-item]
    with pytest.raises(KeyboardInterrupt):
        measure_all([linear(10)] * BLOCK + [linear(30)], device, taken.append, settings())
    assert len(taken) == BLOCK


def test_progress_counts_every_case_of_a_round() -> None:
    seen: list[tuple[int, int, str]] = []
    measure_all(
        [linear(10), linear(20)],
        Clockwork(),
        lambda measurement: None,
        settings(),
        progress=lambda *step: seen.append(step),
    )
    assert [(done, total) for done, total, _ in seen] == [(0, 2), (1, 2), (2, 2)] * 2
    assert seen[2][2] == "round 1: done"


def test_very_short_calls_are_batched_up_to_a_limit() -> None:
    found = sample_until(_Wheel(Clockwork(), 1e-9), StoppingRule())
    assert isinstance(found, visit.Visit)
    assert found.inner == MAX_INNER


def test_the_hosts_clock_tells_preemption_and_launch_bound_kernels() -> None:
    assert host_flags("cpu", [1.0], [0.5]) == ("preempted",)
    assert host_flags("cpu", [1.0], [0.99]) == ()
    assert host_flags("cuda", [1.0], [1.5]) == ("launch-bound",)
    assert host_flags("cuda", [1.0], [0.5]) == ()


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_is_a_positive_number_of_seconds(budget_s: float) -> None:
    with pytest.raises(OutOfRange, match="time budget"):
        settings(budget_s)


def test_the_cpu_is_measured_in_every_phase() -> None:
    pytest.importorskip("torch")
    taken: list[Measurement] = []
    cases = [linear(16, phase) for phase in Phase]
    summary = measure_all(cases, open_backend("cpu"), taken.append, settings(300.0, max_visits=1))
    assert summary.measured == 4
    for measurement in taken:
        assert 0 < measurement.median_s < 1
        assert len(measurement.host_s) == len(measurement.device_s) >= 6
        assert measurement.environment.identity["threads"]


def test_a_case_is_described_with_its_shapes() -> None:
    assert describe(linear(8)) == "linear forward, 8 x (8,) -> (4,)"


def resumed(cases: Sequence[Case], taken: Sequence[Measurement]) -> list[Planned]:
    """The cases with what was taken of them."""
    return [Planned(case, visits=tuple(m for m in taken if m.case_key == case.key)) for case in cases]


@pytest.mark.parametrize("kept", [0, 1, 5, 20, 39])
def test_a_resumed_run_takes_only_the_visits_that_are_missing(kept: int) -> None:
    cases = [linear(width) for width in range(1, 21)]
    whole: list[Measurement] = []
    measure_all(cases, Clockwork(), whole.append, settings())
    assert len(whole) == 40  # two visits of each
    rest: list[Measurement] = []
    summary = measure(resumed(cases, whole[:kept]), Clockwork(), rest.append, settings())
    assert len(rest) == 40 - kept
    assert (summary.measured, summary.visits) == (20, 40)
    again: list[Measurement] = []
    measure(resumed(cases, [*whole[:kept], *rest]), Clockwork(), again.append, settings())
    assert again == []


def test_a_case_that_was_refused_before_is_not_tried_again() -> None:
    device = Clockwork()
    cases = [Planned(linear(10)), Planned(linear(20), refused="too large")]
    refused: list[Unmeasured] = []
    summary = measure(cases, device, lambda measurement: None, settings(), refuse=refused.append)
    assert 20 not in device.opened
    assert [(item.reason, item.refused) for item in summary.unmeasured] == [("too large", True)]
    assert refused == []


def test_a_case_that_the_device_refuses_is_told_at_once() -> None:
    told: list[tuple[str, int]] = []
    device = Clockwork({10: OutOfMemory("too large")})
    cases = [Planned(linear(width)) for width in (10, *range(20, 20 + BLOCK))]
    measure(
        cases, device, lambda m: None, settings(), refuse=lambda item: told.append((item.reason, len(device.opened)))
    )
    assert len(told) == 1
    assert told[0][1] < BLOCK  # before the first round was over


def test_a_visit_that_the_budget_ends_is_kept_from_five_samples_on(clock: Clockwork) -> None:
    # Three calls of 100 ms until it is warm, then a sample every 100 ms: the sixth ends after the budget of 850 ms.
    clock.scatter = 0.2
    found = sample_until(_Wheel(clock, 0.1), StoppingRule(min_samples=8, max_s=10.0), deadline_s=0.85)
    assert isinstance(found, visit.Visit)
    assert (len(found.samples), found.stopped) == (6, "budget")


def test_a_visit_of_fewer_samples_is_dropped_and_said(clock: Clockwork) -> None:
    class Slowing(_Wheel):
        def sample(self, inner: int) -> Sample:
            taken = super().sample(inner)
            self.seconds = 0.3 if self.clockwork.calls >= 3 else 0.1
            return taken

    # Warm after 300 ms, then 300 ms a sample: two of them by 850 ms.
    found = sample_until(Slowing(clock, 0.1), StoppingRule(), deadline_s=0.85)
    assert found == "the time budget ended after 2 of its samples, and 5 are needed"


def test_anchors_come_first_last_and_every_few_seconds(clock: Clockwork) -> None:
    taken: list[Measurement] = []
    cases = [linear(20_000 + number) for number in range(30)]  # about 0.2 s a visit
    how = RunSettings("run-1", 60.0, max_visits=1, anchors=(linear(500), linear(700)), anchor_every_s=1.0)
    measure_all(cases, clock, taken.append, how)
    anchors = [index for index, m in enumerate(taken) if ANCHOR in m.flags]
    assert anchors[:2] == [0, 1]
    assert anchors[-2:] == [len(taken) - 2, len(taken) - 1]
    # 30 visits of about 0.2 s are 6 s: about five moments in between.
    assert 4 * 2 <= len(anchors) - 4 <= 7 * 2
    assert len(taken) - len(anchors) == 30


def test_anchors_that_take_long_are_visited_less_often(clock: Clockwork) -> None:
    # Visits and anchors take about 0.2 s each: at most one in ANCHOR_PAUSES + 1 visits in between is of the anchor.
    taken: list[Measurement] = []
    cases = [linear(20_000 + number) for number in range(40)]
    how = RunSettings("run-1", 60.0, max_visits=1, anchors=(linear(20_000),), anchor_every_s=0.0)
    measure_all(cases, clock, taken.append, how)
    assert sum(ANCHOR in m.flags for m in taken) <= 2 + 40 // (ANCHOR_PAUSES - 3)


def test_an_anchor_that_the_device_refuses_is_let_go() -> None:
    taken: list[Measurement] = []
    device = Clockwork({5: OutOfMemory("too large")})
    measure_all([linear(10)], device, taken.append, RunSettings("run-1", 60.0, anchors=(linear(5), linear(7))))
    assert sum(ANCHOR in m.flags for m in taken) == 2


def test_a_run_can_be_limited_to_some_rounds() -> None:
    taken: list[Measurement] = []
    measure_all([linear(10)], Clockwork(), taken.append, RunSettings("run-1", 60.0, max_rounds=1))
    assert len(taken) == 1
