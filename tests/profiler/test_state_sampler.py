"""What is seen of a device while it is measured, put into flags and words."""

from __future__ import annotations

import threading

import pytest

from profiler.backends.base import open_backend
from profiler.measurement import Environment, Measurement
from profiler.state_sampler import Reading, StateSampler, Summary, mean_power_w, sampling, summarise

START = Reading(0.0, sm_clock_hz=3e8, reasons=("idle",), energy_j=100.0, power_violation_s=5.0, thermal_violation_s=1.0)


def test_clocks_of_a_window_are_those_of_the_working_device() -> None:
    readings = [
        Reading(at_s, sm_clock_hz=clock_hz, reasons=()) for at_s, clock_hz in ((1, 1.9e9), (2, 1.5e9), (3, 1.7e9))
    ]
    summary = summarise(START, [Reading(0.5, sm_clock_hz=3e8, reasons=("idle",)), *readings])
    assert summary.flags == ()
    assert summary.readings == 4
    assert summary.values == {
        "sm_clock_min_hz": "1500000000",
        "sm_clock_median_hz": "1700000000",
        "sm_clock_max_hz": "1900000000",
        "clock_reasons": "none",
    }


def test_a_device_that_only_waited_has_the_clock_of_a_waiting_device() -> None:
    summary = summarise(START, [Reading(1.0, sm_clock_hz=3e8, reasons=("idle",))])
    assert summary.values["sm_clock_max_hz"] == "300000000"


@pytest.mark.parametrize(
    ("reasons", "flags"),
    [
        ((), ()),
        (("idle",), ()),
        (("software power cap",), ("power-capped",)),
        (("hardware slowdown",), ("throttled",)),
        (("software thermal slowdown", "software power cap"), ("throttled", "power-capped")),
        (("hardware power brake",), ("throttled",)),
        (("applications clocks setting",), ("clocks-set",)),
        (("reason 0x800",), ()),
    ],
)
def test_each_reason_has_its_flag(reasons: tuple[str, ...], flags: tuple[str, ...]) -> None:
    assert summarise(START, [Reading(1.0, reasons=reasons), Reading(2.0, reasons=())]).flags == flags


def test_what_falls_between_two_readings_moves_the_counters() -> None:
    # 30 ms in 1 s held by heat, 20 ms by power: both beyond a hundredth of the window.
    last = Reading(1.0, reasons=(), power_violation_s=5.02, thermal_violation_s=1.03)
    summary = summarise(START, [last])
    assert summary.flags == ("throttled", "power-capped")
    assert (summary.values["heat_held_share"], summary.values["power_held_share"]) == ("0.030", "0.020")
    brief = Reading(1.0, reasons=(), power_violation_s=5.002, thermal_violation_s=1.002)
    assert summarise(START, [brief]).flags == ()


def test_counters_that_begin_anew_count_nothing() -> None:
    assert summarise(START, [Reading(1.0, reasons=(), power_violation_s=0.0, thermal_violation_s=0.0)]).flags == ()


def test_mean_power_is_taken_from_energy_where_the_window_is_long_enough() -> None:
    # 200 J in 0.5 s, and 5 J in 10 ms, which the counter does not resolve.
    assert summarise(START, [Reading(0.5, power_w=300.0, energy_j=300.0)]).values == {"power_mean_w": "400"}
    assert summarise(START, [Reading(0.01, power_w=300.0, energy_j=105.0)]).values == {"power_mean_w": "300"}


def test_a_cpu_is_throttled_when_its_count_grows_and_robbed_by_its_hypervisor() -> None:
    first = Reading(0.0, throttle_count=3.0, stolen_s=10.0)
    assert summarise(first, [Reading(1.0, throttle_count=3.0, stolen_s=10.1)], cores=2).flags == ()
    summary = summarise(first, [Reading(1.0, throttle_count=4.0, stolen_s=10.5)], cores=2)
    assert summary.flags == ("throttled", "stolen")
    assert summary.values["stolen_share"] == "0.250"


def test_a_window_holds_the_readings_between_its_ends() -> None:
    clock = iter(range(10**6))
    enough = threading.Event()

    def read() -> Reading:
        at_s = next(clock)
        if at_s > 20:
            enough.set()
        return Reading(float(at_s), sm_clock_hz=1e9 + at_s, reasons=())

    sampler = StateSampler(read)
    with sampler.running(every_s=1e-4):
        with sampler.window() as first:
            assert enough.wait(60)
        with sampler.window() as second:
            pass
    assert first.summary.readings > 10
    assert float(second.summary.values["sm_clock_min_hz"]) > float(first.summary.values["sm_clock_max_hz"])


def test_a_kind_of_device_without_a_state_has_empty_summaries() -> None:
    with sampling(open_backend("simulated")) as sampler, sampler.window() as window:
        pass
    assert window.summary == Summary()


def test_the_cpu_is_watched_by_what_its_system_counts() -> None:
    pytest.importorskip("torch")
    with sampling(open_backend("cpu")) as sampler, sampler.window() as window:
        pass
    assert window.summary.readings == 1
    assert set(window.summary.flags) <= {"throttled", "stolen"}


def measured(state: dict[str, str], seconds: float = 1.0) -> Measurement:
    environment = Environment({"gpu": "any"}, state)
    return Measurement(
        *("conv", {}, "forward", "fp32/channels_first", (seconds,), (1.0,), 1, "any", environment, "run-1"),
        *("2026-01-01T00:00:00+00:00", "converged", ("noisy",)),
    )


def test_mean_power_weighs_visits_by_their_time() -> None:
    # (600 W x 3 s + 200 W x 1 s) / 4 s; the visit without a power counts for nothing.
    visits = [measured({"power_mean_w": "600"}, 3.0), measured({"power_mean_w": "200"}), measured({}, 9.0)]
    assert mean_power_w(visits) == 500.0
    assert mean_power_w([measured({})]) is None


def test_a_measurement_takes_the_flags_and_the_state_of_its_window() -> None:
    measurement = measured({"power_w": "60", "host": "1f"})
    environment = measurement.environment
    summary = Summary(1, ("throttled",), {"power_mean_w": "600"})
    watched = summary.added_to(measurement)
    assert watched.flags == ("noisy", "throttled")
    assert watched.environment.state == {"power_w": "60", "host": "1f", "power_mean_w": "600"}
    assert watched.environment.validity_key == environment.validity_key
    assert Summary().added_to(measurement) == measurement
    assert summary.added_to(watched).flags == ("noisy", "throttled")
