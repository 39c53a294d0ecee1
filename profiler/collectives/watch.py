"""Who still lives: every rank gives a sign of life each second, and watches the rank after it.

A rank that was killed or stopped falls silent, the rank before it says so in the shared store, and every process reads
that and ends. That costs each rank a few requests a second, however many ranks there are. It also works where the main
thread is stuck in a collective, because signs come from a thread of their own, over a connection of its own.

A rank that has not come yet is another matter than one that fell silent: many nodes that import torch from one network
file system take minutes, the more of them the longer. So all ranks wait for one another for `start_wait_s`, and only
a rank that has given a sign is held to signs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from oracle.errors import RankLost
from profiler.collectives.places import RankPlace

BEAT_S = 1.0
START_S, START_S_PER_RANK = 120.0, 0.5
"""How long ranks wait for one another at the start: importing torch takes seconds from a local disk, and from a network
file system the longer the more ranks read it at once."""

FAILED = "failed"
_DONE = "done"
_STORE_WAIT_S = 30.0


def start_wait_s(ranks: int) -> float:
    """Seconds for which ranks wait for one another at the start.

    >>> start_wait_s(16), start_wait_s(1024)
    (128.0, 632.0)
    """
    return START_S + START_S_PER_RANK * ranks


def connect(place: RankPlace, wait_s: float) -> Any:
    """A connection of its own to the store of all ranks, whose answers may take `wait_s` until `all_started`.

    Raises:
        RankLost: nobody answers there within `wait_s`.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore(
            place.address,
            place.port,
            is_master=place.holds_store,
            wait_for_workers=False,
            timeout=timedelta(seconds=wait_s),
        )
    except RuntimeError as error:
        where = f"{place.address}:{place.port}"
        if place.holds_store:
            why = str(error).strip().partition("\n")[0]
            raise RankLost(f"rank {place.rank} cannot open the store of all ranks at {where}: {why}") from None
        raise RankLost(
            f"nobody answers rank {place.rank} at {where} within {wait_s:.0f} s: the process that holds the store of "
            "all ranks has not started there, or MASTER_ADDR or MASTER_PORT is wrong"
        ) from None
    return PrefixStore(f"stepgauge/{place.attempt}", store)


def all_started(store: Any) -> None:
    """From now on an answer that takes long is a failure: every rank has come."""
    store.set_timeout(timedelta(seconds=_STORE_WAIT_S))


def tell(store: Any, cause: str) -> None:
    """Say to all why the run ends; the first cause stands."""
    store.compare_set(FAILED, "", cause)


def told(store: Any) -> str | None:
    """Why the run ends, if anybody said so."""
    return store.get(FAILED).decode(errors="replace") if store.check([FAILED]) else None


@dataclass
class Watch:
    """The signs of life of one rank, in a thread.

    Args:
        store: a connection that nobody else uses.
        place: of this rank.
        silence_s: without a sign for so long a rank that has started counts as lost.
        on_failure: called in the thread with the cause when the run must end.
        start_s: a rank that has given no sign at all for so long has not started.
    """

    store: Any
    place: RankPlace
    silence_s: float
    on_failure: Callable[[str], None]
    start_s: float
    last_contact_s: float = field(default_factory=time.monotonic)
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to give and to look for signs."""
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """No more signs are due: this rank has finished, and has said so."""
        self._ended.set()
        self._thread.join(timeout=_STORE_WAIT_S)

    def _run(self) -> None:
        beats, seen, since_s, begun_s = 0, b"", time.monotonic(), time.monotonic()
        try:
            while not beats or not self._ended.wait(BEAT_S):  # the first sign at once
                beats += 1
                self.store.set(_sign(self.place.rank), str(beats))
                cause = told(self.store)
                if cause is not None:
                    self.on_failure(cause)
                    return
                sign = self._sign_of_next()
                now_s = self.last_contact_s = time.monotonic()
                if sign != seen:
                    seen, since_s = sign, now_s
                elif self._lost(sign, now_s - since_s, now_s - begun_s):
                    tell(self.store, self._loss(sign))
            self.store.set(_sign(self.place.rank), _DONE)
        except RuntimeError:  # the store is gone; the main thread finds out too, and says so
            return

    @property
    def next_rank(self) -> int:
        """The rank that this one watches."""
        return (self.place.rank + 1) % self.place.ranks

    def _sign_of_next(self) -> bytes:
        key = _sign(self.next_rank)
        return bytes(self.store.get(key)) if self.store.check([key]) else b""

    def _lost(self, sign: bytes, silent_s: float, running_s: float) -> bool:
        if sign == _DONE.encode():
            return False
        return silent_s > self.silence_s if sign else running_s > self.start_s

    def _loss(self, sign: bytes) -> str:
        if not sign:
            return f"rank {self.next_rank} has not started within {self.start_s:.0f} s"
        return (
            f"rank {self.next_rank} has given no sign of life for {self.silence_s:.0f} s: it was stopped or killed, or "
            "its node is gone"
        )


def all_done(store: Any, ranks: int) -> bool:
    """Whether every rank has finished."""
    keys = [_sign(rank) for rank in range(ranks)]
    return bool(store.check(keys)) and all(store.get(key) == _DONE.encode() for key in keys)


def _sign(rank: int) -> str:
    return f"sign/{rank}"
