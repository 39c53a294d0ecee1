"""NVML as boards, drivers and bindings really answer: with errors, with nothing, and with nonsense."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.errors import MissingDependency, NoDevice
from profiler import nvml_state
from profiler.environment import nvml_values
from profiler.nvml import DeviceKey, find_device, key_of, open_nvml
from profiler.nvml_questions import QUESTIONS, REASONS
from profiler.nvml_state import DeviceState, StateReader, device_state
from profiler.state_sampler import watching

UUID, OTHER, SLICE = "0af3c1d2-0000-4000-8000-000000000001", "0af3c1d2-0000-4000-8000-000000000002", "77b2aa"
KEY = DeviceKey(UUID)
ABSENT = "absent"
"""In place of an error code: the binding has no such function."""


class FakeError(Exception):
    """As `pynvml.NVMLError`: it has a number, and compares with others by theirs."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other.value)  # type: ignore[attr-defined]

    __hash__ = Exception.__hash__


def field_value(handle: str, identities: list[int]) -> list[SimpleNamespace]:
    union = SimpleNamespace(uiVal=412_000, ullVal=0)
    return [
        SimpleNamespace(nvmlReturn=0 if identity == 186 else 3, valueType=1, value=union) for identity in identities
    ]


ANSWERS: Mapping[str, Callable[..., Any]] = {
    "nvmlInit": lambda: None,
    "nvmlShutdown": lambda: None,
    "nvmlDeviceGetCount": lambda: 2,
    "nvmlDeviceGetHandleByIndex": lambda number: ("second", "first")[number],  # NVML's order is not torch's
    "nvmlDeviceGetUUID": lambda handle: {"first": f"GPU-{UUID.upper()}", "second": f"GPU-{OTHER}"}.get(
        handle, f"MIG-{SLICE}"
    ),
    "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(domain=0, bus=0x3B if handle == "first" else 0x5E, device=0),
    "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 0,
    "nvmlDeviceGetName": lambda handle: "NVIDIA H100 80GB HBM3",
    "nvmlSystemGetDriverVersion": lambda: "550.54.15",
    "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
    "nvmlDeviceGetMigMode": lambda handle: [0, 0],
    "nvmlDeviceGetEccMode": lambda handle: [1, 1],
    "nvmlDeviceGetPersistenceMode": lambda handle: 1,
    "nvmlDeviceGetComputeMode": lambda handle: 0,
    "nvmlDeviceGetVirtualizationMode": lambda handle: 0,
    "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 700_000,
    "nvmlDeviceGetMaxClockInfo": lambda handle, kind: {1: 1980, 2: 2619}[kind],
    "nvmlDeviceGetApplicationsClock": lambda handle, kind: 1980,
    "nvmlDeviceGetDefaultApplicationsClock": lambda handle, kind: 1980,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 1,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
    "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1755, 2: 2619}[kind],
    "nvmlDeviceGetFieldValues": field_value,
    "nvmlDeviceGetPowerUsage": lambda handle: 390_000,
    "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 5_000_000,
    "nvmlDeviceGetTemperatureV": lambda handle, sensor: 61,
    "nvmlDeviceGetTemperatureThreshold": lambda handle, which: 89,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x4,
    "nvmlDeviceGetViolationStatus": lambda handle, policy: SimpleNamespace(violationTime=(3_000_000_000, 0)[policy]),
    "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=0, memory=0),
    "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=600 * 2**20, total=80 * 2**30),
    "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=7), SimpleNamespace(pid=5)],
    "nvmlDeviceGetMPSComputeRunningProcesses": lambda handle: [],
    "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 0,
    "nvmlDeviceGetRemappedRows": lambda handle: (1, 0, 0, 0),
}


def link_state(fake: FakeNvml, handle: str, link: int) -> int:
    if link >= 18:
        raise fake.NVMLError(2)
    return int(link != 3)


