"""Price the transfers of a plan by the measured curves of a network instead of by the links of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from calibration.link_pricing import LinkTimer
from calibration.link_values import LinkCalibration
from db.reading import Reader
from oracle.errors import BadInput, UnknownName
from oracle.machine import Cluster, Link
from service.networks import link_calibration


@dataclass(frozen=True)
class NetworkChoice:
    """A stored network and which of its environments.

    Args:
        name: of the network.
        environment: its text or a part of it that no other environment has; needed where there are several.
        dtype: of the items, preferred where a collective was measured with several.
    """

    name: str
    environment: str | None = None
    dtype: str | None = None


def network_timer(store: Reader, choice: NetworkChoice) -> LinkTimer:
    """The timer of a network in one environment.

    Raises:
        UnknownName: no such network or environment. BadInput: several environments, and none or no single one chosen.
    """
    known = link_calibration(store.network(choice.name))
    return LinkTimer(known, environment_of(known, choice.environment), choice.dtype)


def environment_of(known: LinkCalibration, text: str | None) -> str | None:
    """The environment that a text names, whole or in part; None stands for the only one.

    Raises:
        UnknownName: none has that text. BadInput: several have it.
    """
    if text is None or text in known.environments:
        return text
    found = [environment for environment in known.environments if text in environment]
    if not found:
        raise UnknownName("environment", text, known.environments)
    if len(found) > 1:
        raise BadInput(f"'{text}' is part of {len(found)} environments: {'; '.join(found[:12])}")
    return found[0]


def flat_cluster(timer: LinkTimer, device: str, devices: int) -> Cluster:
    """A cluster of one tier, for a plan whose network is known by its curves and whose tiers nobody gave.

    Its link is the alpha and beta of the largest measured group. No transfer is priced by it: the curves know the
    inside of a node from the links between nodes by the number of ranks.
    """
    own = [curve for curve in timer.calibration.curves if curve.key.environment == timer.environment]
    line = max(own, key=lambda curve: (curve.key.collective == "all_reduce", curve.key.ranks)).alpha_beta
    return Cluster.of_link(device, Link(line.alpha_s, 1 / max(line.s_per_byte, 1e-15)), devices)
