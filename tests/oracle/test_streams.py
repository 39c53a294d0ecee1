"""Kernels and transfers in two streams: waiting for one another, and slowing one another down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.estimate import Estimate
from oracle.links import LinkTimer
from oracle.loading import load_model
from oracle.machine import Cluster, Link
from oracle.plan import Job, Strategy
from oracle.pricing import IdealTimer, Slowdown
from oracle.project import project
from oracle.strategies.data import Data
from oracle.strategies.owt import Owt
from oracle.strategies.zero import Zero
from oracle.streams import Factors, Item, ends_of

SECONDS = st.floats(0.0, 10.0)
CLUSTER = Cluster.of_link("any", Link(1e-6, 1e9))
IDEAL = IdealTimer.of_rate(1e12)
NONE = Factors(np.array(1.0), np.array(1.0))


def finish(kernel_s: float, transfer_s: float, of_kernels: float, of_transfers: float) -> tuple[float, float]:
    factors = Factors(np.array(of_kernels), np.array(of_transfers))
    ends = ends_of([Item(np.array(kernel_s))], [Item(np.array(transfer_s))], factors)
    return float(ends[0][0]), float(ends[1][0])


def test_the_stream_that_ends_last_goes_on_at_its_own_speed() -> None:
    # The transfer needs 1 s alone, 1.5 s beside kernels. In these 1.5 s the kernels do 1.5 / 1.25 = 1.2 of their 2 s.
    assert finish(2.0, 1.0, 1.25, 1.5) == pytest.approx((1.5 + 0.8, 1.5))
    # The kernel needs 1.25 s; the transfer does 1.25 / 1.5 of its 2 s meanwhile.
    assert finish(1.0, 2.0, 1.25, 1.5) == pytest.approx((1.25, 1.25 + 2 - 1.25 / 1.5))


def test_overlap_that_slows_both_down_enough_is_worse_than_none() -> None:
    # Twice as slow both: 1 s and 1 s take 2 s together, three times as slow 3 s.
    assert finish(1.0, 1.0, 2.0, 2.0) == (2.0, 2.0)
    assert max(finish(1.0, 1.0, 3.0, 3.0)) == 3.0


def test_who_waits_is_not_slowed_down() -> None:
    # The transfer starts when the first kernel has ended, so only the second kernel meets it.
    kernels = [Item(np.array(1.0)), Item(np.array(1.0))]
    ends = ends_of(kernels, [Item(np.array(1.0), after=1)], Factors(np.array(1.5), np.array(1.0)))
    # In the transfer's second the kernel does 2/3; the rest takes 1/3 s more.
    assert [float(end) for end in ends[0]] == pytest.approx([1.0, 2.0 + 1 / 3])
    assert float(ends[1][0]) == pytest.approx(2.0)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Item], list[Item]]:
    """A step: fetches before some kernels, sends after some."""
    kernels: list[Item] = []
    transfers: list[Item] = []
    for _ in range(draw(st.integers(1, 6))):
        seconds = [np.array([draw(SECONDS), draw(SECONDS)]) for _ in range(3)]
        if draw(st.booleans()):
            transfers.append(Item(seconds[0], after=draw(st.integers(0, len(kernels)))))
        kernels.append(Item(seconds[1], after=draw(st.integers(0, len(transfers)))))
        if draw(st.booleans()):
            transfers.append(Item(seconds[2], after=len(kernels)))
    return kernels, transfers


@given(streams())
def test_streams_that_do_not_meet_are_sums_and_maxima(work: tuple[list[Item], list[Item]]) -> None:
    for apart, meeting in zip(ends_of(*work), ends_of(*work, NONE), strict=True):
        assert np.allclose(np.reshape(apart, (-1, 2)), np.reshape(meeting, (-1, 2)))


@given(streams(), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_slowing_down_costs_no_more_than_what_it_multiplies(
    work: tuple[list[Item], list[Item]], of_kernels: float, of_transfers: float
) -> None:
    last, slowed = (
        np.max([end for stream in ends for end in stream], axis=0)
        for ends in (ends_of(*work), ends_of(*work, Factors(np.array(of_kernels), np.array(of_transfers))))
    )
    assert np.all(slowed >= last - 1e-9)
    assert np.all(slowed <= last * max(of_kernels, of_transfers) + 1e-9)


def test_every_entry_is_an_answer_of_its_own() -> None:
    kernels, transfers = [Item(np.array([2.0, 1.0]))], [Item(np.array([1.0, 2.0]))]
    ends = ends_of(kernels, transfers, Factors(np.array([1.25, 1.25]), np.array(1.5)))
    assert list(ends[0][0]) == pytest.approx([finish(2, 1, 1.25, 1.5)[0], finish(1, 2, 1.25, 1.5)[0]])


class Measured(LinkTimer):
    """Links beside which kernels take 1.5 times as long, and transfers twice as long beside kernels."""

    def slowdown(self, transfers: object) -> Slowdown:
        return Slowdown(Estimate.exact(1.5), Estimate.exact(2.0))


@pytest.mark.parametrize("how", [Data(bucket_bytes=25 * 2**20), Zero(stage=3), Owt()], ids=lambda how: how.name)
def test_measured_slowdown_lengthens_every_plan_that_overlaps(how: Strategy) -> None:
    job = Job(load_model("alexnet"), 1024, 8, CLUSTER)
    alone, beside = (project(job, how, IDEAL, timer) for timer in (LinkTimer(CLUSTER), Measured(CLUSTER)))
    assert alone.step is not None
    assert beside.step is not None
    assert beside.step.middle > alone.step.middle
    # No more than if everything were slowed down all the time; kernels themselves cost what they cost alone.
    assert beside.step.middle < 2 * alone.step.middle
    assert beside.compute_total.middle == alone.compute_total.middle
    assert beside.hidden.middle < alone.hidden.middle


def test_a_plan_without_overlap_asks_for_no_slowdown() -> None:
    job = Job(load_model("alexnet"), 1024, 8, CLUSTER)
    alone, beside = (project(job, Data(), IDEAL, timer) for timer in (LinkTimer(CLUSTER), Measured(CLUSTER)))
    assert alone.to_dict() == beside.to_dict()


def test_two_buckets_by_hand() -> None:
    # Without slowdown: kernels 0.5 and 0.5 s, and the first bucket's 0.25 s run beside the second kernel. Slowed down,
    # the transfer takes 0.5 s; in it the kernel does 1/3 of a second, and 1/6 s remains: 1/6 s are lost.
    kernels, transfers = [Item(np.array(0.5)), Item(np.array(0.5))], [Item(np.array(0.25), after=1)]
    ends = ends_of(kernels, transfers, Factors(np.array(1.5), np.array(2.0)))
    assert float(ends[0][-1]) == pytest.approx(1.0 + 1 / 6)
