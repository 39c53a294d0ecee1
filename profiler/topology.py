"""How the devices of a node are joined, as NVML says without root: NVLinks and their states, PCIe ancestors.

Devices are numbered as NVML numbers them (all of the node, by bus id), which need not be torch's order. A pair is named
as `nvidia-smi topo -m` names it: PIX, PXB, PHB, NODE, SYS for what lies between on PCIe, NV# for # NVLinks, straight
or over a switch. Any question may go unanswered (another driver, another board, no permission); what was not answered
is said.

The shape of a node (links that are up, and ancestors) belongs to the identity of a measurement: with a link down the
same node is another network. Its digest stands there, the whole of it in the state.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from profiler.measurement import Environment

ANCESTORS = {
    "NVML_TOPOLOGY_INTERNAL": "PIX",
    "NVML_TOPOLOGY_SINGLE": "PIX",
    "NVML_TOPOLOGY_MULTIPLE": "PXB",
    "NVML_TOPOLOGY_HOSTBRIDGE": "PHB",
    "NVML_TOPOLOGY_NODE": "NODE",
    "NVML_TOPOLOGY_SYSTEM": "SYS",
}
"""NVML's name of what two devices have in common -> that of `nvidia-smi topo -m` (two chips of one board: as if behind
one bridge)."""

SWITCH = -1
"""Where an NVLink leads that ends in a switch."""


@dataclass(frozen=True)
class DeviceLinks:
    """The NVLinks of one device.

    Args:
        up: links that are active; down: that are there and are not.
        to: device, or `SWITCH` -> active links that lead there; what leads elsewhere (to a processor) is left out.
    """

    up: int
    down: int
    to: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Topology:
    """A node.

    Args:
        links: of each device; empty where none answered.
        ancestors: (device, device) -> PIX, PXB, PHB, NODE or SYS.
        unread: questions that were not answered, each with its reason.
    """

    links: tuple[DeviceLinks, ...] = ()
    ancestors: tuple[tuple[tuple[int, int], str], ...] = ()
    unread: tuple[str, ...] = ()

    def between(self, one: int, other: int) -> str:
        """What joins two devices; empty where nothing is known.

        >>> Topology((DeviceLinks(2, 0, ((1, 2),)), DeviceLinks(2, 0, ((0, 2),)))).between(0, 1)
        'NV2'
        """
        ends = [dict(self.links[device].to) if device < len(self.links) else {} for device in (one, other)]
        straight = ends[0].get(other, 0)
        over_switch = min(ends[0].get(SWITCH, 0), ends[1].get(SWITCH, 0))
        if straight or over_switch:
            return f"NV{straight + over_switch}"
        return dict(self.ancestors).get((min(one, other), max(one, other)), "")

    @property
    def nvlinks_text(self) -> str:
        """The links of every device, such as `0: 12 up, 0 down; 1: 11 up, 1 down`."""
        return "; ".join(f"{device}: {one.up} up, {one.down} down" for device, one in enumerate(self.links))

    @property
    def pairs_text(self) -> str:
        """What joins every pair, such as `0-1 NV12, 0-2 SYS`."""
        pairs = combinations(range(max(len(self.links), 1 + max((b for (_, b), _ in self.ancestors), default=-1))), 2)
        named = ((one, other, self.between(one, other)) for one, other in pairs)
        return ", ".join(f"{one}-{other} {name}" for one, other, name in named if name)

    @property
    def digest(self) -> str:
        """Equal for nodes of equal shape."""
        return hashlib.blake2b(repr((self.links, self.ancestors)).encode(), digest_size=4).hexdigest()

    def added_to(self, environment: Environment) -> Environment:
        """An environment with what is known of the node."""
        texts = {"nvlinks": self.nvlinks_text, "device_pairs": self.pairs_text}
        known = {"topology": self.digest} if self.links or self.ancestors else {}
        notes = tuple(f"topology: {reason}" for reason in self.unread)
        return Environment(
            identity={**environment.identity, **known},
            state={**environment.state, **{name: text for name, text in texts.items() if text}},
            notes=environment.notes + notes,
        )


def node_topology() -> Topology:
    """The topology of this node; without NVML only why it is not known."""
    try:
        import pynvml
    except ImportError:
        return Topology(unread=("nvidia-ml-py is not installed",))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Topology(unread=(f"NVML: {error}",))
    try:
        return read_topology(pynvml)
    finally:
        pynvml.nvmlShutdown()


def read_topology(nvml: Any) -> Topology:
    """Ask NVML, which has been started, how the devices of this node are joined.

    Args:
        nvml: the module `pynvml`.
    """
    asked = _Asked(nvml)
    count = asked.of("devices", "nvmlDeviceGetCount") or 0
    handles = [nvml.nvmlDeviceGetHandleByIndex(device) for device in range(count)]
    places = [asked.of("bus ids", "nvmlDeviceGetPciInfo", handle) for handle in handles]
    buses = {_bus_text(place): device for device, place in enumerate(places) if place is not None}
    links = tuple(asked.links(handle, buses) for handle in handles)
    names = {getattr(nvml, name): text for name, text in ANCESTORS.items() if hasattr(nvml, name)}
    found = {}
    for one, other in combinations(range(count), 2):
        level = asked.of("PCIe ancestors", "nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
        if level in names:
            found[(one, other)] = names[level]
    return Topology(links if any(one.up or one.down for one in links) else (), tuple(found.items()), asked.unread)


def _bus_text(info: Any) -> str:
    """A bus id as NVML gives it: bytes in older bindings, with more or fewer zeros in front."""
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    return text.lower().lstrip("0").lstrip(":")


class _Asked:
    """Questions to NVML, and which of them were not answered."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._unread: dict[str, None] = {}

    @property
    def unread(self) -> tuple[str, ...]:
        """What was not answered, each reason once."""
        return tuple(self._unread)

    def of(self, what: str, function: str, *arguments: Any) -> Any:
        """The answer, or None; an older binding may lack the function."""
        if not hasattr(self._nvml, function):
            self._unread[f"{what}: this nvidia-ml-py has no {function}"] = None
            return None
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            self._unread[f"{what}: {error}"] = None
            return None

    def links(self, handle: Any, buses: dict[Any, int]) -> DeviceLinks:
        """The NVLinks of a device; a board says of a link that it does not have that it is not supported."""
        up = down = 0
        to: Counter[int] = Counter()
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            try:
                active = self._nvml.nvmlDeviceGetNvLinkState(handle, link)
            except self._nvml.NVMLError:
                continue
            if not active:
                down += 1
                continue
            up += 1
            peer = self._peer(handle, link, buses)
            if peer is not None:
                to[peer] += 1
        return DeviceLinks(up, down, tuple(sorted(to.items())))

    def _peer(self, handle: Any, link: int, buses: dict[Any, int]) -> int | None:
        kind = self.of("what NVLinks lead to", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        if kind is not None and kind == getattr(self._nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", None):
            return SWITCH
        info = self.of("where NVLinks lead to", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        return None if info is None else buses.get(_bus_text(info))