class FakeNvml:
    """A library object: two devices, and what is broken in it.

    Args:
        broken: function -> a code to raise, ABSENT, an error to raise, or a function that answers instead.
    """

    NVMLError = FakeError

    def __init__(self, broken: Mapping[str, Any] | None = None) -> None:
        self.broken = dict(broken or {})
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        broken = self.broken.get(name)
        if broken == ABSENT or (broken is None and name not in ANSWERS and name != "nvmlDeviceGetNvLinkState"):
            raise AttributeError(f"module 'pynvml' has no attribute '{name}'")

        def function(*arguments: Any) -> Any:
            self.asked.append(name)
            if isinstance(broken, int):
                raise self.NVMLError(broken)
            if isinstance(broken, Exception):
                raise broken
            if broken is not None:
                return broken(*arguments)
            return link_state(self, *arguments) if name == "nvmlDeviceGetNvLinkState" else ANSWERS[name](*arguments)

        return function


def says(answer: Any) -> Callable[..., Any]:
    return lambda *arguments: answer


def test_a_healthy_device_answers_everything_in_si_units() -> None:
    state = device_state(KEY, FakeNvml())
    assert state.unread == ()
    assert state == DeviceState(
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{UUID.upper()}",
        driver="550.54.15",
        cuda_driver="12.4",
        mig=False,
        ecc=True,
        persistence=True,
        compute_mode="default",
        virtualization="none",
        power_limit_w=700.0,
        default_power_limit_w=700.0,
        max_sm_clock_hz=1.98e9,
        max_memory_clock_hz=2.619e9,
        application_sm_clock_hz=1.98e9,
        default_application_sm_clock_hz=1.98e9,
        max_pcie_generation=5.0,
        max_pcie_width=16.0,
        pcie_generation=1.0,
        pcie_width=16.0,
        nvlinks=tuple(link != 3 for link in range(18)),
        sm_clock_hz=1.755e9,
        memory_clock_hz=2.619e9,
        power_w=412.0,
        energy_j=5000.0,
        gpu_temperature_c=61.0,
        slowdown_temperature_c=89.0,
        reasons=("software power cap",),
        power_violation_s=3.0,
        thermal_violation_s=0.0,
        utilization=0.0,
        used_memory_bytes=600 * 2.0**20,
        total_memory_bytes=80 * 2.0**30,
        processes=(5, 7),
        mps_processes=(),
        uncorrected_errors=0,
        memory_needs_repair=False,
    )


def test_every_field_of_a_state_has_its_question() -> None:
    assert {item.name for item in fields(DeviceState)} - {"instance", "unread"} == set(QUESTIONS)


