"""Measurements of collectives, stored or imported, as the rows that a fit of links takes.

What may never be merged is told apart by what a measurement says of itself. Its *fabric* is the device, and the source
and interconnect that its file names: one calibration holds one fabric. Its *environment* is everything else in its
identity (library, variables, tool, node set, tag) with whatever in its case is no part of a `CurveKey`: one curve holds
one environment. In place and out of place, and calls of the same size, are repeats of one another; the pattern of a
send and receive, the spacing of calls and the library that called NCCL are the curve's form.

In a scaling study every number of ranks may be a job with a mark of its own (a tag, a set of nodes). Such a mark is no
environment, or no law in ranks could be fitted; but only the caller can know it, so the caller names the mark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from calibration.link_rows import LinkRow, canonical
from calibration.link_values import CurveKey
from oracle.errors import BadInput
from profiler.importers.collectives import BUS_FACTORS
from profiler.measurement import Measurement

FABRIC_KEYS = ("source", "interconnect", "cluster")
"""What of an identity names the fabric, beside the device."""

_OF_THE_KEY = frozenset(
    ["collective", "bytes", "ranks", "nodes", "dtype", "in_place", "concurrent", "algorithm", "protocol"]
)
"""What of a case is in the curve's key or is a repeat of it."""


FORM_KEYS = ("pattern", "spacing", "api")
"""What of a case is the form in which a collective was called."""


def label(values: Mapping[str, Any]) -> str:
    """One text for equal values.

    >>> label({"tag": "run 1", "NCCL_ALGO": "Ring"})
    'NCCL_ALGO=Ring, tag=run 1'
    """
    return ", ".join(f"{name}={values[name]}" for name in sorted(values))


def fabric_of(measurement: Measurement) -> str:
    """The device and links of a measurement, in words."""
    identity = measurement.environment.identity
    return ", ".join([measurement.device, *(identity[name] for name in FABRIC_KEYS if name in identity)])


def key_of(measurement: Measurement, job_keys: Collection[str] = ()) -> CurveKey:
    """The curve that a measurement of a collective belongs to.

    Args:
        measurement: its case has collective, bytes, ranks, nodes and dtype.
        job_keys: names in its identity that mark one job of an environment.

    Raises:
        BadInput: its case describes no collective.
    """
    case, identity = measurement.case, measurement.environment.identity
    further = {name: value for name, value in case.items() if name not in _OF_THE_KEY and name not in FORM_KEYS}
    settings = {name: identity[name] for name in identity if name not in FABRIC_KEYS and name not in job_keys}
    try:
        return CurveKey(
            collective=canonical(str(case["collective"])),
            ranks=int(case["ranks"]),
            nodes=int(case["nodes"] or 0),
            dtype=str(case["dtype"]),
            environment=label(settings | further),
            job=label({name: identity[name] for name in identity if name in job_keys}),
            form=label({name: case[name] for name in FORM_KEYS if name in case}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"a {measurement.phase} measurement has no usable case: {error}") from None


def link_rows(measurements: Iterable[Measurement], job_keys: Collection[str] = ()) -> list[LinkRow]:
    """The rows of a fit; each sample of a measurement is a repeat.

    Raises:
        BadInput: a case that describes no collective, or measurements of several fabrics.
    """
    rows, fabrics = [], set()
    for measurement in measurements:
        fabrics.add(fabric_of(measurement))
        case = measurement.case
        named = "/".join(str(case[name]) for name in ("algorithm", "protocol") if name in case)
        row = LinkRow(
            key=key_of(measurement, job_keys),
            bytes=float(case["bytes"]),
            seconds=measurement.device_s,
            concurrent=int(case.get("concurrent", 1)),
            algorithm=named,
        )
        rows.append(row)
    if len(fabrics) > 1:
        raise BadInput(
            f"one network has one fabric, and these measurements are of {len(fabrics)}; choose with --where: "
            f"{'; '.join(sorted(fabrics)[:12])}"
        )
    return rows


def bus_factor(key: CurveKey) -> float:
    """Bus bandwidth over the bandwidth of the whole buffer, as nccl-tests counts it.

    >>> bus_factor(CurveKey("all_reduce", 4, 1))
    1.5
    """
    name = "p2p" if key.collective == "send_recv" else key.collective
    return BUS_FACTORS[name](key.ranks) if name in BUS_FACTORS else 1.0
