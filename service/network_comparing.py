"""Compare two networks: what every collective takes, and all their constants; the newest earlier one of a fabric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from calibration.link_drift import Drift, drift
from calibration.link_values import LinkCalibration
from db.networks import NetworkConstant
from db.reading import Reader
from oracle.errors import BadInput
from service.networks import link_calibration, named_constants, network_names


@dataclass(frozen=True)
class NetworkRatio:
    """One constant of two networks; the ratio is second / first, with its 80 % interval where both have one."""

    first: NetworkConstant
    second: NetworkConstant
    ratio: float
    lo: float | None
    hi: float | None

    @property
    def differs(self) -> bool:
        """Whether the interval of the ratio leaves out 1."""
        return self.lo is not None and self.hi is not None and not self.lo <= 1.0 <= self.hi


@dataclass(frozen=True)
class NetworkComparison:
    """Two networks side by side.

    Args:
        times: the same collectives at common sizes.
        constants: those with one name in one environment.
        only_first, only_second: curves without a counterpart.
    """

    first: LinkCalibration
    second: LinkCalibration
    times: tuple[Drift, ...]
    constants: tuple[NetworkRatio, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kind": "networks",
            "first": self.first.name,
            "second": self.second.name,
            "times": [
                {
                    "collective": item.key.collective,
                    "ranks": item.key.ranks,
                    "nodes": item.key.nodes,
                    "dtype": item.key.dtype,
                    "form": item.key.form,
                    "first_environment": item.was,
                    "second_environment": item.key.environment,
                    "sizes": item.sizes,
                    "ratio": item.ratio,
                    "lo": item.lo,
                    "hi": item.hi,
                }
                for item in self.times
            ],
            "constants": [
                {
                    "name": item.first.name,
                    "environment": item.first.environment,
                    "unit": item.first.unit,
                    "first": item.first.value,
                    "second": item.second.value,
                    "ratio": item.ratio,
                    "lo": item.lo,
                    "hi": item.hi,
                }
                for item in self.constants
            ],
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
        }


def are_networks(store: Reader, first: str, second: str) -> bool:
    """Whether both names are of networks.

    Raises:
        BadInput: one is and the other is not.
    """
    networks = network_names(store)
    if (first in networks) != (second in networks):
        network, other = (first, second) if first in networks else (second, first)
        raise BadInput(f"'{network}' is a network and '{other}' is none; compare two networks, or two devices")
    return first in networks


def compare_networks(store: Reader, first: str, second: str) -> NetworkComparison:
    """Put two stored networks side by side.

    Raises:
        UnknownName: no such network.
    """
    return compared(link_calibration(store.network(first)), link_calibration(store.network(second)))


def compared(first: LinkCalibration, second: LinkCalibration) -> NetworkComparison:
    """Put two networks side by side."""
    times = drift(first, second)
    mine, theirs = ({(c.name, c.environment, c.job): c for c in named_constants(known)} for known in (first, second))
    both = [key for key in mine if key in theirs and mine[key].value > 0 and theirs[key].value > 0]
    paired = {(item.was, item.key.environment, item.key.collective, item.key.ranks, item.key.nodes) for item in times}
    return NetworkComparison(
        first=first,
        second=second,
        times=times,
        constants=tuple(_ratio(mine[key], theirs[key]) for key in both if not key[0].startswith("spread.")),
        only_first=_alone(first, {(was, *rest) for was, _, *rest in paired}),
        only_second=_alone(second, {(now, *rest) for _, now, *rest in paired}),
    )


def _alone(known: LinkCalibration, paired: set[tuple[Any, ...]]) -> tuple[str, ...]:
    keys = (curve.key for curve in known.curves)
    return tuple(key.text for key in keys if (key.environment, key.collective, key.ranks, key.nodes) not in paired)


def _ratio(first: NetworkConstant, second: NetworkConstant) -> NetworkRatio:
    """Two fits of different measurements are independent: their intervals add in squares, in the logarithm."""
    ratio = second.value / first.value
    halves = [_half(first), _half(second)]
    if any(half is None for half in halves):
        return NetworkRatio(first, second, ratio, None, None)
    half = math.hypot(*(half for half in halves if half is not None))
    return NetworkRatio(first, second, ratio, ratio * math.exp(-half), ratio * math.exp(half))


def _half(constant: NetworkConstant) -> float | None:
    if not constant.lo or not constant.hi:
        return None
    return 0.5 * math.log(constant.hi / constant.lo)


def earlier(store: Reader, known: LinkCalibration) -> LinkCalibration | None:
    """The newest other network of the same fabric; None where this is the first."""
    others = [item for item in store.networks() if item.fabric == known.fabric and item.name != known.name]
    if not others:
        return None
    return link_calibration(store.network(max(others, key=lambda item: item.created_at).name))
