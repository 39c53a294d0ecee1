"""The topology of a node, from a stand-in for NVML with any of its questions unanswered."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from profiler.measurement import Environment
from profiler.topology import DeviceLinks, Topology, node_topology, read_topology


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class Nvml:
    """Four devices: 0-1 and 2-3 with two NVLinks, one of device 3 down; pairs on two sockets.

    Args:
        silent: functions that raise.
        switched: whether links lead to a switch.
    """

    silent: frozenset[str] = frozenset()
    switched: bool = False
    NVMLError: type[Exception] = NVMLError
    NVML_NVLINK_MAX_LINKS: int = 4
    NVML_NVLINK_DEVICE_TYPE_SWITCH: int = 2
    NVML_TOPOLOGY_SINGLE: int = 10
    NVML_TOPOLOGY_SYSTEM: int = 50
    asked: list[str] = field(default_factory=list)

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        if name in self.silent:
            raise NVMLError("Not Supported")

    def nvmlDeviceGetCount(self) -> int:
        self._ask("nvmlDeviceGetCount")
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> object:
        self._ask("nvmlDeviceGetPciInfo")
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0".encode())

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        self._ask("nvmlDeviceGetNvLinkState")
        if link > 1:
            raise NVMLError("Invalid Argument")
        return int((handle, link) != (3, 1))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        self._ask("nvmlDeviceGetNvLinkRemoteDeviceType")
        return 2 if self.switched else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> object:
        self._ask("nvmlDeviceGetNvLinkRemotePciInfo")
        return SimpleNamespace(busId=f"0000:0{handle ^ 1}:00.0")

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        self._ask("nvmlDeviceGetTopologyCommonAncestor")
        return 10 if one // 2 == other // 2 else 50


def test_links_and_ancestors_are_read_and_named_as_nvidia_smi_names_them() -> None:
    found = read_topology(Nvml())
    assert found.links[3] == DeviceLinks(1, 1, ((2, 1),))
    assert found.pairs_text == "0-1 NV2, 0-2 SYS, 0-3 SYS, 1-2 SYS, 1-3 SYS, 2-3 NV2"
    assert found.nvlinks_text == "0: 2 up, 0 down; 1: 2 up, 0 down; 2: 2 up, 0 down; 3: 1 up, 1 down"
    assert found.unread == ()


def test_links_to_a_switch_join_everybody() -> None:
    # Device 3 has one link to the switch, the others two: a pair has the fewer of its ends.
    assert read_topology(Nvml(switched=True)).pairs_text == "0-1 NV2, 0-2 NV2, 0-3 NV1, 1-2 NV2, 1-3 NV1, 2-3 NV1"


QUESTIONS = [name for name in vars(Nvml) if name.startswith("nvmlDeviceGet") and "Handle" not in name]


@pytest.mark.parametrize("silent", QUESTIONS)
def test_any_question_may_go_unanswered(silent: str) -> None:
    whole, found = read_topology(Nvml()), read_topology(Nvml(silent=frozenset({silent})))
    said_less = found != whole
    assert said_less or silent == "nvmlDeviceGetNvLinkRemoteDeviceType"
    # A link that does not exist is not supported either, so that answer alone is no news.
    assert found.unread or silent == "nvmlDeviceGetNvLinkState"
    assert all("Not Supported" in reason for reason in found.unread)


def test_an_older_binding_lacks_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Nvml, "nvmlDeviceGetNvLinkRemotePciInfo")
    found = read_topology(Nvml())
    assert found.links[0] == DeviceLinks(2, 0, ())
    assert found.between(0, 1) == "PIX"
    assert "has no nvmlDeviceGetNvLinkRemotePciInfo" in found.unread[0]


def test_a_link_that_is_down_is_another_identity() -> None:
    before = Environment({"driver": "1"}, {}, ("a note",))
    whole = read_topology(Nvml())
    broken = Topology((DeviceLinks(1, 1, ((1, 1),)), *whole.links[1:]), whole.ancestors, ("x: y",))
    one, other = whole.added_to(before), broken.added_to(before)
    assert one.validity_key != other.validity_key
    assert one.state["device_pairs"].startswith("0-1 NV2")
    assert other.notes == ("a note", "topology: x: y")
    assert read_topology(Nvml()).added_to(before) == one


def test_without_a_driver_the_environment_stays_as_it_is_but_for_a_note() -> None:
    environment = node_topology().added_to(Environment({}, {}))
    if environment.identity:
        pytest.skip("this machine has NVIDIA devices")
    assert len(environment.notes) == 1
    assert environment.notes[0].startswith("topology: ")
