"""What NVML says of a device, without root; every question may go unanswered.

NVML counts physical devices, torch the visible ones: they are matched by UUID (vllm-project/vllm#4233).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from oracle.errors import MissingDependency, NoDevice


@dataclass(frozen=True)
class DeviceState:
    """What is known of one device; None where the driver does not say.

    Args:
        processes: ids of the processes that use it.
        power_limit_w, default_power_limit_w: enforced now, and as delivered.
        mig: whether it is cut into instances.
        gpu_temperature_c, sm_clock_hz, power_w: at this moment.
        unread: the questions that were not answered, each with its reason.
    """

    processes: tuple[int, ...] | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    mig: bool | None = None
    gpu_temperature_c: float | None = None
    sm_clock_hz: float | None = None
    power_w: float | None = None
    unread: tuple[str, ...] = field(default=())


def driver_version() -> str:
    """The version of the driver.

    Raises:
        MissingDependency: nvidia-ml-py is not installed.
        NoDevice: NVML finds no driver.
    """
    with _library() as nvml:
        return _text(nvml.nvmlSystemGetDriverVersion())


def device_state(uuid: str) -> DeviceState:
    """The state of the device with this UUID.

    Args:
        uuid: with or without the `GPU-` in front, as torch or NVML write it.

    Raises:
        MissingDependency: nvidia-ml-py is not installed.
        NoDevice: NVML finds no driver or no such device.
    """
    with _library() as nvml:
        handle = _handle(nvml, uuid)
        questions: dict[str, Callable[[], Any]] = {
            "processes": lambda: tuple(p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "default_power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000,
            "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
            "gpu_temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "sm_clock_hz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        }
        answers: dict[str, Any] = {}
        unread = []
        for name, question in questions.items():
            try:
                answers[name] = question()
            except nvml.NVMLError as error:  # not supported on this board, no permission, an older driver
                unread.append(f"{name}: {error}")
        return DeviceState(**answers, unread=tuple(unread))


def _handle(nvml: Any, uuid: str) -> Any:
    wanted = uuid.removeprefix("GPU-").lower()
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        if _text(nvml.nvmlDeviceGetUUID(handle)).removeprefix("GPU-").lower() == wanted:
            return handle
    raise NoDevice(f"NVML knows no device {uuid}")


@contextmanager
def _library() -> Iterator[Any]:
    try:
        import pynvml
    except ImportError:
        raise MissingDependency("nvidia-ml-py", "measure") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDevice(f"NVML: {error}") from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes in older versions
