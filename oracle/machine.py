"""The machine of a job: its device and the tiers of links between devices, given in code or read from YAML.

A cluster is a nest of tiers, innermost first: devices of a node, nodes of a rack, racks of a system. Every tier says
how many devices one of its groups holds and which link its groups talk over. A group of devices is taken to be
contiguous and aligned, so the innermost tier that is large enough holds it, and every step of a collective takes what
the slowest link on the ring takes: the link of that tier (ParaDL, HPDC 2021, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from oracle.errors import BadInput, OutOfRange
from oracle.units import parse_bytes, parse_bytes_per_s, parse_seconds

MAX_FILE_BYTES = 2**16
"""A cluster file larger than this is not one."""

_MAX_DEPTH = 8
"""Deeper nesting than a cluster file needs, at which YAML's reader is still fast."""


LONGEST_LATENCY_S = 3600.0
HIGHEST_BANDWIDTH_BYTES_PER_S = 1e18
MOST_PER_TIER = 1_000_000
"""Beyond any machine; numbers outside are slips, and would overflow further on."""


@dataclass(frozen=True)
class Link:
    """What neighbours in a ring see of each other: startup in seconds and bandwidth in bytes/s."""

    latency_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s <= LONGEST_LATENCY_S:
            raise OutOfRange(f"the latency of a link is 0 to {LONGEST_LATENCY_S:g} seconds, not {self.latency_s}")
        if not 1 <= self.bandwidth_bytes_per_s <= HIGHEST_BANDWIDTH_BYTES_PER_S:
            highest = f"{HIGHEST_BANDWIDTH_BYTES_PER_S:g}"
            raise OutOfRange(f"the bandwidth of a link is 1 to {highest} bytes/s, not {self.bandwidth_bytes_per_s}")


def parse_link(text: str) -> Link:
    """Read `LATENCY,BANDWIDTH`.

    Raises:
        BadInput: not two quantities, a wrong unit, or a value that no link has.

    >>> parse_link("9us,50GB/s")
    Link(latency_s=9e-06, bandwidth_bytes_per_s=50000000000.0)
    """
    parts = text.split(",")
    if len(parts) != 2:
        raise BadInput(f"'{text}' is not a link; write a latency and a bandwidth, such as 9us,50GB/s")
    return Link(parse_seconds(parts[0]), parse_bytes_per_s(parts[1]))


@dataclass(frozen=True)
class Tier:
    """One level of the machine.

    Args:
        name: what people call it, such as node or rack.
        link: between the groups of the tier below.
        devices: how many devices one group of this tier holds; None where there is no end.
        oversubscription: how many times less bandwidth leaves a group than enters it from below; at least 1.
        nics_per_node: network cards that concurrent rings share out among themselves; at least 1.
    """

    name: str
    link: Link
    devices: int | None = None
    oversubscription: float = 1.0
    nics_per_node: int = 1

    def __post_init__(self) -> None:
        where = f"of tier '{self.name}'"
        if self.devices is not None and self.devices < 1:
            raise OutOfRange(f"the devices {where} are at least 1, not {self.devices}")
        if not 1 <= self.oversubscription <= MOST_PER_TIER:
            raise OutOfRange(f"the oversubscription {where} is 1 to {MOST_PER_TIER}, not {self.oversubscription}")
        if not 1 <= self.nics_per_node <= MOST_PER_TIER:
            raise OutOfRange(f"the nics_per_node {where} are 1 to {MOST_PER_TIER}, not {self.nics_per_node}")


