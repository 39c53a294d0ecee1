"""Time one message on one rank, in step with all others.

After every sample the ranks agree on the time of the slowest of them, so all decide alike when to stop; the agreement
is also the barrier before the next sample. A sample holds calls back to back, as nccl-tests times them, so that the
skew of their start counts once in many calls. On NCCL it is timed by events around a queued region, as in
`profiler.backends.cuda`; on Gloo by the host's clock, since the call returns when it is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch
import torch.distributed as dist

from profiler.backends.base import Sample
from profiler.backends.cuda import MAX_HOLD_S, SLEEP_CYCLES_PER_S
from profiler.collectives.settings import CollectiveCase
from profiler.micro.collective import Member, Message, build, fill_pattern, refill, wrong_items

MIN_SAMPLE_S = 10e-3
"""Long against the skew with which processes leave a barrier: scheduling, up to a millisecond."""

MAX_INNER = 100
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


class Timed:
    """A case with its buffers, warm.

    Args:
        case: what to run.
        member: this process in its group; None where it rests.
        agreement: of all ranks.
    """

    def __init__(self, case: CollectiveCase, member: Member | None, agreement: Agreement) -> None:
        self.member = member
        self._messages = [build(case, member)] if member else []
        sent = max((len(message.sent) for message in self._messages), default=0)
        self._source = _random(sent, self._messages)
        self._enqueue_s = 0.0
        refill(self._messages, self._source)
        calls_s = [agreement.largest(self.sample(1).device_s)[0] for _ in range(WARM_UP_CALLS)]
        self.inner = max(1, min(MAX_INNER, ceil(MIN_SAMPLE_S / max(min(calls_s), 1e-9))))
        if member:
            more = min(self.inner, max(1, POOL_BYTES // case.bytes)) - 1
            self._messages += [build(case, member) for _ in range(more)]
            for message in self._messages:
                message.sent.copy_(self._source[: len(message.sent)])
        agreement.largest(self.sample(self.inner).device_s)

    def sample(self, inner: int) -> Sample:
        """Seconds per call of `inner` calls back to back, on both clocks; zero where this process rests."""
        if self.member is None:
            return Sample(0.0, 0.0)
        refill(self._messages, self._source)
        calls = [self._messages[index % len(self._messages)] for index in range(inner)]
        if self.member.device.type == "cuda":
            return self._on_cuda(calls)
        given_s, begun_s = time.thread_time(), time.perf_counter()
        for message in calls:
            message.call()
        return Sample((time.perf_counter() - begun_s) / inner, (time.thread_time() - given_s) / inner)

    def _on_cuda(self, calls: Sequence[Message]) -> Sample:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        hold_s = min(2 * len(calls) * self._enqueue_s, MAX_HOLD_S)
        torch.cuda._sleep(max(1, round(hold_s * SLEEP_CYCLES_PER_S)))  # type: ignore[no-untyped-call]
        start.record()
        begun_s = time.perf_counter()
        for message in calls:
            message.call()
        host_s = (time.perf_counter() - begun_s) / len(calls)
        end.record()
        end.synchronize()
        self._enqueue_s = host_s
        return Sample(start.elapsed_time(end) * 1e-3 / len(calls), host_s)


def _random(items: int, messages: Sequence[Message]) -> torch.Tensor:
    """Random numbers of the messages' type: small integers, or normal ones."""
    if not messages:
        return torch.zeros(0)
    like = messages[0].sent
    if like.is_floating_point():
        return torch.randn(items, dtype=torch.float32, device=like.device).to(like.dtype)
    return torch.randint(0, 100, (items,), dtype=like.dtype, device=like.device)
