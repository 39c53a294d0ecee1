"""Every row of a sweep is what a projection of its own says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.autograd import OVERHEADS, Autograd
from oracle.estimate import Estimate
from oracle.execution import Execution
from oracle.layers import Elementwise, Linear, Loss, Norm
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link, Tier
from oracle.memory import MemoryKind
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job, Plan, Strategy
from oracle.predictor import Predictor
from oracle.pricing import IdealTimer, LayerCall, Prices, Slowdown, Transfer
from oracle.strategies import STRATEGIES
from oracle.strategies.choices import parse_strategy
from oracle.sweep import Sweep, sweep
from oracle.windows import Conv

TIERS = (Tier("node", Link(1e-6, 1e10), 4), Tier("all", Link(1e-5, 1e9), 64, oversubscription=2.0))
NODES = Cluster("nodes", "any", TIERS, 2.0**22, device_spread=0.05)
VARIANTS = (
    "data,buckets=2KiB",
    "data,accumulation=3,broadcast=yes,syncnorm=yes",
    "spatial,grid=2x2",
    "pipeline,segments=3,schedule=1f1b",
    "data+pipeline,accumulation=2,segments=5",
    "owt,scheme=a",
    "owt,scheme=b,update=round",
    "data+owt,scheme=a,group=2",
    "zero,stage=1",
    "zero,stage=2,unit=4KiB",
    "data+filter,buckets=1KiB",
)
HOW: dict[str, Strategy] = {**STRATEGIES, **{text: parse_strategy(text) for text in VARIANTS}}


def wave_s(call: LayerCall) -> float:
    """A launch, and work in waves of 16 samples: no straight line in the samples."""
    return 1e-5 + call.layer.work(call.phase, 16 * -(-call.samples // 16)).flop / 1e11


@dataclass(frozen=True)
class ProtocolTimer:
    """Transfers that switch protocol at 64 KiB (no straight line in the bytes), and that meet kernels."""

    cluster: Cluster

    def price(self, transfers: Sequence[Transfer]) -> Prices:
        slow = [LinkTimer(self.cluster).price([item]).middle_s[0] for item in transfers]
        return Prices.exact(
            [float(s) * (1.0 if item.bytes < 2**16 else 0.7) for s, item in zip(slow, transfers, strict=True)]
        )

    def slowdown(self, transfers: Sequence[Transfer]) -> Slowdown:
        return Slowdown(Estimate.exact(1.3), Estimate.exact(1.6))


@dataclass(frozen=True)
class ByPlan:
    """A memory rule that is asked plan by plan."""

    def held_bytes(self, plan: Plan, stages: range) -> Mapping[MemoryKind, float]:
        return Autograd().held_bytes(plan, stages)


STRAIGHT = Predictor(IdealTimer(lambda call: 1e-5 + call.layer.work(call.phase, call.samples).flop / 1e11), LinkTimer)
CROOKED = Predictor(IdealTimer(wave_s), ProtocolTimer, ByPlan())


def net() -> ModelGraph:
    build = GraphBuilder("net", (4, 16, 16))
    build.add("conv1", Conv.of((4, 16, 16), 8, 3, padding=1))
    build.add("bn", Norm("batch", (8, 16, 16)))
    build.add("relu", Elementwise("relu", (8, 16, 16), inplace=True))
    build.add("conv2", Conv.of((8, 16, 16), 8, 3, padding=1))
    build.add("fc", Linear(2048, 16))
    build.add("loss", Loss("cross_entropy", (16,)))
    return build.graph()


JOB = Job(net(), 8, 1, NODES)


def check(predictor: Predictor, job: Job, scan: Sweep) -> None:
    for row in range(len(scan)):
        asked = replace(job, devices=int(scan.devices[row]), global_batch=int(scan.global_batch[row]))
        projection = predictor.project(asked, HOW[scan.strategies[scan.strategy[row]]])
        found = [scan.step_s[row], scan.communication_share[row], scan.memory_bytes[row]]
        if projection.step is None or projection.memory is None:
            assert np.isnan(found).all()
            assert not scan.fits[row]
            continue
        step_s, share = projection.step.middle, projection.communication_total.middle / projection.step.middle
        assert found == pytest.approx([step_s, share, projection.memory.total_bytes], rel=1e-9, abs=1e-15)
        assert scan.fits[row] == projection.memory.fits


@pytest.mark.parametrize("name", HOW)
@settings(max_examples=5)
@given(
    batches=st.sets(st.integers(1, 700), min_size=1, max_size=12).map(sorted),
    devices=st.lists(st.integers(1, 24), min_size=1, max_size=2),
    optimizer=st.sampled_from(["sgd", "adam"]),
    recompute=st.sampled_from([0, 2]),
    kind=st.sampled_from(["cpu", "cuda"]),
)
def test_rows_are_projections(
    name: str, batches: list[int], devices: list[int], optimizer: str, recompute: int, kind: str
) -> None:
    job = replace(JOB, execution=Execution(optimizer=optimizer, recomputed_segments=recompute))
    predictor = replace(STRAIGHT, memory=Autograd(replace(OVERHEADS[kind], fragmentation=0.1)))
    check(predictor, job, sweep(predictor, job, {name: HOW[name]}, devices, batches))


@pytest.mark.parametrize("name", HOW)
def test_rows_are_projections_where_nothing_is_a_straight_line(name: str) -> None:
    check(CROOKED, JOB, sweep(CROOKED, JOB, {name: HOW[name]}, (1, 4, 7), (5, 16, 17, 64, 300)))


def test_there_is_a_row_for_every_combination() -> None:
    scan = sweep(STRAIGHT, JOB, STRATEGIES, (1, 2, 8), tuple(range(8, 80, 8)))
    assert len(scan) == len(STRATEGIES) * 3 * 9
    assert set(scan.devices) == {1, 2, 8}


def test_an_empty_scan_has_no_rows() -> None:
    assert len(sweep(STRAIGHT, JOB, {}, (1,), (8,))) == 0
    assert len(sweep(STRAIGHT, JOB, STRATEGIES, (), (8,))) == 0
    assert len(sweep(STRAIGHT, JOB, STRATEGIES, (1,), ())) == 0