@dataclass(frozen=True)
class Cluster:
    """Devices of one kind and the tiers that join them; without tiers it is one device alone.

    Args:
        name: what people call it.
        device: the device's own name.
        tiers: innermost first.
        memory_bytes: memory of one device, where known.
        device_spread: standard deviation of ln(time) of the same work on different devices and in different steps, by
            which a synchronous step waits for its slowest device (healthy fleets of one GPU model vary by 8 %: Sinha et
            al., SC'22, arXiv 2208.11035).

    Raises:
        BadInput: two tiers of one name, or a tier that does not hold more devices than the tier inside it.
    """

    name: str
    device: str
    tiers: tuple[Tier, ...] = ()
    memory_bytes: float | None = None
    device_spread: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.device_spread <= 1:
            raise OutOfRange(f"the device_spread of a cluster is 0 to 1, not {self.device_spread}")
        if self.memory_bytes is not None and not 0 < self.memory_bytes < math.inf:
            raise OutOfRange(f"the memory of a device is more than zero bytes, not {self.memory_bytes}")
        if len({tier.name for tier in self.tiers}) < len(self.tiers):
            raise BadInput(f"two tiers of cluster '{self.name}' have the same name")
        for inner, outer in pairwise(self.tiers):
            if inner.devices is None:
                raise BadInput(f"tier '{inner.name}' has no number of devices; only the outermost may go without")
            if outer.devices is not None and outer.devices <= inner.devices:
                raise BadInput(f"tier '{outer.name}' must hold more devices than the {inner.devices} of '{inner.name}'")

    @classmethod
    def of_link(cls, device: str, link: Link, devices: int | None = None) -> Cluster:
        """A cluster whose devices are all joined by the same link, as `--link` gives it."""
        return cls("link", device, (Tier("link", link, devices),))

    @property
    def devices(self) -> int | None:
        """How many devices there are; None where there is no end."""
        return self.tiers[-1].devices if self.tiers else 1

    def tier_of(self, group: int) -> int:
        """The index of the innermost tier that holds a contiguous group of devices; 0 for one device alone.

        Raises:
            OutOfRange: no devices, or more than the cluster has.

        >>> Cluster("two", "any", (Tier("node", parse_link("9us,50GB/s"), 4), Tier("all", Link(4e-5, 1e9)))).tier_of(5)
        1
        """
        if group < 1:
            raise OutOfRange(f"a group has at least one device, not {group}")
        if self.devices is not None and group > self.devices:
            held = "1 device" if self.devices == 1 else f"{self.devices} devices"
            raise OutOfRange(f"cluster '{self.name}' has {held}, not {group}")
        return next((i for i, tier in enumerate(self.tiers) if tier.devices is None or group <= tier.devices), 0)


def load_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    A tier counts its devices as `devices: 4` or, once the innermost tier is a node, as `nodes: 17`.

    Raises:
        BadInput: the file cannot be read, is no YAML, or has a field that is unknown, missing, doubled, ill-typed or
            impossible; the text names the file and the field.
    """
    try:
        return _cluster(_read_yaml(path))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _read_yaml(path: Path) -> Any:
    """The plain values of a small YAML file without aliases (which could be cyclic, or grow without bound)."""
    import yaml

    try:
        if path.exists() and not path.is_file():
            raise BadInput("no regular file")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise BadInput(f"larger than {MAX_FILE_BYTES} bytes; that is no cluster file")
        text = raw.decode()
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise BadInput("aliases (*name) have no place in a cluster file; write the values out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise BadInput(f"nested more than {_MAX_DEPTH} deep; that is no cluster file")
        _refuse_doubled(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}") from None
    except (AttributeError, IndexError, KeyError, TypeError):  # what PyYAML raises of malformed tags such as !!int ""
        raise BadInput("a tag (!!name) has a value that it cannot have; write the values without tags") from None
    except yaml.YAMLError as error:
        raise BadInput(f"no YAML: {' '.join(str(error).split())}") from None
    except ValueError:
        raise BadInput("no YAML that can be read: it is not UTF-8, or has an endless number") from None


def _refuse_doubled(node: Any) -> None:
    """Refuse a field written twice, of which YAML's reader would silently keep the last."""
    if isinstance(node.value if node else None, list):
        pairs = [item if isinstance(item, tuple) else (None, item) for item in node.value]
        names = [key.value for key, _ in pairs if key is not None and isinstance(key.value, str)]
        if len(set(names)) < len(names):
            raise BadInput(f"the field '{next(name for name in names if names.count(name) > 1)[:40]}' is written twice")
        for _, value in pairs:
            _refuse_doubled(value)


