"""One message through torch.distributed: its buffers, the call that is timed, and what must come out.

The same calls run on NCCL and on Gloo. Where a backend or a version of torch lacks one, the call fails when it is
verified, and the case is reported as not available; nothing is emulated, because a substitute would be the time of
something else. Numbers that verify are small integers, exact in every data type up to 128 ranks: item i of rank r is
(i + r) mod 3.

Timed buffers hold normal random numbers. Sums in place grow by the number of ranks with every call, so each buffer is
filled again before a sample, and a sample goes round several buffers, which also keeps them from staying in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from profiler.collectives.settings import CollectiveCase

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}

REPEATS_AFTER = 3
"""Items after which the verified pattern repeats."""


@dataclass(frozen=True)
class Member:
    """A process in a group.

    Args:
        group: the process group.
        ranks: its global ranks, in order.
        place: which of them this process is.
        device: where its buffers live.
    """

    group: Any
    ranks: tuple[int, ...]
    place: int
    device: torch.device


@dataclass(frozen=True)
class Message:
    """The buffers of one rank and the call on them.

    Args:
        call: does the collective once and returns when torch does.
        sent: what is written before it.
        received: what is read after it; None for a rank that only sends.
        expected: pattern numbers -> what must have been received.
        accumulates: whether a further call would sum up what this one left.
    """

    call: Callable[[], object]
    sent: Tensor
    received: Tensor | None
    expected: Callable[[], Tensor]
    accumulates: bool = False


def pattern(place: int, items: int) -> Tensor:
    """The verified numbers of one rank, int64, shape (items,).

    >>> pattern(1, 4).tolist()
    [1, 2, 0, 1]
    """
    return (torch.arange(items) + place) % REPEATS_AFTER


def summed(ranks: int, items: int) -> Tensor:
    """The sum of the verified numbers over ranks, int64, shape (items,).

    >>> summed(2, 3).tolist()
    [1, 3, 2]
    """
    period = sum((pattern(place, REPEATS_AFTER) for place in range(ranks)), torch.zeros(REPEATS_AFTER).long())
    return period.repeat(-(-items // REPEATS_AFTER))[:items]


def build(case: CollectiveCase, member: Member) -> Message:
    """Take the buffers of one message.

    Raises:
        RuntimeError: they do not fit into memory, or this torch has no such call.
    """
    return _BUILDERS[case.collective](case, member)


def fill_pattern(message: Message, member: Member) -> None:
    """Write the verified numbers; what is to be received is set to something else first."""
    if message.received is not None:
        message.received.fill_(7)
    message.sent.copy_(pattern(member.place, len(message.sent)))


def wrong_items(message: Message) -> int:
    """How many received items are not what they must be."""
    if message.received is None:
        return 0
    got = message.received.cpu()
    wanted = message.expected().to(got.dtype)
    if not got.is_floating_point():
        return int((got != wanted).sum())
    return int((~torch.isclose(got.double(), wanted.double(), rtol=4 * torch.finfo(got.dtype).eps, atol=0)).sum())


def _new(items: int, case: CollectiveCase, member: Member) -> Tensor:
    return torch.zeros(items, dtype=TORCH_DTYPES[case.dtype], device=member.device)


def _share(whole: Tensor, member: Member) -> Tensor:
    """This rank's part of a whole buffer, a view."""
    share = len(whole) // len(member.ranks)
    return whole[member.place * share : (member.place + 1) * share]


def _all_reduce(case: CollectiveCase, member: Member) -> Message:
    whole = _new(case.items, case, member)
    return Message(
        call=lambda: dist.all_reduce(whole, group=member.group),
        sent=whole,
        received=whole,
        expected=lambda: summed(len(member.ranks), case.items),
        accumulates=True,
    )


def _all_gather(case: CollectiveCase, member: Member) -> Message:
    gather = _named("all_gather_single", "all_gather_into_tensor")
    whole = _new(case.items, case, member)
    mine = _share(whole, member) if case.in_place else _new(case.items // len(member.ranks), case, member)
    return Message(
        call=lambda: gather(whole, mine, group=member.group),
        sent=mine,
        received=whole,
        expected=lambda: torch.cat([pattern(place, len(mine)) for place in range(len(member.ranks))]),
    )


def _reduce_scatter(case: CollectiveCase, member: Member) -> Message:
    scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
    whole = _new(case.items, case, member)
    mine = _share(whole, member) if case.in_place else _new(case.items // len(member.ranks), case, member)
    return Message(
        call=lambda: scatter(mine, whole, group=member.group),
        sent=whole,
        received=mine,
        expected=lambda: _share(summed(len(member.ranks), case.items), member),
        accumulates=case.in_place,
    )


def _broadcast(case: CollectiveCase, member: Member) -> Message:
    whole = _new(case.items, case, member)
    return Message(
        call=lambda: dist.broadcast(whole, src=member.ranks[0], group=member.group),
        sent=whole,
        received=whole,
        expected=lambda: pattern(0, case.items),
    )


def _all_to_all(case: CollectiveCase, member: Member) -> Message:
    sent, received = _new(case.items, case, member), _new(case.items, case, member)
    ranks = range(len(member.ranks))
    return Message(
        call=lambda: dist.all_to_all_single(received, sent, group=member.group),
        sent=sent,
        received=received,
        expected=lambda: torch.cat([_share(pattern(place, case.items), member) for place in ranks]),
    )


def _p2p(case: CollectiveCase, member: Member) -> Message:
    count = len(member.ranks)
    after, before = member.ranks[(member.place + 1) % count], member.ranks[(member.place - 1) % count]
    sent, received = _new(case.items, case, member), _new(case.items, case, member)
    sends, receives = (member.place == 0, member.place == 1) if case.pattern == "one_way" else (True, True)

    def call() -> None:
        both = [dist.P2POp(dist.isend, sent, after, member.group)] * sends
        both += [dist.P2POp(dist.irecv, received, before, member.group)] * receives
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return Message(
        call=call,
        sent=sent,
        received=received if receives else None,
        expected=lambda: pattern((member.place - 1) % count, case.items),
    )


def _named(*names: str) -> Callable[..., object]:
    """The call under the first of its names that this torch has: it was renamed over the years."""
    for name in names:
        if hasattr(dist, name):
            found: Callable[..., object] = getattr(dist, name)
            return found
    raise NotImplementedError(f"this torch {torch.__version__} has no {' or '.join(names)}")


_BUILDERS: dict[str, Callable[[CollectiveCase, Member], Message]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "p2p": _p2p,
}


def refill(messages: Sequence[Message], source: Tensor) -> None:
    """Write random numbers again where calls have summed up.

    Args:
        messages: of one case.
        source: random numbers, at least as many as one message sends.
    """
    for message in messages:
        if message.accumulates:
            message.sent.copy_(source[: len(message.sent)])
