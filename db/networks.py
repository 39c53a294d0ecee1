"""Calibrations of networks as rows: constants that plain SQL reads, and the whole content as JSON.

The content is what `stepgauge export` writes; what its keys mean is for those who fit and read it. This package knows
neither fits nor curves, so it takes and gives plain values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from db import schema
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


def network_id(connection: Connection, name: str) -> int | None:
    """The key of the network of a name, or None."""
    return connection.scalar(select(schema.network.c.id).where(schema.network.c.name == name))


def insert_network(connection: Connection, network: Network, run_ids: Sequence[str]) -> None:
    """Store a network, its constants and where it is from."""
    head = {
        "name": network.name,
        "fabric": network.fabric,
        "created_at": network.created_at,
        "content": dict(network.content),
    }
    connection.execute(insert(schema.network), head)
    new = network_id(connection, network.name)
    for table, columns in (
        (schema.network_constant, [{"network_id": new, **asdict(constant)} for constant in network.constants]),
        (schema.network_run, [{"network_id": new, "run_id": run_id} for run_id in run_ids]),
    ):
        if columns:
            connection.execute(insert(table), columns)


def find_network(connection: Connection, name: str) -> Network:
    """The network of that very name.

    Raises:
        UnknownName: there is none.
    """
    head = connection.execute(select(schema.network).where(schema.network.c.name == name)).one_or_none()
    if head is None:
        raise UnknownName("network", name, connection.scalars(select(schema.network.c.name)))
    table = schema.network_constant
    own = select(table).where(table.c.network_id == head.id).order_by(table.c.id)
    constants = tuple(
        NetworkConstant(
            name=row.name,
            collective=row.collective,
            ranks=row.ranks,
            nodes=row.nodes,
            dtype=row.dtype,
            environment=row.environment,
            job=row.job,
            value=row.value,
            unit=row.unit,
            lo=row.lo,
            hi=row.hi,
        )
        for row in connection.execute(own)
    )
    return Network(head.name, head.fabric, head.created_at, head.content, constants)


def all_networks(connection: Connection) -> list[NetworkSummary]:
    """All networks, oldest first."""
    head = schema.network.c
    heads = connection.execute(select(head.id, head.name, head.fabric, head.created_at).order_by(head.id)).all()
    counts = Counter(connection.scalars(select(schema.network_constant.c.network_id)))
    return [NetworkSummary(row.name, row.fabric, row.created_at, counts[row.id]) for row in heads]