_REQUIRED = object()


class _Fields:
    """A mapping of the file that hands out checked fields and knows which are left over."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise BadInput(f"{where} is {_said(values)}, not a mapping of fields")
        self.left, self.where = dict(values), where

    def take(self, name: str, types: tuple[type, ...], example: str, default: Any = _REQUIRED) -> Any:
        """A field of one of the types; without it the default, and without that an error."""
        value = self.left.pop(name, default)
        if value is _REQUIRED:
            raise BadInput(f"{self.where} has no '{name}'; write, for example, {name}: {example}")
        if value is not default and type(value) not in types:
            raise BadInput(f"'{name}' of {self.where} is {_said(value)}; write, for example, {name}: {example}")
        return value

    def quantity(self, name: str, parse: Callable[[str], float], example: str) -> float:
        """A text with a unit, in SI."""
        text = self.take(name, (str,), example)
        try:
            return parse(text)
        except BadInput as error:
            raise BadInput(f"'{name}' of {self.where}: {error}") from None

    def done(self) -> None:
        """Refuse what nobody asked for."""
        if self.left:
            raise BadInput(f"{self.where} has an unknown field '{str(next(iter(self.left)))[:40]}'")


def _said(value: Any) -> str:
    if isinstance(value, dict | list | set):
        return f"a {type(value).__name__}"
    return "empty" if value is None else repr(value)[:40]


def _cluster(values: Any) -> Cluster:
    fields = _Fields(values, "the cluster")
    name = fields.take("name", (str,), "abci")
    device = fields.take("device", (str,), "Tesla V100-SXM2-16GB")
    memory_bytes = fields.quantity("memory", parse_bytes, "16GiB") if "memory" in fields.left else None
    items = fields.take("tiers", (list,), "[{name: node, devices: 4, link: {latency: 9us, bandwidth: 50GB/s}}]")
    spread = float(fields.take("device_spread", (int, float), "0.02", default=0.0))
    fields.done()
    if not items:
        raise BadInput("the cluster has no tiers")
    tiers: list[Tier] = []
    for index, item in enumerate(items, start=1):
        tiers.append(_tier(item, index, tiers[0].devices if tiers else None))
    return Cluster(name, device, tuple(tiers), memory_bytes, spread)


def _tier(values: Any, index: int, node_devices: int | None) -> Tier:
    fields = _Fields(values, f"tier {index}")
    name = fields.take("name", (str,), "node")
    fields.where = f"tier '{name}'"
    devices = _devices(fields, node_devices)
    link = _link(fields.take("link", (dict,), "{latency: 9us, bandwidth: 50GB/s}"), f"the link of {fields.where}")
    oversubscription = fields.take("oversubscription", (int, float), "3", default=1.0)
    nics = fields.take("nics_per_node", (int,), "2", default=1)
    fields.done()
    return Tier(name, link, devices, oversubscription, nics)


def _devices(fields: _Fields, node_devices: int | None) -> int | None:
    devices: int | None = fields.take("devices", (int,), "4", default=None)
    nodes: int | None = fields.take("nodes", (int,), "17", default=None)
    if nodes is None:
        return devices
    if devices is not None:
        raise BadInput(f"{fields.where} counts both 'devices' and 'nodes'; give one")
    if node_devices is None:
        raise BadInput(f"{fields.where} counts 'nodes', but the innermost tier does not count 'devices'")
    return nodes * node_devices


def _link(values: Any, where: str) -> Link:
    fields = _Fields(values, where)
    latency_s = fields.quantity("latency", parse_seconds, "9us")
    bandwidth_bytes_per_s = fields.quantity("bandwidth", parse_bytes_per_s, "50GB/s")
    fields.done()
    try:
        return Link(latency_s, bandwidth_bytes_per_s)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
