"""Time one message on one rank, in step with all others.

After every sample the ranks agree on the time of the slowest of them, so all decide alike when to stop; the agreement
is also the barrier before the next sample. On NCCL calls are timed by events in the stream, on Gloo by the host's
clock, since the call returns when it is done.

Back to back, as nccl-tests times them, a sample holds many calls, so that the skew of their start counts once; on CUDA
they are enqueued behind a kernel that holds the stream, as in `profiler.backends.cuda`. Spaced calls are timed one by
one: each then carries the skew with which ranks arrive at it, and what the pause or the kernels between did to caches
and clocks, as in a training step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import torch
import torch.distributed as dist

from profiler.backends.base import Sample
from profiler.backends.cuda import MAX_HOLD_S, SLEEP_CYCLES_PER_S
from profiler.collectives.clock import Mark, mark
from profiler.collectives.kernels import Kernel
from profiler.collectives.settings import CollectiveCase
from profiler.micro.collective import Member, Message, build, fill_pattern, refill, wrong_items

MIN_SAMPLE_S = 10e-3
"""Long against the skew with which processes leave a barrier: scheduling, up to a millisecond."""

MAX_INNER = 100
MAX_SPACED = 10
"""Spaced calls in a sample: each is timed by itself, so a sample needs no length."""

WARM_UP_CALLS = 3

POOL_BYTES = 1 << 26
"""Memory over which a sample rotates its buffers, at most; one buffer may be larger."""


@dataclass(frozen=True)
class Agreement:
    """How all ranks, also those that rest, come to one number.

    Args:
        group: of all ranks, on CPUs.
    """

    group: object

    def largest(self, *values: float) -> tuple[float, ...]:
        """The largest of each value over the ranks; returns when all of them have come here."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return tuple(tensor.tolist())


@dataclass(frozen=True)
class Gap:
    """What lies between two calls.

    Args:
        text: what it is, as the case of a measurement says it.
        pass_: spends it, on the current stream of a device.
    """

    text: str
    pass_: Callable[[], object]


def pause(seconds: float, device: torch.device) -> Gap:
    """A gap in which the device rests."""
    text = f"pause {seconds * 1e3:g} ms"
    if device.type != "cuda":
        return Gap(text, lambda: time.sleep(seconds))
    cycles = round(seconds * SLEEP_CYCLES_PER_S)
    return Gap(text, lambda: torch.cuda._sleep(cycles))  # type: ignore[no-untyped-call]


def computing(kernel: Kernel) -> Gap:
    """A gap in which the device computes."""
    return Gap(kernel.text, kernel.run)


def verify(case: CollectiveCase, member: Member | None, agreement: Agreement) -> str | None:
    """Run a case once on numbers with a known result.

    Args:
        case: what to run.
        member: this process in its group; None where it rests.
        agreement: of all ranks.

    Returns:
        Why the case cannot be measured; empty where another rank knows; None where the result is right.
    """
    problem, message = "", None
    try:
        message = build(case, member) if member else None
    except (RuntimeError, NotImplementedError) as error:
        problem = _first_line(error)
    if agreement.largest(bool(problem)) != (0.0,):
        return problem  # nobody enters a call that another rank cannot join
    try:
        if message and member:
            fill_pattern(message, member)
            message.call()
            wrong = wrong_items(message)
            problem = f"{wrong} of {case.items} items are wrong" if wrong else ""
    except (RuntimeError, NotImplementedError, ValueError) as error:
        problem = _first_line(error)
    return problem if agreement.largest(bool(problem)) != (0.0,) else None


def _first_line(error: Exception) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]


@dataclass(frozen=True)
class Lap:
    """Some calls between two moments, and what they cost the host (see `Sample.host_s`)."""

    start: Mark
    end: Mark
    host_s: float


class Timed:
    """A case with its buffers, warm.

    Args:
        case: what to run.
        member: this process in its group; None where it rests.
        agreement: of all ranks.
        gap: between the calls of a sample; None for back to back.
    """

    sides = ("",)
    """A sample has one time, which needs no name."""

    def __init__(
        self, case: CollectiveCase, member: Member | None, agreement: Agreement, gap: Gap | None = None
    ) -> None:
        self.member = member
        self.laps: list[Lap] = []
        self._gap = gap
        self._messages = [build(case, member)] if member else []
        sent = max((len(message.sent) for message in self._messages), default=0)
        self._source = _random(sent, self._messages)
        self._enqueue_s = 0.0
        refill(self._messages, self._source)
        calls_s = [agreement.largest(self.sample(1).device_s)[0] for _ in range(WARM_UP_CALLS)]
        most = MAX_INNER if gap is None else MAX_SPACED
        self.inner = max(1, min(most, ceil(MIN_SAMPLE_S / max(min(calls_s), 1e-9))))
        if member:
            more = min(self.inner, max(1, POOL_BYTES // case.bytes)) - 1
            self._messages += [build(case, member) for _ in range(more)]
            for message in self._messages:
                message.sent.copy_(self._source[: len(message.sent)])
        agreement.largest(self.sample(self.inner).device_s)

    def samples(self) -> tuple[Sample]:
        """One sample, for each of the `sides`."""
        return (self.sample(self.inner),)

    def sample(self, inner: int) -> Sample:
        """Seconds per call of `inner` calls, on both clocks; zero where this process rests."""
        if self.member is None:
            return Sample(0.0, 0.0)
        refill(self._messages, self._source)
        calls = [self._messages[index % len(self._messages)] for index in range(inner)]
        if self.member.device.type == "cuda":
            torch.cuda.synchronize()
            if self._gap is None:  # a gap holds the stream while the call after it is enqueued
                hold_s = min(2 * len(calls) * self._enqueue_s, MAX_HOLD_S)
                torch.cuda._sleep(max(1, round(hold_s * SLEEP_CYCLES_PER_S)))  # type: ignore[no-untyped-call]
        self.laps = [self._lap(together) for together in ([calls] if self._gap is None else [[call] for call in calls])]
        self.laps[-1].end.wait()
        self._enqueue_s = sum(lap.host_s for lap in self.laps) / inner
        return Sample(sum(lap.start.until(lap.end) for lap in self.laps) / inner, self._enqueue_s)

    def _lap(self, calls: Sequence[Message]) -> Lap:
        device = self._device
        host_clock = time.perf_counter if device.type == "cuda" else time.thread_time
        if self._gap is not None:
            self._gap.pass_()
        given_s, start = host_clock(), mark(device)
        for message in calls:
            message.call()
        end = mark(device)
        return Lap(start, end, host_clock() - given_s)

    @property
    def _device(self) -> torch.device:
        return self.member.device if self.member else torch.device("cpu")


def _random(items: int, messages: Sequence[Message]) -> torch.Tensor:
    """Random numbers of the messages' type: small integers, or normal ones."""
    if not messages:
        return torch.zeros(0)
    like = messages[0].sent
    if like.is_floating_point():
        return torch.randn(items, dtype=torch.float32, device=like.device).to(like.dtype)
    return torch.randint(0, 100, (items,), dtype=like.dtype, device=like.device)
