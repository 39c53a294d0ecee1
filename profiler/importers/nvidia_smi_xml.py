"""`nvidia-smi -q -x`, schemas v11 to v13: one fact per device.

The document is read line by line with a stack of tags, not with an XML parser: nvidia-smi writes one element per
line, and a reader without entities and external files cannot be attacked through them. Names moved between schemas
(clocks_throttle_reasons -> clocks_event_reasons, power_readings -> gpu_power_readings, power_draw ->
instant_power_draw); values are texts with a unit, `N/A`, `[Not Supported]` or `Insufficient Permissions`. Serial
numbers and UUIDs identify somebody's machine and are not kept.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping

from profiler.importers.base import Fact, Importer, Item, Log, Verdict
from profiler.importers.source import Source

_LEAF = re.compile(r"<([A-Za-z_][\w.-]*)(?: [^<>]*)?>([^<>]*)</\1>")
_OPEN = re.compile(r"<([A-Za-z_][\w.-]*)((?: [^<>]*[^<>/])?)>")
_CLOSE = re.compile(r"</([A-Za-z_][\w.-]*)>")
_EMPTY = re.compile(r"<([A-Za-z_][\w.-]*)(?: [^<>]*)?/>")
_SCHEMA = re.compile(r"nvsmi_device_(v\d+)\.dtd")
_QUANTITY = re.compile(r"(-?\d{1,15}(?:\.\d{1,9})?) ?([A-Za-z%/]*)")
_UNITS = {"MiB": 2.0**20, "KiB": 2.0**10, "GiB": 2.0**30, "MHz": 1e6, "W": 1.0, "C": 1.0, "%": 0.01, "x": 1.0, "": 1.0}
DEPTH = 32

_TEXTS: dict[str, tuple[str, ...]] = {
    "name": ("product_name",),
    "architecture": ("product_architecture",),
    "bus": ("pci/pci_bus_id",),
    "mig_mode": ("mig_mode/current_mig",),
    "ecc_mode": ("ecc_mode/current_ecc",),
    "persistence_mode": ("persistence_mode",),
    "compute_mode": ("compute_mode",),
}
_NUMBERS: dict[str, tuple[str, ...]] = {
    "memory_bytes": ("fb_memory_usage/total",),
    "clock_hz": ("clocks/sm_clock",),
    "memory_clock_hz": ("clocks/mem_clock",),
    "max_clock_hz": ("max_clocks/sm_clock",),
    "max_memory_clock_hz": ("max_clocks/mem_clock",),
    "application_clock_hz": ("applications_clocks/graphics_clock",),
    "power_w": ("gpu_power_readings/instant_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"),
    "power_limit_w": (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ),
    "max_power_limit_w": ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
    "temperature_c": ("temperature/gpu_temp",),
    "utilization": ("utilization/gpu_util",),
    "pcie_generation": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "max_pcie_generation": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "pcie_lanes": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "max_pcie_lanes": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
}
_REASONS = re.compile(r"clocks_(?:throttle|event)_reasons/clocks_(?:throttle|event)_reason_(\w+)")


class _Document:
    """The stack of open tags and the values of the current device and of the machine."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.machine: dict[str, str] = {}
        self.device: dict[str, str] = {}
        self.closed = False

    def feed(self, text: str) -> dict[str, str] | str | None:
        """Take a line: a device's values when it ends, a text with the reason where the line is unusable, or None."""
        if match := _LEAF.fullmatch(text):
            self._keep(match[1], html.unescape(match[2]).strip())
        elif match := _CLOSE.fullmatch(text):
            return self._close(match[1])
        elif _EMPTY.fullmatch(text):
            return None
        elif match := _OPEN.fullmatch(text):
            if len(self.stack) >= DEPTH:
                return "nested too deep"
            self.stack.append(match[1])
            if match[1] == "gpu":
                self.device = {}
        elif not text.startswith(("<?", "<!")) and "<" in text:
            return "no element of its own line"
        return None

    def _keep(self, name: str, value: str) -> None:
        path = [*self.stack[1:], name]
        if path[0] == "gpu" and len(self.device) < 4096:
            self.device["/".join(path[1:])] = value
        elif len(path) == 1:
            self.machine[name] = value

    def _close(self, name: str) -> dict[str, str] | str | None:
        if not self.stack or self.stack[-1] != name:
            return f"</{name}> closes nothing"
        self.stack.pop()
        self.closed = not self.stack
        return self.device if name == "gpu" and len(self.stack) == 1 else None


def _read(source: Source, log: Log) -> Iterator[Item]:
    document = _Document()
    schema = _SCHEMA.search(source.head)
    for number, line in source.lines():
        if not (text := line.strip()):
            continue
        found = document.feed(text)
        if isinstance(found, str):
            log.skip(number, line, found)
            log.judge(Verdict.INCOMPLETE)
        elif found is not None:
            yield from _device(number, found, document.machine, schema[1] if schema else "", log)
    if not document.closed:
        log.warn("the document is cut off")
        log.judge(Verdict.INCOMPLETE)


def _device(number: int, found: Mapping[str, str], machine: Mapping[str, str], schema: str, log: Log) -> Iterator[Fact]:
    values: dict[str, object] = {"schema": schema}
    for name, paths in _TEXTS.items():
        if text := next((found[path] for path in paths if _usable(found.get(path))), None):
            values[name] = text[:100]
    for name, paths in _NUMBERS.items():
        numbers = (_quantity(found.get(path, "")) for path in paths)
        if (value := next((number for number in numbers if number is not None), None)) is not None:
            values[name] = value
    values["throttle_reasons"] = sorted(
        match[1] for path, text in found.items() if (match := _REASONS.fullmatch(path)) and text == "Active"
    )
    for name in ("driver_version", "cuda_version", "timestamp"):
        if _usable(machine.get(name)):
            values[name] = machine[name][:60]
    if "name" not in values:
        log.drop(number, "</gpu>", "a device without a name")
        return
    log.take()
    _warn(values, log)
    yield Fact("device", str(values["name"]), values)


def _warn(values: Mapping[str, object], log: Log) -> None:
    reasons = values.get("throttle_reasons")
    if isinstance(reasons, list) and set(reasons) - {"gpu_idle", "applications_clocks_setting"}:
        log.warn(f"{values['name']} was throttled: {', '.join(reasons)}")
    if values.get("mig_mode") == "Enabled":
        log.warn(f"{values['name']} is split into MIG slices")
    lanes, most = values.get("pcie_lanes"), values.get("max_pcie_lanes")
    if isinstance(lanes, float) and isinstance(most, float) and lanes < most:
        log.warn(f"{values['name']} uses {lanes:g} of {most:g} PCIe lanes")


def _usable(text: str | None) -> bool:
    return text is not None and text not in ("", "N/A", "Insufficient Permissions") and not text.startswith("[")


def _quantity(text: str) -> float | None:
    """`15360 MiB` or `8x` in SI; None where there is no number with a known unit."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS:
        return None
    return float(match[1]) * _UNITS[match[2]]


def _recognises(head: str) -> bool:
    return "<nvidia_smi_log>" in head


IMPORTER = Importer("nvidia_smi_xml", _recognises, _read)
