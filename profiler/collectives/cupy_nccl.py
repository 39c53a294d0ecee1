"""NCCL without a framework: CuPy's communicators, one process that drives every device of a node.

The second path to the same collectives. What it takes less than torch.distributed at small sizes is the framework's
own (`calibration.link_overlap`); that it can be told needs the same version of NCCL under both, which the environment
of a measurement says. Its cases are marked `api: cupy`. CuPy also runs all_reduce and broadcast out of place, which
torch cannot; it has no all_to_all of its own, so that is grouped sends and receives, as in nccl-tests.

Every device has a stream of its own. A sample enqueues its calls on all of them behind a kernel that spins, so that
one process for many devices, which enqueues them one after another, is not what is timed; then each device's events
say what it took, and the slowest counts. Results are checked before anything is timed, as in
`profiler.micro.collective`: item i of rank r is (i + r) mod 3.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from oracle.errors import BadInput, MissingDependency
from profiler.collectives.collected import stragglers
from profiler.collectives.cupy_node import Node, open_node
from profiler.collectives.environment import collective_environment
from profiler.collectives.places import RankPlace
from profiler.collectives.settings import ITEM_BYTES, CollectiveCase, CollectiveSettings, cases
from profiler.environment import import_torch
from profiler.importers.base import host_digest
from profiler.measurement import Environment, Measurement
from profiler.run import Progress, Record
from profiler.stopping import decide, flags

NCCL_DTYPES = {
    "fp32": ("float32", "NCCL_FLOAT32"),
    "fp16": ("float16", "NCCL_FLOAT16"),
    "fp64": ("float64", "NCCL_FLOAT64"),
    "int8": ("int8", "NCCL_INT8"),
    "uint8": ("uint8", "NCCL_UINT8"),
    "int32": ("int32", "NCCL_INT32"),
    "int64": ("int64", "NCCL_INT64"),
}
"""Data type -> NumPy's name and NCCL's; CuPy has no bfloat16."""

BOTH_PLACES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
"""Collectives that NCCL runs in place and out of place."""

MIN_SAMPLE_S = 1e-3
MAX_INNER = 100
_HOLD_CYCLES_PER_CALL = 200_000
"""About 100 us on today's devices: more than a call takes to be enqueued on one device."""


def cupy_cases(settings: CollectiveSettings) -> Iterator[CollectiveCase]:
    """What is measured: the plain cases of all ranks, in place and out of place where NCCL has both.

    Raises:
        BadInput: a data type that CuPy has not.
    """
    for dtype in settings.dtypes:
        if dtype not in NCCL_DTYPES:
            raise BadInput(f"CuPy has no {dtype}; it has {', '.join(NCCL_DTYPES)}")
    found: dict[CollectiveCase, None] = {}
    for case in cases(replace(settings, spacings=("back_to_back",), beside=()), "all", settings.ranks, False):
        places = (False, True) if case.collective in BOTH_PLACES else (False,)
        found |= dict.fromkeys(replace(case, in_place=place) for place in places)
    yield from found


def measure_cupy(
    settings: CollectiveSettings, record: Record, progress: Progress = lambda done, total, text: None
) -> int:
    """Measure collectives between the first `settings.ranks` CUDA devices of this machine.

    Args:
        settings: of a run; groups, spacing and kernels beside it do not apply.
        record: called with each measurement, the slowest device of each sample.
        progress: called with cases done, cases planned, and what is measured now.

    Returns:
        How many cases were measured before the budget was spent.

    Raises:
        MissingDependency: CuPy is not installed.
        NoDevice: fewer devices than ranks, no driver, or a CuPy without NCCL.
        BadInput: a data type that CuPy has not, or a wrong result.
    """
    if import_torch() is None:  # it reads the environment, and is what the times stand beside
        raise MissingDependency("torch", "measure")
    list(cupy_cases(settings))
    node = open_node(settings.ranks)
    return measure_node(node, settings, _environment(settings, node), record, progress)


def _environment(settings: CollectiveSettings, node: Node) -> Environment:
    """That of torch's ranks on the same devices, but for the version of NCCL, which is CuPy's."""
    place = RankPlace(0, node.ranks, 0, "", 0, False)
    host = host_digest({platform.node()}, settings.host_key)
    read = collective_environment(replace(settings, device="cuda"), place, [host] * node.ranks)
    return replace(read, identity={**read.identity, "nccl": node.nccl})


def measure_node(
    node: Node, settings: CollectiveSettings, environment: Environment, record: Record, progress: Progress
) -> int:
    """What `measure_cupy` does once the devices are open.

    Raises:
        BadInput: a wrong result.
    """
    planned = list(cupy_cases(settings))
    end_s = time.monotonic() + settings.budget_s
    for number, case in enumerate(planned):
        if time.monotonic() >= end_s:
            return number
        progress(number, len(planned), case.text)
        record(_measured(settings, node, case, environment))
    return len(planned)


