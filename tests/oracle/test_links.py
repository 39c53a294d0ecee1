"""Collectives and the ideal prices of transfers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.collectives import COLLECTIVES
from oracle.errors import OutOfRange, UnknownName
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link, Tier
from oracle.pricing import Method, Transfer

ONE = LinkTimer(Cluster.of_link("any", Link(1e-6, 1e9)))


def seconds(transfer: Transfer, timer: LinkTimer = ONE) -> float:
    return float(timer.price([transfer]).middle_s[0])


@pytest.mark.parametrize(
    ("name", "expected_s"),
    [
        ("all_reduce", 6 + 6e-6),  # 2 * 3/4 * 4 s, 2 * 3 rounds
        ("all_gather", 3 + 3e-6),  # the segments of the three others: 3/4 * 4 s, 3 rounds
        ("reduce_scatter", 3 + 3e-6),
        ("all_to_all", 3 + 3e-6),
        ("broadcast", 4 + 3e-6),  # the whole buffer over every link, filled in 3 rounds
        ("p2p", 4 + 1e-6),
    ],
)
def test_four_devices_and_four_gigabytes_by_hand(name: str, expected_s: float) -> None:
    assert seconds(Transfer(name, 4e9, 4)) == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_group_of_one_exchanges_nothing(name: str) -> None:
    assert COLLECTIVES[name].rounds(1) == COLLECTIVES[name].wire_share(1) == 0
    assert seconds(Transfer(name, 1e9, 1)) == 0


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    parts = seconds(Transfer("reduce_scatter", 7e8, 7)) + seconds(Transfer("all_gather", 7e8, 7))
    assert seconds(Transfer("all_reduce", 7e8, 7)) == pytest.approx(parts, rel=1e-12)


def test_concurrent_rings_share_the_network_cards_and_an_oversubscribed_tier_divides_bandwidth() -> None:
    timer = LinkTimer(Cluster("c", "d", (Tier("t", Link(0.0, 1e9), oversubscription=3, nics_per_node=2),)))
    alone = Transfer("p2p", 1e9, 2)
    assert seconds(alone, timer) == pytest.approx(3.0)
    assert seconds(Transfer("p2p", 1e9, 2, concurrent=2), timer) == pytest.approx(3.0)  # a card for each
    assert seconds(Transfer("p2p", 1e9, 2, concurrent=8), timer) == pytest.approx(12.0)  # four on each card


def test_messages_follow_one_another() -> None:
    assert seconds(Transfer("p2p", 1e9, 2, messages=5)) == pytest.approx(5 * seconds(Transfer("p2p", 1e9, 2)))


@given(
    st.sampled_from(list(COLLECTIVES)),
    st.integers(1, 5000),
    st.floats(0, 1e12),
    st.floats(1, 10),
    st.floats(0, 1e-3),
    st.floats(1, 1e12),
)
def test_a_better_link_or_fewer_bytes_never_slow_a_transfer(
    name: str, group: int, size: float, better: float, latency_s: float, bandwidth: float
) -> None:
    transfer = Transfer(name, size, group)
    slow = LinkTimer(Cluster.of_link("d", Link(latency_s, bandwidth)))
    fast = LinkTimer(Cluster.of_link("d", Link(latency_s / better, bandwidth * better)))
    assert seconds(transfer, fast) <= seconds(transfer, slow)
    assert seconds(Transfer(name, size / better, group), slow) <= seconds(transfer, slow)


def test_what_it_says_is_assumed_and_without_spread() -> None:
    prices = ONE.price([Transfer("p2p", 1e9, 2), Transfer("all_reduce", 1e9, 2)])
    assert prices.methods == (Method.ASSUMED, Method.ASSUMED)
    assert (prices.draws_s == prices.middle_s[:, None]).all()
    assert len(ONE.price([]).middle_s) == 0


def test_unknown_collectives_and_tiers_are_said() -> None:
    with pytest.raises(UnknownName, match="did you mean 'all_reduce'"):
        seconds(Transfer("allreduce", 1.0, 2))
    with pytest.raises(OutOfRange, match=r"has 1 tier\(s\) of links, no tier 1"):
        seconds(Transfer("p2p", 1.0, 2, tier=1))
