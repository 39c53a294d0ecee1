"""NVML: the library, and the devices in it under the names that torch knows.

NVML counts physical devices and torch the visible ones, in an order that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
change (vllm-project/vllm#4233). So a device is found by its UUID, where torch is too old to say one by its place on the
PCI bus, and never by its index. An instance of a divided device (MIG) has a UUID and a handle of its own, which answer
few questions; the others are asked of the whole device.

Every function takes the library as an argument: `pynvml` (the package nvidia-ml-py), or anything that has its
functions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from oracle.errors import MissingDependency, NoDevice

INVALID_ARGUMENT, NOT_SUPPORTED, TIMEOUT, FUNCTION_NOT_FOUND, NOT_READY = 2, 3, 10, 13, 27
"""NVML's numbers of errors that are treated apart (nvml.h, nvmlReturn_t)."""

MOST_DEVICES = 1024
"""More devices in one system, or instances of one, than there are: a count beyond it is no count."""

Place = tuple[int, int, int]
"""PCI domain, bus and device."""


@dataclass(frozen=True)
class DeviceKey:
    """What a device is called wherever it is asked for.

    Args:
        uuid: as `plain_uuid` writes it; empty where unknown.
        place: on the PCI bus; None where unknown.
    """

    uuid: str = ""
    place: Place | None = None

    def __str__(self) -> str:
        if self.uuid:
            return self.uuid
        return "{:08x}:{:02x}:{:02x}".format(*self.place) if self.place else "without UUID and PCI address"


@dataclass(frozen=True)
class NvmlDevice:
    """A device in NVML.

    Args:
        handle: of the device, or of the instance that is used of it.
        whole: of the whole device.
    """

    handle: Any
    whole: Any

    @property
    def instance(self) -> bool:
        """Whether only an instance of the device (MIG) is used."""
        return self.handle is not self.whole


def key_of(properties: Any) -> DeviceKey:
    """The key of a device from `torch.cuda.get_device_properties`; older versions of torch know less of it."""
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    numbers = [getattr(properties, name, None) for name in names]
    domain, bus, device = (number if isinstance(number, int) else None for number in numbers)
    place = None if domain is None or bus is None or device is None else (domain, bus, device)
    return DeviceKey(plain_uuid(getattr(properties, "uuid", "")), place)


def plain_uuid(value: object) -> str:
    """A UUID as both libraries can be compared by it.

    >>> plain_uuid(b"GPU-0AF3-11"), plain_uuid("0af3-11"), plain_uuid("MIG-77b2")
    ('0af3-11', '0af3-11', '77b2')
    """
    return as_text(value).lower().removeprefix("mig-").removeprefix("gpu-")


def as_text(value: object) -> str:
    """Text of NVML, which is bytes in older versions of the binding."""
    return value.decode("utf-8", "replace").strip("\0 ") if isinstance(value, bytes) else str(value).strip("\0 ")


@contextmanager
def open_nvml(library: Any = None) -> Iterator[Any]:
    """NVML, started; stopped on exit.

    Args:
        library: what to take for `pynvml`.

    Raises:
        MissingDependency: nvidia-ml-py is not installed.
        NoDevice: NVML finds no driver, or one that it cannot talk to.
    """
    nvml = _pynvml() if library is None else library
    try:
        nvml.nvmlInit()
    except errors_of(nvml) as error:
        raise NoDevice(f"NVML: {reason_of(error)}") from None
    try:
        yield nvml
    finally:
        with suppress(*errors_of(nvml)):  # a device that was lost meanwhile cannot be left in order
            nvml.nvmlShutdown()


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise MissingDependency("nvidia-ml-py", "measure") from None
    return pynvml


def errors_of(nvml: Any) -> tuple[type[Exception], ...]:
    """How a question can fail: NVML's own errors, and those of a binding that has another function or none."""
    own = getattr(nvml, "NVMLError", None)
    others = (AttributeError, TypeError, ValueError, LookupError, ArithmeticError, OSError, ctypes.ArgumentError)
    return (own, *others) if isinstance(own, type) and issubclass(own, Exception) else others


def code_of(error: Exception) -> int | None:
    """NVML's number of an error; None where it is not one of NVML's."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def reason_of(error: Exception) -> str:
    """An error on one line."""
    line = " ".join(str(error).split())
    return line or type(error).__name__


def find_device(nvml: Any, key: DeviceKey) -> NvmlDevice:
    """The device with this key.

    Raises:
        NoDevice: NVML has none; one that it will not talk of may be it.
    """
    silent = []
    wholes = []
    for number in range(_count(nvml)):
        try:
            wholes.append(nvml.nvmlDeviceGetHandleByIndex(number))
        except errors_of(nvml) as error:
            silent.append(f"number {number}: {reason_of(error)}")
    found = _by_uuid(nvml, wholes, key.uuid) or _by_place(nvml, wholes, key.place)
    if found is None:
        hidden = f" ({'; '.join(silent)})" if silent else ""
        raise NoDevice(f"NVML knows no device {key}{hidden}")
    return found


def _count(nvml: Any) -> int:
    try:
        return min(int(nvml.nvmlDeviceGetCount()), MOST_DEVICES)
    except errors_of(nvml) as error:
        raise NoDevice(f"NVML: {reason_of(error)}") from None


def _by_uuid(nvml: Any, wholes: list[Any], uuid: str) -> NvmlDevice | None:
    if not uuid:
        return None
    for whole in wholes:
        if _uuid(nvml, whole) == uuid:
            return NvmlDevice(whole, whole)
    for whole in wholes:
        for handle in _instances(nvml, whole):
            if _uuid(nvml, handle) == uuid:
                return NvmlDevice(handle, whole)
    return None


def _by_place(nvml: Any, wholes: list[Any], place: Place | None) -> NvmlDevice | None:
    if place is None:
        return None
    matching = [whole for whole in wholes if _quiet(nvml, partial(_place, nvml, whole)) == place]
    return NvmlDevice(matching[0], matching[0]) if matching else None


def _uuid(nvml: Any, handle: Any) -> Any:
    return _quiet(nvml, lambda: plain_uuid(nvml.nvmlDeviceGetUUID(handle)))


def _place(nvml: Any, handle: Any) -> Place:
    info = nvml.nvmlDeviceGetPciInfo(handle)
    return int(info.domain), int(info.bus), int(info.device)


def _instances(nvml: Any, whole: Any) -> Iterator[Any]:
    """The instances of a divided device; their numbers have holes."""
    most = _quiet(nvml, lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(whole))) or 0
    for number in range(min(most, MOST_DEVICES)):
        handle = _quiet(nvml, partial(_instance, nvml, whole, number))
        if handle is not None:
            yield handle


def _instance(nvml: Any, whole: Any, number: int) -> Any:
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, number)


def _quiet(nvml: Any, question: Callable[[], Any]) -> Any:
    """The answer, or None."""
    try:
        return question()
    except errors_of(nvml):
        return None