FAILURES = {
    "not supported": 3,
    "no permission": 4,
    "function not found": 13,
    "lost": 15,
    "reset required": 16,
    "not ready": 27,
    "unknown": 999,
    "an unknown code": 12345,
    "absent in the binding": ABSENT,
    "another signature": TypeError("takes 1 positional argument but 2 were given"),
    "a wrong type for C": ctypes.ArgumentError("argument 2"),
    "N/A": says("N/A"),
    "[Not Supported] in bytes": says(b"[Not Supported]"),
    "None": says(None),
    "all bits": says(0xFFFFFFFF),
    "all 64 bits": says(2**64 - 1),
    "a negative number": says(-1),
    "no number": says(float("nan")),
}
ALL_QUESTIONS = sorted({*ANSWERS, "nvmlDeviceGetNvLinkState"} - {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount"})
IDENTIFYING = {
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMaxMigDeviceCount",
}
TEXTS = {"nvmlDeviceGetName", "nvmlSystemGetDriverVersion"}


def no_crash_no_zero(state: DeviceState) -> None:
    """Each question is answered or noted, never both; nothing that is always more than zero is zero."""
    noted = {note.split(" could not be read: ")[0] for note in state.unread}
    assert len(noted) == len(state.unread)
    for name in QUESTIONS:
        assert (getattr(state, name) is None) == (name in noted), name
    for note in state.unread:
        assert note.isprintable()
        assert not note.endswith(": ")
    for name in ("power_w", "power_limit_w", "sm_clock_hz", "max_sm_clock_hz", "total_memory_bytes", "pcie_width"):
        assert getattr(state, name) != 0


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_state, "PAUSE_S", 1e-6)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_device_that_answers_nothing_is_a_record_of_none_with_a_note_for_each(failure: str) -> None:
    broken = {name: FAILURES[failure] for name in ALL_QUESTIONS if name not in IDENTIFYING}
    state = device_state(KEY, FakeNvml(broken))
    no_crash_no_zero(state)
    answered = {name for name in QUESTIONS if getattr(state, name) is not None}
    assert answered <= {"uuid", "energy_j", "power_violation_s", "thermal_violation_s"}  # no number is absurd there


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("name", [name for name in ALL_QUESTIONS if name not in IDENTIFYING])
def test_one_broken_function_costs_its_own_answers_only(name: str, failure: str) -> None:
    state = device_state(KEY, FakeNvml({name: FAILURES[failure]}))
    no_crash_no_zero(state)
    assert len(state.unread) <= 2  # two questions share some functions


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(ALL_QUESTIONS), st.sampled_from(sorted(FAILURES))))
def test_any_mixture_of_failures_gives_a_record_or_says_that_the_device_is_not_found(broken: dict[str, str]) -> None:
    try:
        state = device_state(KEY, FakeNvml({name: FAILURES[failure] for name, failure in broken.items()}))
    except NoDevice as error:
        said = str(error)
        assert set(broken) & IDENTIFYING, said
        return
    no_crash_no_zero(state)
    identity, now = nvml_values(state)
    assert all(text and text != "None" for text in (*identity.values(), *now.values()))


def test_what_is_not_ready_is_asked_once_more() -> None:
    nvml = FakeNvml()
    refusals = [FakeError(27)]

    def slow(handle: str, kind: int) -> int:
        if refusals:
            raise refusals.pop()
        return 1755

    nvml.broken["nvmlDeviceGetClockInfo"] = slow
    reader = StateReader(nvml, find_device(nvml, KEY), ["sm_clock_hz"])
    assert reader.read(pause_s=1e-6) == DeviceState(sm_clock_hz=1.755e9)


def test_what_is_never_answered_is_asked_once() -> None:
    nvml = FakeNvml({"nvmlDeviceGetTotalEnergyConsumption": 3, "nvmlDeviceGetClockInfo": 27})
    reader = StateReader(nvml, find_device(nvml, KEY), ["energy_j", "sm_clock_hz"])
    first, second = reader.read(), reader.read()
    assert first == second
    assert len(first.unread) == 2
    assert nvml.asked.count("nvmlDeviceGetTotalEnergyConsumption") == 1
    assert nvml.asked.count("nvmlDeviceGetClockInfo") == 2


OLD = {
    "nvmlSystemGetCudaDriverVersion_v2": ABSENT,
    "nvmlSystemGetCudaDriverVersion": says(11080),
    "nvmlDeviceGetTemperatureV": ABSENT,
    "nvmlDeviceGetTemperature": lambda handle, sensor: 55,
    "nvmlDeviceGetCurrentClocksEventReasons": 13,
    "nvmlDeviceGetCurrentClocksThrottleReasons": says(0x20),
    "nvmlDeviceGetFieldValues": 3,
    "nvmlDeviceGetViolationStatus": 3,
    "nvmlDeviceGetComputeRunningProcesses": ABSENT,
    "nvmlDeviceGetComputeRunningProcesses_v2": says([SimpleNamespace(pid=9)]),
    "nvmlDeviceGetRemappedRows": 3,
    "nvmlDeviceGetRetiredPagesPendingStatus": says(1),
    "nvmlDeviceGetName": says(b"Tesla V100-SXM2-16GB"),
    "nvmlSystemGetDriverVersion": says(b"470.82.01\0"),
}


