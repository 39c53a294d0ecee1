"""How long ranks wait for one another at the start, and what they are told; real stores, no ranks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from oracle.errors import RankLost
from profiler.collectives.joining import name_hosts
from profiler.collectives.places import RankPlace
from profiler.collectives.watch import Watch, connect, start_wait_s, told

pytest.importorskip("torch")
PATIENCE_S = 60.0


@pytest.fixture
def places() -> Iterator[list[RankPlace]]:
    """Two ranks and their store."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE_S))
    yield [RankPlace(rank, 2, rank, "127.0.0.1", server.port, False) for rank in range(2)]
    del server


def _watch(place: RankPlace, start_s: float, said: list[str], ended: threading.Event) -> Watch:
    def fail(cause: str) -> None:
        said.append(cause)
        ended.set()

    # Silence is no cause here: a rank that has not come gives no sign at all.
    return Watch(connect(place, PATIENCE_S), place, 0.5, fail, start_s)


def test_the_wait_grows_with_the_ranks_and_is_minutes_for_few() -> None:
    # 120 s + 0.5 s for each rank.
    assert start_wait_s(2) == 121.0
    assert start_wait_s(2000) == 1120.0


def test_a_rank_that_does_not_come_is_named(places: list[RankPlace]) -> None:
    said: list[str] = []
    ended = threading.Event()
    watch = _watch(places[0], 1.5, said, ended)
    watch.start()
    assert ended.wait(PATIENCE_S)
    watch.end()
    assert said == ["rank 1 has not started within 2 s"]


def test_silence_is_no_failure_before_the_first_sign(places: list[RankPlace]) -> None:
    said: list[str] = []
    first = _watch(places[0], PATIENCE_S, said, threading.Event())
    first.start()
    # Three times the silence that ends a run that has started: rank 1 gives its first sign only then.
    assert not threading.Event().wait(1.5)
    second = _watch(places[1], PATIENCE_S, said, threading.Event())
    second.start()
    second.end()
    first.end()
    assert (said, told(first.store)) == ([], None)


def test_every_rank_waits_until_all_have_come(places: list[RankPlace]) -> None:
    known: list[int] = []
    store = connect(places[0], PATIENCE_S)
    thread = threading.Thread(
        target=name_hosts, args=(places[0], store, b"key", lambda names: known.append(len(names)))
    )
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    name_hosts(places[1], connect(places[1], PATIENCE_S), b"key", lambda names: known.append(-1))
    thread.join(PATIENCE_S)
    # Both are on this machine, and rank 0 alone remembers its name.
    assert known == [1]


def test_nobody_at_the_address_is_said() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = RankPlace(3, 4, 3, "127.0.0.1", unused.getsockname()[1], False)
        with pytest.raises(RankLost, match=r"nobody answers rank 3 at 127\.0\.0\.1:\d+ within 1 s: .*MASTER_ADDR"):
            connect(place, 1.0)


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = RankPlace(0, 4, 0, "127.0.0.1", taken.getsockname()[1], True)
        with pytest.raises(RankLost, match=r"rank 0 cannot open the store of all ranks at 127\.0\.0\.1:"):
            connect(place, 1.0)
