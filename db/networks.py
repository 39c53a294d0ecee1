"""Calibrations of networks as rows: constants that plain SQL reads, and the whole content as JSON.

The content is what `stepgauge export` writes; what its keys mean is for those who fit and read it. This package knows
neither fits nor curves, so it takes and gives plain values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from db.plain_sql import Ask, json_value
from oracle.errors import UnknownName


@dataclass(frozen=True)
class NetworkConstant:
    """One constant of one curve.

    Args:
        name: such as `all_reduce.8x1.fp32.alpha_s`.
        collective: our name, or an empty text where the constant holds for all.
        ranks, nodes: 0 where the constant holds for all, or nobody wrote them down.
        dtype, environment, job: of the curve; may be empty.
        value: not negative, in `unit`.
        lo, hi: the 80 % interval, or None where it is not identified.
    """

    name: str
    collective: str
    ranks: int
    nodes: int
    dtype: str
    environment: str
    job: str
    value: float
    unit: str
    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True)
class Network:
    """A calibration of a network as it is stored.

    Args:
        name: free among all calibrations.
        fabric: the devices and links, in words.
        created_at: UTC, ISO 8601.
        content: everything that was fitted, as JSON values.
        constants: those of its constants that have a name.
    """

    name: str
    fabric: str
    created_at: str
    content: Mapping[str, Any]
    constants: tuple[NetworkConstant, ...]


@dataclass(frozen=True)
class NetworkSummary:
    """A calibration of a network in one line; `constants` says how many it has."""

    name: str
    fabric: str
    created_at: str
    constants: int


def network_id(ask: Ask, name: str) -> int | None:
    """The key of the network of a name, or None."""
    found = ask("SELECT id FROM network WHERE name = :name", name=name)
    return found[0]["id"] if found else None


def find_network(ask: Ask, name: str) -> Network:
    """The network of that very name.

    Raises:
        UnknownName: there is none.
    """
    found = network_id(ask, name)
    if found is None:
        raise UnknownName("network", name, [row["name"] for row in ask("SELECT name FROM network")])
    (head,) = ask("SELECT * FROM network WHERE id = :id", id=found)
    constants = tuple(
        NetworkConstant(
            name=row["name"],
            collective=row["collective"],
            ranks=row["ranks"],
            nodes=row["nodes"],
            dtype=row["dtype"],
            environment=row["environment"],
            job=row["job"],
            value=row["value"],
            unit=row["unit"],
            lo=row["lo"],
            hi=row["hi"],
        )
        for row in ask("SELECT * FROM network_constant WHERE network_id = :id ORDER BY id", id=found)
    )
    return Network(head["name"], head["fabric"], head["created_at"], json_value(head["content"]), constants)


def all_networks(ask: Ask) -> list[NetworkSummary]:
    """All networks, oldest first."""
    heads = ask("SELECT id, name, fabric, created_at FROM network ORDER BY id")
    counts = Counter(row["network_id"] for row in ask("SELECT network_id FROM network_constant"))
    return [NetworkSummary(row["name"], row["fabric"], row["created_at"], counts[row["id"]]) for row in heads]