def test_older_names_and_bytes_are_understood() -> None:
    state = device_state(KEY, FakeNvml(OLD))
    assert (state.name, state.driver, state.cuda_driver) == ("Tesla V100-SXM2-16GB", "470.82.01", "11.8")
    assert (state.gpu_temperature_c, state.reasons, state.power_w) == (55.0, ("software thermal slowdown",), 390.0)
    assert (state.processes, state.memory_needs_repair) == ((9,), True)
    assert [note.split(" ")[0] for note in state.unread] == ["power_violation_s", "thermal_violation_s"]


def test_bits_without_a_name_are_kept_by_their_number() -> None:
    state = device_state(KEY, FakeNvml({"nvmlDeviceGetCurrentClocksEventReasons": says(0x4 | 1 << 20)}))
    assert state.reasons == ("software power cap", "reason 0x100000")
    every = sum(REASONS)
    state = device_state(KEY, FakeNvml({"nvmlDeviceGetCurrentClocksEventReasons": says(every)}))
    assert state.reasons == tuple(REASONS.values())


def test_a_mode_that_is_not_known_is_a_note() -> None:
    state = device_state(KEY, FakeNvml({"nvmlDeviceGetComputeMode": says(9), "nvmlDeviceGetPersistenceMode": says(2)}))
    assert (state.compute_mode, state.persistence) == (None, None)
    assert state.unread[1] == "compute_mode could not be read: it says '9', which is not known"


def test_an_absurd_power_is_a_note_and_no_number() -> None:
    state = device_state(KEY, FakeNvml({"nvmlDeviceGetEnforcedPowerLimit": says(0xFFFFFFFF)}))
    assert state.unread == ("power_limit_w could not be read: it says 4294967295, which cannot be",)


def test_a_device_is_found_by_its_uuid_whatever_its_number() -> None:
    nvml = FakeNvml()
    assert find_device(nvml, DeviceKey(UUID)).handle == "first"
    assert find_device(nvml, DeviceKey(OTHER)).handle == "second"
    for uuid in (f"GPU-{UUID}", UUID.upper(), f"GPU-{UUID}".encode()):
        assert find_device(nvml, key_of(SimpleNamespace(uuid=uuid))).handle == "first"


def test_a_torch_that_says_no_uuid_is_matched_by_pci_address() -> None:
    properties = SimpleNamespace(name="any", pci_domain_id=0, pci_bus_id=0x5E, pci_device_id=0)
    assert find_device(FakeNvml(), key_of(properties)).handle == "second"
    with pytest.raises(NoDevice, match="NVML knows no device without UUID and PCI address"):
        find_device(FakeNvml(), key_of(SimpleNamespace(name="any")))


def test_a_neighbour_that_is_lost_hides_no_other_device() -> None:
    def handle(number: int) -> str:
        if number == 0:
            raise FakeError(15)
        return "first"

    nvml = FakeNvml({"nvmlDeviceGetHandleByIndex": handle})
    assert find_device(nvml, KEY).handle == "first"
    with pytest.raises(NoDevice, match=rf"NVML knows no device {OTHER} \(number 0: error 15\)"):
        find_device(nvml, DeviceKey(OTHER))


def slices(whole: str, number: int) -> str:
    if whole == "second" or number != 2:
        raise FakeError(6)  # a hole
    return "slice"


def whole_only(answer: Any) -> Callable[..., Any]:
    def function(handle: str, *arguments: Any) -> Any:
        if handle == "slice":
            raise FakeError(3)
        return answer

    return function


