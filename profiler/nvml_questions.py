"""How each thing is asked of NVML, and which answers are taken.

A board, a driver, a virtual machine or a missing permission leaves questions open, and some boards answer `N/A`, all
bits set, or a number that nothing can have (NVIDIA/nvidia-docker#523, gpuopenanalytics/pynvml#54). Each answer is
therefore held against what is possible; what is not becomes the reason why there is no answer. Names that changed are
asked under the new name first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from profiler.nvml import FUNCTION_NOT_FOUND, INVALID_ARGUMENT, NOT_SUPPORTED, as_text, code_of, errors_of

Ask = Callable[[Any, Any], Any]
"""(library, handle) -> the raw answer."""

Take = Callable[[Any], Any]
"""The raw answer -> a value in SI units; raises ValueError where it cannot be one."""


@dataclass(frozen=True)
class Question:
    """One thing to ask of a device.

    Args:
        ask: puts it to the library.
        take: makes a value of the answer.
        whole: asked of the whole device even where an instance of it (MIG) is used.
    """

    ask: Ask
    take: Take
    whole: bool = True


REASONS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "applications clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability",
}
"""Why a clock is below its highest, bit by bit (nvml.h, nvmlClocksEventReason; the last two under their old names)."""

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vGPU", 3: "host vGPU", 4: "host vSGA"}

_NO_ANSWER = ("", "n/a", "[n/a]", "not supported", "[not supported]", "unknown error", "[unknown error]")
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_POWER, _THERMAL = 0, 1
_UNCORRECTED, _SINCE_RESET = 1, 0
_POWER_INSTANT, _POWER_VIOLATION, _THERMAL_VIOLATION = 186, 74, 75
_FIELD_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_MOST_LINKS = 36


def number(least: float, most: float, unit: float = 1.0) -> Take:
    """Take numbers from `least` to `most` (in SI), given in `unit`.

    >>> number(1, 1e5, 1e-3)(250_000)
    250.0
    """

    def take(raw: Any) -> float:
        raw = getattr(raw, "value", raw)
        if isinstance(raw, (str, bytes)):
            raise ValueError(f"it says {as_text(raw)!r}")
        value = float(raw) * unit
        if not least <= value <= most:
            raise ValueError(f"it says {raw}, which cannot be")
        return value

    return take


def count(most: float = 2**32 - 2) -> Take:
    """Take whole numbers from 0; all 32 bits set is no number."""
    as_number = number(0, most)
    return lambda raw: int(as_number(raw))


def choice(names: Mapping[int, str]) -> Take:
    """Take one of some numbers, as its name."""

    def take(raw: Any) -> str:
        raw = getattr(raw, "value", raw)
        if raw not in names:
            raise ValueError(f"it says {as_text(raw)!r}, which is not known")
        return names[raw]

    return take


def switch(raw: Any) -> bool:
    """Take 0 and 1."""
    return bool(choice({0: "", 1: "on"})(raw))


def text(raw: Any) -> str:
    """Take text that says something."""
    if not isinstance(raw, (str, bytes)):
        raise ValueError(f"it says {raw!r}, which is no text")
    found = as_text(raw)
    if found.lower() in _NO_ANSWER or not found.isprintable():
        raise ValueError(f"it says {found!r}")
    return found


def reasons(raw: Any) -> tuple[str, ...]:
    """Take a set of bits; those without a name are kept by their number.

    >>> reasons(0x44), reasons(0x1004), reasons(0)
    (('software power cap', 'hardware thermal slowdown'), ('software power cap', 'reason 0x1000'), ())
    """
    bits = count()(raw)
    known = [name for bit, name in REASONS.items() if bits & bit]
    unknown = [f"reason 0x{1 << place:x}" for place in range(32) if bits & (1 << place) and 1 << place not in REASONS]
    return (*known, *unknown)


def cuda_version(raw: Any) -> str:
    """Take CUDA's own number of a version.

    >>> cuda_version(12040)
    '12.4'
    """
    found = int(number(1000, 1_000_000)(raw))
    return f"{found // 1000}.{found % 1000 // 10}"


def processes(raw: Any) -> tuple[int, ...]:
    """Take the ids of processes."""
    return tuple(sorted({int(process.pid) for process in raw}))


def _member(take: Take, index: int) -> Take:
    return lambda raw: take(raw[index])


def first_of(*asks: Ask) -> Ask:
    """Ask in one way after the other until one is known here; the last one's failure counts."""

    def ask(nvml: Any, handle: Any) -> Any:
        for one in asks[:-1]:
            try:
                return one(nvml, handle)
            except errors_of(nvml) as error:
                if not is_missing(error):
                    raise
        return asks[-1](nvml, handle)

    return ask


def is_missing(error: Exception) -> bool:
    """Whether this board, driver or binding will never answer the question."""
    return isinstance(error, (AttributeError, TypeError)) or code_of(error) in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)


def _named(name: str, *arguments: Any) -> Ask:
    """Ask the function of a name about a device."""
    return lambda nvml, handle: getattr(nvml, name)(handle, *arguments)


def _system(name: str) -> Ask:
    return lambda nvml, handle: getattr(nvml, name)()


def _field(identity: int) -> Ask:
    """Ask for one of the values that have no function of their own."""

    def ask(nvml: Any, handle: Any) -> Any:
        value = nvml.nvmlDeviceGetFieldValues(handle, [identity])[0]
        if value.nvmlReturn:
            raise nvml.NVMLError(value.nvmlReturn)
        return getattr(value.value, _FIELD_MEMBERS[value.valueType])

    return ask


def _violation_ns(policy: int) -> Ask:
    return lambda nvml, handle: nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime


