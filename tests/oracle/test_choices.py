"""Strategies with their choices as text, and back."""

from __future__ import annotations

import pytest

from oracle.errors import BadInput, UnknownName
from oracle.machine import Cluster, Link
from oracle.model import GraphBuilder
from oracle.plan import Job
from oracle.search import variants
from oracle.strategies import STRATEGIES
from oracle.strategies.choices import parse_strategy, write_strategy
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid
from oracle.windows import Conv


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_variant_is_read_as_it_is_written(name: str) -> None:
    build = GraphBuilder("net", (4, 16, 16))
    build.add("conv", Conv.of((4, 16, 16), 8, 3, padding=1))
    job = Job(build.graph(), 64, 8, Cluster.of_link("any", Link(1e-6, 1e9)))
    for how in (STRATEGIES[name], *variants(job, STRATEGIES[name])):
        assert parse_strategy(write_strategy(how)) == how


def test_a_choice_of_a_hybrid_goes_to_the_part_that_has_it() -> None:
    expected = Hybrid(Data(bucket_bytes=2.0**20), Filter(split=("a", "b")), 4)
    assert parse_strategy("data+filter,buckets=1MiB,split=a/b,group=4") == expected


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("dta", UnknownName, "did you mean 'data'?"),
        ("data,bucket=1MiB", UnknownName, "did you mean 'buckets'?"),
        ("data,buckets", BadInput, "needs a value"),
        ("data,buckets=many", BadInput, "buckets of data: 'many' is not a size"),
        ("data,buckets=0B", BadInput, "more than zero bytes"),
        ("pipeline,segments=-1", BadInput, "'-1' is not a whole number"),
        ("pipeline,schedule=2f2b", BadInput, "known: gpipe, 1f1b"),
        ("pipeline,segments=0", BadInput, "at least one segment"),
        ("pipeline,segments=8,segments=4", BadInput, "'segments' of pipeline is made twice"),
        ("data,accumulation=9999999999", BadInput, "9999999999 is more than 999,999,999"),
        ("spatial,grid=0x2", BadInput, "not 0x2"),
        ("DATA+Filter", UnknownName, "did you mean 'data.filter'?"),
        ("owt,scheme=d", UnknownName, "unknown scheme of owt 'd'"),
        ("spatial,grid=2x", BadInput, "'' is not a whole number"),
        ("zero,stage=4", BadInput, "1, 2 and 3"),
        ("data,syncnorm=maybe", BadInput, "neither yes nor no"),
        ("", UnknownName, "unknown strategy ''"),
    ],
)
def test_what_cannot_be_is_refused(text: str, error: type[BadInput], says: str) -> None:
    with pytest.raises(error, match=says.replace("?", r"\?")):
        parse_strategy(text)
