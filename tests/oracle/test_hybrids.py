"""Hybrids: data parallelism over groups of devices under another strategy."""

from __future__ import annotations

import pytest

from oracle.links import LinkTimer
from oracle.loading import load_model
from oracle.machine import Cluster, Link
from oracle.plan import Job, Microbatched, StepPart, Strategy
from oracle.pricing import IdealTimer
from oracle.project import project
from oracle.projection import Projection
from oracle.strategies import strategy
from oracle.strategies.data import Data
from oracle.strategies.filter import Filter
from oracle.strategies.hybrid import Hybrid

CLUSTER = Cluster.of_link("any", Link(1e-6, 1e9))
VGG = load_model("vgg16")


def run(how: Strategy, batch: int, devices: int) -> Projection:
    return project(Job(VGG, batch, devices, CLUSTER), how, IdealTimer.of_rate(1e12), LinkTimer(CLUSTER))


def seconds(projection: Projection) -> float:
    assert projection.step is not None
    return projection.step.middle


INNER = ["spatial", "pipeline", "filter", "channel", "owt", "zero"]


@pytest.mark.parametrize("inner", INNER)
def test_groups_of_one_device_are_plain_data_parallelism(inner: str) -> None:
    hybrid, plain = run(Hybrid(Data(), strategy(inner), 1), 64, 4), run(Data(), 64, 4)
    assert seconds(hybrid) == seconds(plain)
    assert hybrid.memory == plain.memory


@pytest.mark.parametrize("inner", INNER)
def test_one_group_is_the_plain_strategy(inner: str) -> None:
    hybrid, plain = run(Hybrid(Data(), strategy(inner), 4), 64, 4), run(strategy(inner), 64, 4)
    assert seconds(hybrid) == seconds(plain)
    assert hybrid.memory == plain.memory


@pytest.mark.parametrize("inner", INNER)
def test_data_parallelism_reduces_what_a_group_leaves_it(inner: str) -> None:
    # Two groups of 4: each device exchanges about a quarter of all weights with the other group (a stage's in a
    # pipeline; channel parallelism keeps biases and the first layer on every device).
    plan = Hybrid(Data(), strategy(inner), 4).plan(Job(VGG, 64, 8, CLUSTER))
    sizes = [e.transfer.bytes for s in plan.stages for e in s.exchanges
             if e.part is StepPart.GRADIENT_EXCHANGE and e.transfer.group == 2]  # fmt: skip
    shares = len(plan.stages) if isinstance(plan.schedule, Microbatched) else 1
    assert sum(sizes) / 4 / VGG.params == pytest.approx(0.25 if shares == 1 else 1.0, rel=0.002)


def test_buckets_work_in_hybrids() -> None:
    plain, cut = (Hybrid(Data(bucket_bytes=size), Filter(), 4) for size in (None, 2.0**20))
    assert seconds(run(cut, 64, 16)) < seconds(run(plain, 64, 16))
