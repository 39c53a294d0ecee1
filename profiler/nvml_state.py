"""What NVML says of one device, without root; whatever it does not say is None, with the reason beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from profiler.nvml import (
    NOT_READY,
    TIMEOUT,
    DeviceKey,
    NvmlDevice,
    code_of,
    errors_of,
    find_device,
    open_nvml,
    reason_of,
)
from profiler.nvml_questions import QUESTIONS, is_missing

PAUSE_S = 0.2
"""How long to wait, once, before what was not ready is asked again (gpuopenanalytics/pynvml#54)."""


@dataclass(frozen=True)
class DeviceState:
    """What is known of one device; None where the driver does not say.

    An instance (MIG) has its own name, UUID, memory and processes; all else is of the whole device.

    Args:
        name, uuid: the device's.
        driver, cuda_driver: the driver's version, and the newest CUDA that it can run.
        instance: whether an instance of a divided device is used; mig: whether the device is divided.
        ecc, persistence: whether they are switched on; compute_mode, virtualization: by their names.
        power_limit_w, default_power_limit_w: enforced now, and as delivered.
        application_sm_clock_hz, default_application_sm_clock_hz: asked for now, and as delivered.
        pcie_generation, pcie_width: now; an idle link is slower than its `max_`.
        nvlinks: of each link, whether it is active.
        power_w: now; energy_j: since the driver was loaded.
        slowdown_temperature_c: from which the device slows itself down.
        reasons: why the clock is below its highest.
        power_violation_s, thermal_violation_s: time in which power or heat held the clocks down, since some moment.
        utilization: share of the last moments in which a kernel ran.
        processes, mps_processes: ids of those that compute on it, and of those that do so through MPS.
        uncorrected_errors: of its memory, since it was reset; memory_needs_repair: a reset or a failure is due.
        unread: what was not answered, each with its reason.
    """

    name: str | None = None
    uuid: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None
    instance: bool = False
    mig: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    compute_mode: str | None = None
    virtualization: str | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    max_sm_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    application_sm_clock_hz: float | None = None
    default_application_sm_clock_hz: float | None = None
    max_pcie_generation: float | None = None
    max_pcie_width: float | None = None
    pcie_generation: float | None = None
    pcie_width: float | None = None
    nvlinks: tuple[bool, ...] | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    gpu_temperature_c: float | None = None
    slowdown_temperature_c: float | None = None
    reasons: tuple[str, ...] | None = None
    power_violation_s: float | None = None
    thermal_violation_s: float | None = None
    utilization: float | None = None
    used_memory_bytes: float | None = None
    total_memory_bytes: float | None = None
    processes: tuple[int, ...] | None = None
    mps_processes: tuple[int, ...] | None = None
    uncorrected_errors: int | None = None
    memory_needs_repair: bool | None = None
    unread: tuple[str, ...] = field(default=())

    @property
    def users(self) -> tuple[int, ...]:
        """The ids of all processes that compute on it."""
        return tuple(sorted({*(self.processes or ()), *(self.mps_processes or ())}))


class StateReader:
    """Asks a device some questions, again and again; one that it will never answer is not asked twice.

    Args:
        nvml: the library, started.
        device: whom to ask.
        names: of the questions; all by default.
    """

    def __init__(self, nvml: Any, device: NvmlDevice, names: Iterable[str] = QUESTIONS) -> None:
        self._nvml = nvml
        self._device = device
        self._names = tuple(names)
        self._missing: dict[str, str] = {}

    def read(self, pause_s: float = 0.0) -> DeviceState:
        """What it says now.

        Args:
            pause_s: after which what was not ready is asked once more; 0 takes that for no answer.
        """
        answers, failures = self._ask([name for name in self._names if name not in self._missing])
        late = [name for name, error in failures.items() if code_of(error) in (NOT_READY, TIMEOUT)]
        if late and pause_s:
            time.sleep(pause_s)
            more, still = self._ask(late)
            answers |= more
            failures = {name: error for name, error in failures.items() if name not in late} | still
        self._missing |= {name: reason_of(error) for name, error in failures.items() if is_missing(error)}
        unread = self._missing | {name: reason_of(error) for name, error in failures.items()}
        notes = tuple(f"{name} could not be read: {unread[name]}" for name in self._names if name in unread)
        return DeviceState(**answers, instance=self._device.instance, unread=notes)

    def _ask(self, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, Exception]]:
        answers: dict[str, Any] = {}
        failures: dict[str, Exception] = {}
        for name in names:
            question = QUESTIONS[name]
            handle = self._device.whole if question.whole else self._device.handle
            try:
                raw = question.ask(self._nvml, handle)
            except errors_of(self._nvml) as error:
                failures[name] = error
                continue
            try:
                answers[name] = question.take(raw)
            except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
                failures[name] = ValueError(reason_of(error))
        return answers, failures


def device_state(key: DeviceKey, library: Any = None) -> DeviceState:
    """All that NVML says of a device now.

    Args:
        key: of the device (`profiler.nvml.key_of`).
        library: what to take for `pynvml`.

    Raises:
        MissingDependency: nvidia-ml-py is not installed.
        NoDevice: NVML finds no driver or no such device.
    """
    with open_nvml(library) as nvml:
        return StateReader(nvml, find_device(nvml, key)).read(PAUSE_S)