def test_an_instance_has_its_own_name_and_memory_and_the_clocks_of_the_whole_device() -> None:
    broken = {
        "nvmlDeviceGetMaxMigDeviceCount": says(7),
        "nvmlDeviceGetMigDeviceHandleByIndex": slices,
        "nvmlDeviceGetMigMode": whole_only([1, 1]),
        "nvmlDeviceGetClockInfo": whole_only(1410),
        "nvmlDeviceGetPowerUsage": whole_only(200_000),
        "nvmlDeviceGetName": lambda handle: f"A100 {handle}",
    }
    state = device_state(DeviceKey(SLICE), FakeNvml(broken))
    assert (state.instance, state.mig, state.name, state.sm_clock_hz) == (True, True, "A100 slice", 1.41e9)
    assert state.unread == ()


def test_an_absurd_number_of_devices_ends() -> None:
    nvml = FakeNvml({"nvmlDeviceGetCount": says(0xFFFFFFFF), "nvmlDeviceGetMaxMigDeviceCount": says(2**31)})
    assert find_device(nvml, DeviceKey(OTHER)).handle == "second"


@pytest.mark.parametrize("code", [9, 12, 18, 999])
def test_a_driver_that_is_not_there_is_one_line(code: int) -> None:
    with pytest.raises(NoDevice, match=rf"^NVML: error {code}$"), open_nvml(FakeNvml({"nvmlInit": code})):
        pass


def test_a_library_that_cannot_be_left_in_order_does_not_hide_the_answer() -> None:
    assert device_state(KEY, FakeNvml({"nvmlShutdown": 15})).driver == "550.54.15"


def test_nvml_without_a_driver_is_an_error_of_ours() -> None:
    with pytest.raises((NoDevice, MissingDependency), match=r"^[^\n]+$"):
        device_state(DeviceKey("00000000-0000-0000-0000-000000000000"))


def test_a_device_is_watched_while_it_works() -> None:
    nvml = FakeNvml()
    joules = iter(range(10**9))
    nvml.broken["nvmlDeviceGetTotalEnergyConsumption"] = lambda handle: next(joules) * 1000
    clocks = iter([1980, *[1500, 1200] * 10**6])
    nvml.broken["nvmlDeviceGetClockInfo"] = lambda handle, kind: next(clocks) if kind == 1 else 2619
    with watching(KEY, nvml, every_s=1e-3) as sampler, sampler.window() as window:
        deadline_s = time.monotonic() + 60
        while nvml.asked.count("nvmlDeviceGetClockInfo") < 20 and time.monotonic() < deadline_s:
            time.sleep(1e-3)
    values = window.summary.values
    assert window.summary.readings > 3
    assert window.summary.flags == ("power-capped",)
    assert (values["sm_clock_min_hz"], values["sm_clock_max_hz"]) == ("1200000000", "1500000000")
    assert values["clock_reasons"] == "software power cap"


def test_a_device_that_is_lost_while_it_works_is_flagged_as_unwatched() -> None:
    nvml = FakeNvml()
    with watching(KEY, nvml, every_s=60) as sampler, sampler.window() as window:
        nvml.broken = dict.fromkeys(ALL_QUESTIONS, 15)
    assert (window.summary.flags, window.summary.values) == (("unwatched",), {})


@pytest.mark.parametrize("broken", [{"nvmlInit": 12}, {"nvmlDeviceGetUUID": 999, "nvmlDeviceGetPciInfo": 3}])
def test_a_device_that_cannot_be_watched_is_flagged_as_unwatched(broken: dict[str, int]) -> None:
    with watching(KEY, FakeNvml(broken)) as sampler, sampler.window() as window:
        pass
    assert (window.summary.flags, window.summary.values) == (("unwatched",), {})


def test_a_board_that_does_not_say_why_its_clock_is_low_is_flagged_and_its_clock_kept() -> None:
    nvml = FakeNvml({"nvmlDeviceGetCurrentClocksEventReasons": 13})
    with watching(KEY, nvml, every_s=60) as sampler, sampler.window() as window:
        pass
    assert window.summary.flags == ("unwatched",)
    assert window.summary.values["sm_clock_median_hz"] == "1755000000"
