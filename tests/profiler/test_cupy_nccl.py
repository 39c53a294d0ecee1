"""CuPy's path with a stand-in for CuPy that moves NumPy arrays, and its errors without CuPy or devices."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oracle.errors import BadInput, MissingDependency, NoDevice
from profiler.collectives.cupy_nccl import cupy_cases, measure_cupy, measure_node, verify
from profiler.collectives.cupy_node import Node, open_node
from profiler.collectives.settings import PLACES, CollectiveCase, CollectiveSettings
from profiler.measurement import Environment, Measurement
from profiler.stopping import StoppingRule


class Array(np.ndarray[Any, Any]):
    """A NumPy array that knows its address, as CuPy's do."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


@dataclass
class Fabric:
    """What all communicators enqueue between groupStart and groupEnd, done when the group ends."""

    ranks: int
    wrong: bool = False
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    open: bool = False
    arrays: dict[int, Any] = field(default_factory=dict)

    def start(self) -> None:
        assert not self.open
        self.open = True

    def end(self) -> None:
        self.open = False
        work = [
            (name, rank, self._view(sent, many), received, many, more)
            for name, rank, sent, received, many, more in self.calls
        ]
        self.calls.clear()
        if work and work[0][0] in ("send", "recv"):
            self._pairs(work)
        else:
            self._collective(work)

    def _view(self, pointer: int | None, many: int) -> Any:
        """A copy of the items at an address."""
        return None if pointer is None else self._at(pointer, many).copy()

    def _at(self, pointer: int, many: int) -> Any:
        for start, array in self.arrays.items():
            if start <= pointer < start + array.nbytes:
                first = (pointer - start) // array.itemsize
                return array[first : first + many]
        raise AssertionError("no buffer there")

    def _pairs(self, work: list[tuple[Any, ...]]) -> None:
        sent: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for name, rank, values, _, _, peer in work:
            if name == "send":
                sent[(rank, peer)].append(values)
        for name, rank, _, received, many, peer in work:
            if name == "recv":
                self._at(received, many)[:] = sent[(peer, rank)].pop(0)
        assert not any(sent.values())

    def _collective(self, work: list[tuple[Any, ...]]) -> None:
        assert sorted(rank for _, rank, *_ in work) == list(range(self.ranks))
        values = [values for _, _, values, *_ in sorted(work, key=lambda call: call[1])]
        for name, rank, _, received, many, _ in work:
            if name == "allReduce":
                result = np.sum(values, axis=0)
            elif name == "broadcast":
                result = values[0]
            elif name == "allGather":
                result = np.concatenate(values)
            else:
                result = np.sum(values, axis=0)[rank * many // self.ranks : (rank + 1) * many // self.ranks]
            self._at(received, len(result))[:] = result + int(self.wrong)


class Communicator:
    """One rank of a `Fabric`, with the signatures of CuPy 13."""

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self._fabric, self._rank = fabric, rank

    def _add(self, name: str, sent: int | None, received: int | None, many: int, more: object = None) -> None:
        assert self._fabric.open
        self._fabric.calls.append((name, self._rank, sent, received, many, more))

    def allReduce(self, sent: int, received: int, count: int, dtype: int, op: int, stream: int) -> None:
        self._add("allReduce", sent, received, count)

    def broadcast(self, sent: int, received: int, count: int, dtype: int, root: int, stream: int) -> None:
        assert root == 0
        self._add("broadcast", sent, received, count)

    def allGather(self, sent: int, received: int, count: int, dtype: int, stream: int) -> None:
        self._add("allGather", sent, received, count)

    def reduceScatter(self, sent: int, received: int, count: int, dtype: int, op: int, stream: int) -> None:
        self._add("reduceScatter", sent, received, count * self._fabric.ranks)

    def send(self, sent: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._add("send", sent, None, count, peer)

    def recv(self, received: int, count: int, dtype: int, peer: int, stream: int) -> None:
        self._add("recv", None, received, count, peer)


def node(ranks: int, wrong: bool = False) -> Node:
    """Devices that are NumPy arrays; every call takes a millisecond, on the last device two."""
    fabric = Fabric(ranks, wrong)

    def empty(items: int, dtype: str) -> Any:
        array = np.zeros(items, dtype).view(Array)
        fabric.arrays[array.ctypes.data] = array
        return array

    def device(rank: int) -> Any:
        entered: Any = nullcontext()
        entered.synchronize = lambda: None
        return entered

    nccl = SimpleNamespace(
        groupStart=fabric.start,
        groupEnd=fabric.end,
        get_version=lambda: 22304,
        NCCL_SUM=0,
        **{f"NCCL_{name}": index for index, name in enumerate(
            ("FLOAT32", "FLOAT16", "FLOAT64", "INT8", "UINT8", "INT32", "INT64"))},
    )  # fmt: skip
    cuda = SimpleNamespace(
        nccl=nccl,
        Device=device,
        Event=lambda: SimpleNamespace(record=lambda stream: None),
        get_elapsed_time=lambda start, end: 1.0,
        runtime=SimpleNamespace(getDeviceProperties=lambda index: {"name": b"Fake GPU"}),
    )
    cupy = SimpleNamespace(cuda=cuda, empty=empty, asarray=np.asarray, asnumpy=np.asarray)
    streams = [SimpleNamespace(ptr=rank, synchronize=lambda: None) for rank in range(ranks)]
    return Node(cupy, [Communicator(fabric, rank) for rank in range(ranks)], streams, lambda *args, **more: None)


def settings(**fields: object) -> CollectiveSettings:
    values: dict[str, object] = {
        "folder": Path(),
        "run_id": "test",
        "budget_s": 60.0,
        "ranks": 4,
        "largest_bytes": 64,
        "rule": StoppingRule(max_samples=6),
    }
    return CollectiveSettings(**{**values, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8", "int64"])
def test_every_case_asks_nccl_for_the_right_thing(ranks: int, dtype: str) -> None:
    planned = list(cupy_cases(settings(ranks=ranks, dtypes=(dtype,))))
    assert {case.collective for case in planned} == set(PLACES)
    for case in planned:
        verify(node(ranks), case)


def test_a_wrong_result_is_named_and_not_timed() -> None:
    case = CollectiveCase("all_reduce", 64, "fp32", True)
    with pytest.raises(BadInput, match=r"all_reduce, 64 bytes of fp32, in place through CuPy: 16 items of rank 0"):
        verify(node(2, wrong=True), case)


def test_all_reduce_and_broadcast_run_in_place_and_out_of_place() -> None:
    planned = list(cupy_cases(settings(collectives=("all_reduce", "broadcast", "all_to_all"), largest_bytes=32)))
    assert [(case.collective, case.in_place) for case in planned] == [
        ("all_reduce", False),
        ("all_reduce", True),
        ("broadcast", False),
        ("broadcast", True),
        ("all_to_all", False),
    ]


def test_spacing_and_kernels_are_for_torch() -> None:
    spaced = settings(spacings=("pause",), beside=("copy",), beside_bytes=32)
    assert {(case.spacing, case.beside) for case in cupy_cases(spaced)} == {("back_to_back", "")}


def test_measurements_say_that_they_are_cupys() -> None:
    found: list[Measurement] = []
    seen: list[str] = []
    asked = settings(collectives=("all_reduce", "p2p"), ranks=2, largest_bytes=32)
    count = measure_node(node(2), asked, Environment({}, {}), found.append, lambda done, total, text: seen.append(text))
    assert count == len(found) == len(seen) == 4
    assert {m.case["api"] for m in found} == {"cupy"}
    assert [m.case.get("pattern") for m in found] == [None, None, "one_way", "exchange"]
    one = found[0]
    # The stand-in says a millisecond for each sample: one call fills it.
    assert (one.device, one.inner, one.device_s[0]) == ("Fake GPU", 1, 1e-3)
    assert len(one.host_s) == len(one.device_s)


def test_the_budget_ends_a_run_between_cases() -> None:
    asked = replace(settings(), budget_s=1e-9)
    assert measure_node(node(4), asked, Environment({}, {}), lambda m: None, lambda done, total, text: None) == 0


def test_bfloat16_is_refused() -> None:
    with pytest.raises(BadInput, match="CuPy has no bf16; it has fp32"):
        list(cupy_cases(settings(dtypes=("bf16",))))


def test_without_cupy_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingDependency, match=r"CuPy is not installed; pip install 'stepgauge\[cuda12\]'"):
        measure_cupy(settings(), lambda measurement: None)


def _library(count: Callable[[], int], available: bool = True) -> Any:
    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=OSError)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, nccl=SimpleNamespace(available=available)))


def _no_driver() -> int:
    raise OSError("cudaErrorInsufficientDriver")


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (_library(_no_driver), "CuPy finds no CUDA device: cudaErrorInsufficientDriver"),
        (_library(lambda: 1), "2 ranks need a CUDA device each; CuPy finds 1"),
        (_library(lambda: 8, available=False), "this CuPy has no NCCL"),
    ],
)
def test_too_few_devices_are_said(monkeypatch: pytest.MonkeyPatch, library: Any, said: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", library)
    with pytest.raises(NoDevice, match=said):
        open_node(2)