def _link_states(nvml: Any, handle: Any) -> list[bool]:
    """Whether each NVLink is active; numbers without a link are refused one by one."""
    states, refused = [], None
    for link in range(_MOST_LINKS):
        try:
            states.append(switch(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except errors_of(nvml) as error:
            if code_of(error) not in (INVALID_ARGUMENT, NOT_SUPPORTED):
                raise
            refused = refused or error
    if not states and refused is not None:
        raise refused
    return states


def _needs_repair(raw: Any) -> bool:
    """Remapped rows: (corrected, uncorrected, one waits for a reset, one failed)."""
    return switch(raw[2]) or switch(raw[3])


_WATTS = number(1, 20_000, 1e-3)
_HERTZ = number(1e6, 1e10, 1e6)
_SECONDS = number(0, 1e9, 1e-9)
_BYTES = number(0, 2.0**50)

QUESTIONS: Mapping[str, Question] = {
    "name": Question(_named("nvmlDeviceGetName"), text, whole=False),
    "uuid": Question(_named("nvmlDeviceGetUUID"), text, whole=False),
    "driver": Question(_system("nvmlSystemGetDriverVersion"), text),
    "cuda_driver": Question(
        first_of(_system("nvmlSystemGetCudaDriverVersion_v2"), _system("nvmlSystemGetCudaDriverVersion")), cuda_version
    ),
    "mig": Question(_named("nvmlDeviceGetMigMode"), _member(switch, 0)),
    "ecc": Question(_named("nvmlDeviceGetEccMode"), _member(switch, 0)),
    "persistence": Question(_named("nvmlDeviceGetPersistenceMode"), switch),
    "compute_mode": Question(_named("nvmlDeviceGetComputeMode"), choice(COMPUTE_MODES)),
    "virtualization": Question(_named("nvmlDeviceGetVirtualizationMode"), choice(VIRTUALIZATION)),
    "power_limit_w": Question(_named("nvmlDeviceGetEnforcedPowerLimit"), _WATTS),
    "default_power_limit_w": Question(_named("nvmlDeviceGetPowerManagementDefaultLimit"), _WATTS),
    "max_sm_clock_hz": Question(_named("nvmlDeviceGetMaxClockInfo", _CLOCK_SM), _HERTZ),
    "max_memory_clock_hz": Question(_named("nvmlDeviceGetMaxClockInfo", _CLOCK_MEMORY), _HERTZ),
    "application_sm_clock_hz": Question(_named("nvmlDeviceGetApplicationsClock", _CLOCK_SM), _HERTZ),
    "default_application_sm_clock_hz": Question(_named("nvmlDeviceGetDefaultApplicationsClock", _CLOCK_SM), _HERTZ),
    "max_pcie_generation": Question(_named("nvmlDeviceGetMaxPcieLinkGeneration"), number(1, 20)),
    "max_pcie_width": Question(_named("nvmlDeviceGetMaxPcieLinkWidth"), number(1, 64)),
    "pcie_generation": Question(_named("nvmlDeviceGetCurrPcieLinkGeneration"), number(1, 20)),
    "pcie_width": Question(_named("nvmlDeviceGetCurrPcieLinkWidth"), number(1, 64)),
    "nvlinks": Question(_link_states, tuple),
    "sm_clock_hz": Question(_named("nvmlDeviceGetClockInfo", _CLOCK_SM), _HERTZ),
    "memory_clock_hz": Question(_named("nvmlDeviceGetClockInfo", _CLOCK_MEMORY), _HERTZ),
    "power_w": Question(first_of(_field(_POWER_INSTANT), _named("nvmlDeviceGetPowerUsage")), _WATTS),
    "energy_j": Question(_named("nvmlDeviceGetTotalEnergyConsumption"), number(0, 1e12, 1e-3)),
    "gpu_temperature_c": Question(
        first_of(_named("nvmlDeviceGetTemperatureV", 0), _named("nvmlDeviceGetTemperature", 0)), number(1, 200)
    ),
    "slowdown_temperature_c": Question(_named("nvmlDeviceGetTemperatureThreshold", 1), number(1, 200)),
    "reasons": Question(
        first_of(_named("nvmlDeviceGetCurrentClocksEventReasons"), _named("nvmlDeviceGetCurrentClocksThrottleReasons")),
        reasons,
    ),
    "power_violation_s": Question(first_of(_violation_ns(_POWER), _field(_POWER_VIOLATION)), _SECONDS),
    "thermal_violation_s": Question(first_of(_violation_ns(_THERMAL), _field(_THERMAL_VIOLATION)), _SECONDS),
    "utilization": Question(lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu, number(0, 1, 0.01)),
    "used_memory_bytes": Question(lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used, _BYTES, whole=False),
    "total_memory_bytes": Question(
        lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).total, number(1, 2.0**50), whole=False
    ),
    "processes": Question(
        first_of(
            _named("nvmlDeviceGetComputeRunningProcesses"),
            _named("nvmlDeviceGetComputeRunningProcesses_v3"),
            _named("nvmlDeviceGetComputeRunningProcesses_v2"),
        ),
        processes,
        whole=False,
    ),
    "mps_processes": Question(
        first_of(
            _named("nvmlDeviceGetMPSComputeRunningProcesses"), _named("nvmlDeviceGetMPSComputeRunningProcesses_v2")
        ),
        processes,
        whole=False,
    ),
    "uncorrected_errors": Question(_named("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _SINCE_RESET), count()),
    "memory_needs_repair": Question(
        first_of(
            lambda nvml, handle: _needs_repair(nvml.nvmlDeviceGetRemappedRows(handle)),
            _named("nvmlDeviceGetRetiredPagesPendingStatus"),
        ),
        switch,
    ),
}
"""What is asked, by the name of its field in `profiler.nvml_state.DeviceState`."""