@dataclass(frozen=True)
class Message:
    """The buffers of every rank, as CuPy arrays, and what each must receive, as NumPy arrays."""

    sent: Sequence[Any]
    received: Sequence[Any]
    expected: Sequence[np.ndarray[Any, Any]]


def pattern(rank: int, items: int) -> np.ndarray[Any, Any]:
    """The verified numbers of one rank, shape (items,)."""
    return (np.arange(items) + rank) % 3


def build(node: Node, case: CollectiveCase) -> Message:
    """Take the buffers of a case and write the verified numbers."""
    sent, received = [], []
    for rank in range(node.ranks):
        with node.cupy.cuda.Device(rank):
            one, other = _buffers(node, case, rank)
            numbers = node.cupy.asarray(pattern(rank, len(one)).astype(one.dtype))
            other.fill(2)
            one[...] = numbers
            sent.append(one)
            received.append(other)
            node.cupy.cuda.Device(rank).synchronize()
    return Message(sent, received, [_expected(case, rank, node.ranks) for rank in range(node.ranks)])


def _buffers(node: Node, case: CollectiveCase, rank: int) -> tuple[Any, Any]:
    dtype, share = NCCL_DTYPES[case.dtype][0], case.items // node.ranks
    whole = node.cupy.empty(case.items, dtype)
    part = whole[rank * share : (rank + 1) * share] if case.in_place else node.cupy.empty(share, dtype)
    if case.collective == "all_gather":
        return part, whole
    if case.collective == "reduce_scatter":
        return whole, part
    return whole, whole if case.in_place else node.cupy.empty(case.items, dtype)


def _expected(case: CollectiveCase, rank: int, ranks: int) -> np.ndarray[Any, Any]:
    share = case.items // ranks
    own = slice(rank * share, (rank + 1) * share)
    summed = np.sum([pattern(other, case.items) for other in range(ranks)], axis=0)
    if case.collective in ("all_reduce", "reduce_scatter"):
        return np.asarray(summed if case.collective == "all_reduce" else summed[own])
    if case.collective == "broadcast":
        return pattern(0, case.items)
    if case.collective == "all_gather":
        return np.concatenate([pattern(other, share) for other in range(ranks)])
    if case.collective == "all_to_all":
        return np.concatenate([pattern(other, case.items)[own] for other in range(ranks)])
    if case.pattern == "one_way" and rank != 1:
        return np.full(case.items, 2)  # who only sends receives nothing
    return pattern((rank - 1) % ranks, case.items)


def call(node: Node, case: CollectiveCase, message: Message) -> None:
    """Enqueue the collective once on every device."""
    nccl = node.cupy.cuda.nccl
    nccl.groupStart()
    for rank in range(node.ranks):
        with node.cupy.cuda.Device(rank):
            _CALLS[case.collective](_Rank(node, case, message, rank))
    nccl.groupEnd()


class _Rank:
    """One device's part of a call."""

    def __init__(self, node: Node, case: CollectiveCase, message: Message, rank: int) -> None:
        nccl = node.cupy.cuda.nccl
        self.case, self.rank, self.ranks = case, rank, node.ranks
        self.items, self.share = case.items, case.items // node.ranks
        self.communicator, self.stream = node.communicators[rank], node.streams[rank].ptr
        self.sent, self.received = message.sent[rank].data.ptr, message.received[rank].data.ptr
        self.dtype, self.sum = getattr(nccl, NCCL_DTYPES[case.dtype][1]), nccl.NCCL_SUM

    def send(self, peer: int, offset: int = 0, items: int | None = None) -> None:
        """Send some items to a peer."""
        count, at = items or self.items, self.sent + offset * ITEM_BYTES[self.case.dtype]
        self.communicator.send(at, count, self.dtype, peer, self.stream)

    def receive(self, peer: int, offset: int = 0, items: int | None = None) -> None:
        """Receive some items from a peer."""
        count, at = items or self.items, self.received + offset * ITEM_BYTES[self.case.dtype]
        self.communicator.recv(at, count, self.dtype, peer, self.stream)


def _all_reduce(own: _Rank) -> None:
    own.communicator.allReduce(own.sent, own.received, own.items, own.dtype, own.sum, own.stream)


def _all_gather(own: _Rank) -> None:
    own.communicator.allGather(own.sent, own.received, own.share, own.dtype, own.stream)


