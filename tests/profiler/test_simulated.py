from __future__ import annotations

import math
import statistics

import pytest

from calibration.design import default_cases
from oracle.errors import OutOfMemory
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Linear, Norm
from oracle.pricing import LayerCall
from oracle.windows import Conv
from profiler.backends.base import open_backend
from profiler.backends.simulated import Disturbance, SimulatedDevice, true_constants, true_seconds
from profiler.case import Case
from profiler.measurement import Measurement
from profiler.run import Planned, RunSettings, measure
from profiler.stopping import StoppingRule, flags, median_halfwidth
from profiler.visit import Visit, sample_until

CASE = Case(LayerCall(Linear(64, 32), Phase.FORWARD, 8), Execution())


def samples(device: SimulatedDevice, count: int) -> list[float]:
    with device.open(CASE) as kernel:
        return [kernel.sample(1).device_s for _ in range(count)]


def test_true_time_is_launch_plus_arithmetic_plus_traffic() -> None:
    constants = true_constants(Linear(4, 2, bias=False), Phase.FORWARD)
    # 3 samples: 2 * 3 * 4 * 2 = 48 FLOP; 3 * (4 + 2) + 8 = 26 items of 4 bytes.
    expected = constants.launch_s + 48 / constants.flop_per_s + 104 / constants.bytes_per_s
    assert true_seconds(Linear(4, 2, bias=False), Phase.FORWARD, 3, Execution()) == pytest.approx(expected)


def test_every_case_of_a_default_design_takes_time() -> None:
    cases = default_cases([], Execution(), quick=False)
    assert min(true_seconds(c.call.layer, c.call.phase, c.call.samples, c.execution) for c in cases) > 0


def test_an_update_is_a_step_and_launches_once_per_tensor() -> None:
    # Scale and shift: two tensors; momentum moves 5 words of 4 bytes per parameter.
    constants = true_constants(Norm("batch", (64, 8, 8)), Phase.UPDATE)
    expected = constants.call_s + 2 * constants.launch_s + 128 * 20 / constants.bytes_per_s
    assert true_seconds(Norm("batch", (64, 8, 8)), Phase.UPDATE, 1, Execution()) == pytest.approx(expected)


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("kernel", [1, 3])
def test_variants_of_a_convolution_have_constants_of_their_own(groups: int, kernel: int) -> None:
    plain = Conv.of((16, 8, 8), 16, 3, padding=1)
    other = Conv.of((16, 8, 8), 16, kernel, padding=kernel // 2, groups=groups)
    assert (true_constants(plain, Phase.FORWARD) == true_constants(other, Phase.FORWARD)) is (groups == 1)


def test_noise_is_log_normal_around_the_true_time() -> None:
    taken = samples(SimulatedDevice(1, Disturbance(noise_sd=0.05)), 2000)
    logs = [math.log(sample / true_seconds(Linear(64, 32), Phase.FORWARD, 8, Execution())) for sample in taken]
    assert statistics.mean(logs) == pytest.approx(0, abs=0.005)
    assert statistics.stdev(logs) == pytest.approx(0.05, rel=0.05)


def test_a_seed_decides_every_sample() -> None:
    assert samples(SimulatedDevice(7), 5) == samples(SimulatedDevice(7), 5)
    assert samples(SimulatedDevice(7), 5) != samples(SimulatedDevice(8), 5)


def test_outliers_come_in_the_share_that_was_asked() -> None:
    how = Disturbance(noise_sd=0.01, outlier_share=0.1, outlier_factor=5.0)
    taken = samples(SimulatedDevice(1, how), 2000)
    assert sum(sample > 3 * statistics.median(taken) for sample in taken) / 2000 == pytest.approx(0.1, abs=0.02)


def test_drift_moves_all_samples_by_the_same_sine() -> None:
    how = Disturbance(noise_sd=0.0, drift=0.1, period_samples=100)
    taken = samples(SimulatedDevice(1, how), 100)
    assert max(taken) / statistics.median(taken) == pytest.approx(1.1, abs=0.005)


def test_the_measuring_loop_takes_it_for_a_device() -> None:
    recorded: list[Measurement] = []
    measure([Planned(CASE)], open_backend("simulated", 3), recorded.append, RunSettings("run", budget_s=5.0))
    assert {measurement.device for measurement in recorded} == {"simulated device"}
    truth = true_seconds(Linear(64, 32), Phase.FORWARD, 8, Execution())
    assert recorded[0].median_s == pytest.approx(truth, rel=0.1)


def test_four_times_the_samples_halve_the_interval_of_the_device() -> None:
    # As on made-up streams: means of 30 intervals, their ratio within four sigma.
    device = SimulatedDevice(3, Disturbance(noise_sd=0.05))
    few, many = [sum(median_halfwidth(samples(device, count)) for _ in range(30)) for count in (100, 400)]
    assert few / many == pytest.approx(2.0, rel=0.28)


DISTURBANCES = {
    "drifting": Disturbance(noise_sd=0.005, drift=0.1, period_samples=240),
    "bimodal": Disturbance(noise_sd=0.005, mode_share=0.4),
    "throttled": Disturbance(noise_sd=0.005, throttled_from=45),
    "spiky": Disturbance(noise_sd=0.005, outlier_share=0.08),
}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_a_disturbed_device_is_called_what_it_is(name: str) -> None:
    found = flags(samples(SimulatedDevice(2, DISTURBANCES[name]), 60))
    assert [flag for flag in found if flag != "noisy"] == [name]


@pytest.mark.parametrize("name", DISTURBANCES)
def test_a_visit_of_a_disturbed_device_converges_or_says_why_not(name: str) -> None:
    with SimulatedDevice(2, DISTURBANCES[name]).open(CASE) as kernel:
        found = sample_until(kernel, StoppingRule(max_s=10.0))
    assert isinstance(found, Visit)
    taken = [sample.device_s for sample in found.samples]
    converged = median_halfwidth(taken) <= StoppingRule().target
    assert converged is (found.stopped == "converged")
    assert converged or name in flags(taken)


def test_a_case_that_exceeds_the_memory_is_refused() -> None:
    # 8 samples of 64 + 32 items and 64 * 32 + 32 parameters of 4 bytes: 11,392 bytes.
    with pytest.raises(OutOfMemory, match=r"takes 11\.1 KiB; simulated device has 10 KiB"):
        samples(SimulatedDevice(memory_bytes=10 * 1024), 1)
    assert samples(SimulatedDevice(memory_bytes=12 * 1024), 1)
