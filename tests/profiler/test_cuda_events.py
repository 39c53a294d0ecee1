"""Blocks of samples on a stream, against a stream that is a list: what was enqueued, in which order, on which clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch")

from torch import Tensor

from profiler.backends.cuda import spin_s
from profiler.backends.cuda_events import MAX_BLOCK, TRIES, Event, EventPool, QueuedKernel, block_size
from profiler.stopping import StoppingRule
from profiler.visit import Visit, sample_until

CALL_S = 20e-6
HOST_S = 50e-6


@dataclass
class ListedStream:
    """A stream on which a call takes CALL_S and enqueueing it HOST_S; what is held runs without gaps.

    Args:
        queue: launches that fit behind a hold; more end it early.
    """

    queue: int = 1024
    log: list[str] = field(default_factory=list)
    host_s: float = 0.0
    device_s: float = 0.0
    events: int = 0
    waits: int = 0
    holds: int = 0
    held: int | None = None
    timed_out: bool = False

    def launch(self) -> Tensor:
        self.host_s += HOST_S
        if self.held is not None:
            self.held += 1
            if self.held > self.queue:
                self.timed_out = True
        else:
            self.device_s = max(self.device_s, self.host_s)  # the device has waited for the launch
        self.device_s += CALL_S
        self.log.append("call")
        return Tensor()

    def event(self) -> Event:
        self.events += 1
        return ListedEvent(self)

    def clock(self) -> float:
        return self.host_s

    def close(self, enqueue_s: float) -> None:
        self.held, self.timed_out = 0, False
        self.holds += 1
        self.log.append("hold")

    def release(self) -> None:
        self.held = None
        self.log.append("release")

    def failed(self) -> bool:
        return self.timed_out


@dataclass
class ListedEvent:
    stream: ListedStream
    at_s: float = 0.0

    def record(self) -> None:
        self.at_s = self.stream.device_s

    def synchronize(self) -> None:
        self.stream.waits += 1

    def elapsed_time(self, end: Event) -> float:
        assert isinstance(end, ListedEvent)
        return (end.at_s - self.at_s) * 1e3


def kernel_on(stream: ListedStream) -> QueuedKernel:
    return QueuedKernel([stream.launch, stream.launch], EventPool(stream.event), stream, stream.clock)


def test_a_held_sample_has_no_gaps_and_the_hosts_time_beside_it() -> None:
    sample = kernel_on(ListedStream()).sample(8)
    # The host needs 50 us for a call of 20 us: without the hold a call would seem to take 50 us.
    assert sample.device_s == pytest.approx(CALL_S)
    assert sample.host_s == pytest.approx(HOST_S)


def test_the_device_is_waited_for_once_a_block_and_events_are_used_again() -> None:
    stream = ListedStream()
    kernel = kernel_on(stream)
    samples = [kernel.sample(1) for _ in range(64)]
    assert [sample.device_s for sample in samples] == pytest.approx([CALL_S] * 64)
    # Blocks of 1, 1, 2, 4, 8, 16 and 32 samples, and one call before them without a hold.
    assert stream.waits == stream.holds + 1 == 8
    assert stream.events == 2 * MAX_BLOCK


def test_the_first_call_is_not_held_since_it_loads_its_kernels() -> None:
    stream = ListedStream()
    kernel_on(stream).sample(2)
    assert stream.log == ["call", "call", "hold", "call", "call", "release"]


def test_a_hold_that_ended_early_is_taken_again_with_half_the_calls() -> None:
    stream = ListedStream(queue=10)
    kernel = kernel_on(stream)
    samples = [kernel.sample(4) for _ in range(40)]
    assert [sample.device_s for sample in samples] == pytest.approx([CALL_S] * 40)
    # Blocks of 1, 1, 2 samples are fine; 4 samples are 16 calls and fail; 2 samples are 8 calls from then on.
    assert stream.log.count("call") == 4 * (1 + 1 + 1 + 2 + 4 + 36)


def test_a_sample_that_no_queue_holds_is_taken_after_some_tries() -> None:
    stream = ListedStream(queue=10)
    kernel_on(stream).sample(20)
    assert stream.holds == TRIES


def test_another_number_of_calls_starts_new_blocks() -> None:
    kernel = kernel_on(ListedStream())
    for inner in (1, 1, 1, 4, 2, 4):
        assert kernel.sample(inner).device_s == pytest.approx(CALL_S)


def test_a_visit_samples_through_blocks_as_through_single_samples() -> None:
    stream = ListedStream()
    visit = sample_until(kernel_on(stream), StoppingRule())
    assert isinstance(visit, Visit)
    assert visit.inner in (10, 11)  # 200 us of calls of 20 us
    assert visit.stopped == "converged"
    assert stream.waits < len(visit.samples) + 12


def test_blocks_are_bounded_by_what_went_before_by_calls_and_by_time() -> None:
    assert block_size(0, 1, 1e-5) == 1
    assert block_size(100, 1, 1e-5) == MAX_BLOCK
    assert block_size(100, 100, 1e-6) == 2  # 256 calls
    assert block_size(100, 1, 10e-3) == 5  # 50 ms
    assert block_size(100, 1000, 1.0) == 1


def test_a_spin_of_a_fixed_time_is_twice_the_enqueueing_within_bounds() -> None:
    assert spin_s(0.0) == pytest.approx(200e-6)
    assert spin_s(3e-3) == pytest.approx(6e-3)
    assert spin_s(5.0) == pytest.approx(50e-3)
