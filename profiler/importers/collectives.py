"""The collectives and data types as each tool names them, and how one becomes a `Measurement`.

Bytes are always the whole buffer, as in `oracle.pricing.Transfer` and in the size column of nccl-tests: for
all_gather what every device holds afterwards, for reduce_scatter what every device brings. The `case` is
{collective, bytes, ranks, nodes, dtype} plus what a tool adds (`in_place`, `pattern`, `algorithm`...); `nodes` is None
where nobody knows it. A send with a receive is `p2p`; its `pattern` is one_way, exchange (both at once between two
devices) or ring (everybody sends to the next and receives from the one before, as `sendrecv_perf` does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from profiler.measurement import Environment, Measurement

NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather_v",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "p2p",
    "p2p": "p2p",
    "hypercube": "hypercube",
}
"""A tool's name without underscores and in lower case -> ours."""

DTYPES = {
    "float": ("fp32", 4),
    "float32": ("fp32", 4),
    "fp32": ("fp32", 4),
    "half": ("fp16", 2),
    "float16": ("fp16", 2),
    "fp16": ("fp16", 2),
    "bfloat16": ("bf16", 2),
    "bf16": ("bf16", 2),
    "double": ("fp64", 8),
    "float64": ("fp64", 8),
    "fp64": ("fp64", 8),
    "f8e4m3": ("fp8_e4m3", 1),
    "fp8_e4m3": ("fp8_e4m3", 1),
    "f8e5m2": ("fp8_e5m2", 1),
    "fp8_e5m2": ("fp8_e5m2", 1),
    "int8": ("int8", 1),
    "char": ("int8", 1),
    "uint8": ("uint8", 1),
    "byte": ("uint8", 1),
    "bool": ("uint8", 1),
    "int32": ("int32", 4),
    "int": ("int32", 4),
    "uint32": ("uint32", 4),
    "int64": ("int64", 8),
    "long": ("int64", 8),
    "uint64": ("uint64", 8),
}
"""A tool's data type in lower case -> (ours, bytes of one item)."""


def collective_name(text: str) -> str | None:
    """Our name of a collective, or None.

    >>> collective_name("AllToAll"), collective_name("all_reduce"), collective_name("barrier")
    ('all_to_all', 'all_reduce', None)
    """
    return NAMES.get(text.lower().replace("_", "").replace("-", ""))


def _ring_twice(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks


def _whole(_: int) -> float:
    return 1.0


BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": _ring_twice,
    "all_gather": _ring,
    "reduce_scatter": _ring,
    "all_to_all": _ring,
    "all_to_all_v": _ring,
    "gather": _ring,
    "scatter": _ring,
    "broadcast": _whole,
    "reduce": _whole,
    "p2p": _whole,
    "hypercube": _whole,
}
"""Collective -> busbw / algbw as a function of the ranks (NVIDIA/nccl-tests, doc/PERFORMANCE.md and src/*.cu)."""

PER_RANK_COUNT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Collectives whose `count` column in nccl-tests is one rank's share: size = count * bytes of an item * ranks."""


def ranks_from_ratio(collective: str, lo: float, hi: float) -> range:
    """The numbers of ranks for which busbw / algbw lies in [lo, hi]; empty where the ratio says nothing.

    all_reduce: n = 2 / (2 - ratio); the others with a share per rank: n = 1 / (1 - ratio).

    >>> list(ranks_from_ratio("all_reduce", 1.9790, 1.9794))
    [96, 97]
    """
    top = {"all_reduce": 2.0}.get(collective, 1.0 if BUS_FACTORS[collective] is _ring else None)
    if top is None or lo <= 0 or hi >= top:
        return range(0)
    return range(max(2, math.ceil(top / (top - lo) - 1e-9)), math.floor(top / (top - hi) + 1e-9) + 1)


@dataclass(frozen=True)
class Setting:
    """What the rows of one run share.

    Args:
        collective: our name.
        ranks: how many took part.
        nodes: how many nodes they were on, or None.
        device: its name.
        environment: where it was taken.
        run_id: of the import.
        taken_at: UTC, ISO 8601, or empty where the log has no date.
        flags: what a reader has to know of every row.
    """

    collective: str
    ranks: int
    nodes: int | None
    device: str
    environment: Environment
    run_id: str
    taken_at: str = ""
    flags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def transfer_measurement(
    setting: Setting, size_bytes: int, dtype: str, seconds: float, inner: int, **extra: Any
) -> Measurement:
    """One transfer that somebody timed.

    Args:
        setting: what the rows of the run share.
        size_bytes: the whole buffer.
        dtype: our name of the data type.
        seconds: per call.
        inner: back-to-back calls of which `seconds` is the mean.
        extra: further keys of the case; `flags` adds to the setting's.
    """
    flags = (*setting.flags, *extra.pop("flags", ()))
    case = {
        "collective": setting.collective,
        "bytes": size_bytes,
        "ranks": setting.ranks,
        "nodes": setting.nodes,
        "dtype": dtype,
        **setting.extra,
        **extra,
    }
    return Measurement(
        micro="collective",
        case=case,
        phase=setting.collective,
        execution="",
        device_s=(seconds,),
        host_s=(),
        inner=inner,
        device=setting.device,
        environment=setting.environment,
        run_id=setting.run_id,
        taken_at=setting.taken_at,
        stopped="imported",
        flags=flags,
    )
