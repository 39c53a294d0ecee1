"""Chrome traces of torch.profiler (Kineto): NCCL kernels become transfers, all kernels of the device are summed up.

An NCCL kernel carries the collective, the items in and out, the group's size and the data type, from which the whole
buffer follows (the larger of in and out; for all_gather it is what comes out). Its duration on one rank contains the
wait for the ranks that came late, so every transfer is flagged `includes-waiting`; who has the traces of all ranks
takes the least per call. Calls of one shape are one measurement whose samples are in the trace's order.

Other kernels have no shapes, so they are reported as facts: name, calls, total seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from profiler.importers.base import Fact, Importer, Item, Log, Verdict
from profiler.importers.collectives import DTYPES, Setting, collective_name, transfer_measurement
from profiler.importers.json_stream import CutOff, members
from profiler.importers.source import Source
from profiler.measurement import Environment

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_ALIASES = {
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "all_to_allv": "all_to_all_v",
    "send": "p2p",
    "recv": "p2p",
}
KERNEL_NAMES = 10_000
LONGEST_US = 3.6e9

_Key = tuple[str, int, int, str]


@dataclass
class _Trace:
    """What the events of a trace add up to."""

    transfers: dict[_Key, list[float]] = field(default_factory=dict)
    kernels: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)


def _read(source: Source, log: Log) -> Iterator[Item]:
    trace = _Trace()
    index = 0
    try:
        for name, value in members(source, ("traceEvents",)):
            if name == "traceEvents":
                index += 1
                _event(index, value, trace, log)
            elif name in ("deviceProperties", "distributedInfo"):
                trace.known[name] = value
    except CutOff as error:
        log.warn(str(error))
        log.judge(Verdict.INCOMPLETE)
    yield from _transfers(trace, log)
    for (category, name), (calls, total_s) in sorted(trace.kernels.items()):
        yield Fact("kernel", name, {"category": category, "calls": int(calls), "total_s": total_s})


def _event(index: int, event: object, trace: _Trace, log: Log) -> None:
    if not isinstance(event, dict) or event.get("ph") != "X" or event.get("cat") not in _ON_DEVICE:
        return
    name, duration = str(event.get("name"))[:200], event.get("dur")
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 < duration < LONGEST_US:
        log.drop(index, f"event {name}", f"a duration of {str(duration)[:40]} us")
        return
    args = event.get("args")
    arguments: Mapping[str, Any] = args if isinstance(args, dict) else {}
    if "nccl" in name.lower():
        why = _transfer(arguments, duration, trace)
        if why:
            log.drop(index, f"event {name}", why)
            return
    key = (str(event["cat"]), name)
    if key not in trace.kernels and len(trace.kernels) >= KERNEL_NAMES:
        log.drop(index, f"event {name}", f"more than {KERNEL_NAMES} names of kernels")
        return
    log.take()
    total = trace.kernels.setdefault(key, [0, 0.0])
    total[0] += 1
    total[1] += duration * 1e-6


def _transfer(args: Mapping[str, Any], duration_us: float, trace: _Trace) -> str | None:
    """Add an NCCL kernel; why not, or None."""
    said = str(args.get("Collective name", ""))
    collective = _ALIASES.get(said.lower()) or collective_name(said)
    dtype = DTYPES.get(str(args.get("dtype", "")).lower())
    items_in, items_out, group = (args.get(key) for key in ("In msg nelems", "Out msg nelems", "Group size"))
    if collective is None or dtype is None:
        return "an NCCL kernel without collective or data type (profiler of torch before 2.3?)"
    if not isinstance(items_in, int) or not isinstance(items_out, int) or not isinstance(group, int):
        return "an NCCL kernel without sizes or group"
    if why := _implausible(collective, items_in, items_out, group):
        return why
    ranks = 2 if collective == "p2p" else group
    key = (collective, max(items_in, items_out) * dtype[1], ranks, dtype[0])
    trace.transfers.setdefault(key, []).append(duration_us * 1e-6)
    return None


def _implausible(collective: str, items_in: int, items_out: int, group: int) -> str | None:
    """Why sizes and group do not describe a transfer, or None."""
    if max(items_in, items_out) >= 1 << 60 or group >= 1 << 24:
        return "sizes or a group beyond any machine"
    if group < 2:
        return "one rank: a copy inside a device, no transfer"
    if max(items_in, items_out) <= 0:
        return "size 0: nothing was sent"
    if collective == "all_gather" and items_out != items_in * group:
        return "out is not in x group: not what all_gather does"
    if collective == "reduce_scatter" and items_in != items_out * group:
        return "in is not out x group: not what reduce_scatter does"
    return None


def _transfers(trace: _Trace, log: Log) -> Iterator[Item]:
    info = trace.known.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    devices = trace.known.get("deviceProperties")
    names = (
        {str(entry.get("name"))[:80] for entry in devices if isinstance(entry, dict)}
        if isinstance(devices, list)
        else set()
    )
    identity = {"tool": "torch.profiler"}
    if version := info.get("nccl_version"):
        identity["library"] = f"NCCL version {str(version)[:40]}"
    state = {name: str(info[name])[:20] for name in ("rank", "world_size") if name in info}
    device = " + ".join(sorted(names)) or log.assumptions.device or "unknown"
    if len(names) > 1:
        log.warn(f"mixed devices: {device}")
    setting = Setting(
        "", 0, log.assumptions.nodes, device, Environment(identity, state), log.run_id, flags=("includes-waiting",)
    )
    for (collective, size, ranks, dtype), samples in trace.transfers.items():
        log.ranks.add(ranks)
        one = transfer_measurement(
            replace(setting, collective=collective, ranks=ranks), size, dtype, math.fsum(samples) / len(samples), 1
        )
        yield replace(one, device_s=tuple(samples))
    if trace.transfers:
        log.warn("times of NCCL kernels on one rank contain the wait for other ranks")


def _recognises(head: str) -> bool:
    start = head.lstrip()
    return start.startswith("{") and (
        '"traceEvents"' in head or '"deviceProperties"' in head or '"schemaVersion"' in head
    )


IMPORTER = Importer("torch_trace", _recognises, _read)
