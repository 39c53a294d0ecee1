"""Rows of a sweep are projections: at the knots exactly, between them nearly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracle.layers import Elementwise, Linear, Loss, Norm
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link, Tier
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job
from oracle.predictor import Predictor
from oracle.pricing import IdealTimer
from oracle.strategies import STRATEGIES
from oracle.sweep import Sweep, sweep
from oracle.windows import Conv

NODES = Cluster("nodes", "any", (Tier("node", Link(1e-6, 1e10), 4), Tier("all", Link(1e-5, 1e9), 64)), 2.0**28)
# A launch, and work: what a fitted device does.
PREDICTOR = Predictor(IdealTimer(lambda call: 1e-5 + call.layer.work(call.phase, call.samples).flop / 1e11), LinkTimer)
DEVICES, BATCHES = (1, 2, 8, 12), tuple(range(8, 520, 8))


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


@pytest.fixture(scope="module")
def scan() -> Sweep:
    return sweep(PREDICTOR, JOB, STRATEGIES, DEVICES, BATCHES)


def test_there_is_a_row_for_every_combination(scan: Sweep) -> None:
    assert len(scan) == len(STRATEGIES) * len(DEVICES) * len(BATCHES)
    assert set(scan.devices) == set(DEVICES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_are_projections(scan: Sweep, name: str) -> None:
    own = scan.strategy == scan.strategies.index(name)
    for devices in DEVICES:
        for batch in (8, 16, 104, 256, 512):
            (row,) = np.flatnonzero(own & (scan.devices == devices) & (scan.global_batch == batch))
            projection = PREDICTOR.project(replace(JOB, devices=devices, global_batch=batch), STRATEGIES[name])
            if projection.step is None or projection.memory is None:
                assert np.isnan(scan.step_s[row])
                assert not scan.fits[row]
                continue
            rounded = "pipeline" in name or (devices == 12 and "+" in name)  # segments and groups that do not divide
            close = 0.5 if rounded else 0.05
            assert scan.step_s[row] == pytest.approx(projection.step.middle, rel=close)
            assert scan.memory_bytes[row] == pytest.approx(projection.memory.total_bytes, rel=close)


def test_a_row_at_a_knot_is_the_projection(scan: Sweep) -> None:
    own = (scan.strategy == scan.strategies.index("data")) & (scan.devices == 8) & (scan.global_batch == BATCHES[-1])
    (row,) = np.flatnonzero(own)
    projection = PREDICTOR.project(replace(JOB, devices=8, global_batch=BATCHES[-1]), STRATEGIES["data"])
    assert projection.step is not None
    assert scan.step_s[row] == pytest.approx(projection.step.middle, rel=1e-12)
    share = projection.communication_total.middle / projection.step.middle
    assert scan.communication_share[row] == pytest.approx(share, rel=1e-12)


def test_an_empty_scan_has_no_rows() -> None:
    assert len(sweep(PREDICTOR, JOB, {}, DEVICES, BATCHES)) == 0