def _reduce_scatter(own: _Rank) -> None:
    own.communicator.reduceScatter(own.sent, own.received, own.share, own.dtype, own.sum, own.stream)


def _broadcast(own: _Rank) -> None:
    own.communicator.broadcast(own.sent, own.received, own.items, own.dtype, 0, own.stream)


def _all_to_all(own: _Rank) -> None:
    for peer in range(own.ranks):
        own.send(peer, peer * own.share, own.share)
        own.receive(peer, peer * own.share, own.share)


def _p2p(own: _Rank) -> None:
    if own.case.pattern != "one_way" or own.rank == 0:
        own.send((own.rank + 1) % own.ranks)
    if own.case.pattern != "one_way" or own.rank == 1:
        own.receive((own.rank - 1) % own.ranks)


_CALLS: dict[str, Callable[[_Rank], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "p2p": _p2p,
}


def verify(node: Node, case: CollectiveCase) -> None:
    """Run a case once on numbers with a known result.

    Raises:
        BadInput: a result is wrong.
    """
    message = build(node, case)
    call(node, case, message)
    node.wait()
    for rank, (got, wanted) in enumerate(zip(message.received, message.expected, strict=True)):
        wrong = int((node.cupy.asnumpy(got) != wanted).sum())
        if wrong:
            raise BadInput(f"{case.text} through CuPy: {wrong} items of rank {rank} are wrong")


def sample(node: Node, case: CollectiveCase, message: Message, inner: int) -> tuple[list[float], float]:
    """Seconds per call of every device for `inner` calls back to back, and of the host to enqueue one."""
    events = []
    for rank, stream in enumerate(node.streams):
        with node.cupy.cuda.Device(rank):
            events.append([node.cupy.cuda.Event() for _ in range(2)])
            node.hold((1,), (1,), (np.int64(_HOLD_CYCLES_PER_CALL * inner * node.ranks),), stream=stream)
            events[rank][0].record(stream)
    begun_s = time.perf_counter()
    for _ in range(inner):
        call(node, case, message)
    host_s = (time.perf_counter() - begun_s) / inner
    for rank, stream in enumerate(node.streams):
        with node.cupy.cuda.Device(rank):
            events[rank][1].record(stream)
    node.wait()
    elapsed_ms = [node.cupy.cuda.get_elapsed_time(start, end) for start, end in events]
    return [each * 1e-3 / inner for each in elapsed_ms], host_s


def _random(items: int, dtype: str) -> np.ndarray[Any, Any]:
    """Normal numbers, or small whole ones, repeated after a million."""
    draw = np.random.default_rng(0)
    some = min(items, 1 << 20)
    whole = "int" in NCCL_DTYPES[dtype][0]
    numbers = draw.integers(0, 100, some) if whole else draw.standard_normal(some)
    return np.resize(numbers.astype(NCCL_DTYPES[dtype][0]), items)


def _measured(settings: CollectiveSettings, node: Node, case: CollectiveCase, environment: Environment) -> Measurement:
    verify(node, case)
    message = build(node, case)
    source = _random(len(message.sent[0]), case.dtype)
    warm_s = min(max(sample(node, case, message, 1)[0]) for _ in range(3))
    inner = max(1, min(MAX_INNER, round(MIN_SAMPLE_S / max(warm_s, 1e-9))))
    slowest_s: list[float] = []
    of_ranks: list[list[float]] = []
    host_s: list[float] = []
    stopped = None
    while stopped is None:
        for rank, buffer in enumerate(message.sent):  # sums in place grow with every call
            with node.cupy.cuda.Device(rank):
                buffer[...] = node.cupy.asarray(source)
                node.cupy.cuda.Device(rank).synchronize()
        times_s, enqueued_s = sample(node, case, message, inner)
        of_ranks.append(times_s)
        slowest_s.append(max(times_s))
        host_s.append(enqueued_s)
        stopped = decide(slowest_s, sum(slowest_s) * inner, settings.rule)
    medians = {rank: float(np.median(times)) for rank, times in enumerate(zip(*of_ranks, strict=True))}
    form = {"pattern": case.pattern} if case.pattern else {}
    return Measurement(
        micro="collective",
        case={
            "collective": case.collective,
            "bytes": case.bytes,
            "ranks": node.ranks,
            "nodes": 1,
            "dtype": case.dtype,
            "in_place": case.in_place,
            **form,
            "api": "cupy",
        },
        phase=case.collective,
        execution="",
        device_s=tuple(slowest_s),
        host_s=tuple(host_s),
        inner=inner,
        device=node.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        environment=environment,
        run_id=settings.run_id,
        taken_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        stopped=stopped,
        flags=flags(slowest_s, settings.rule) + stragglers(medians),
    )
