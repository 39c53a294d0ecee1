"""Serial and data rows of the analysis tool of ParaDL (HPDC 2021), through our engine.

What is theirs alone is input here: their layer tables, their device (one measured time per model, or a rate), their
network, and their rule for memory. Everything else is the engine that predicts for users.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from oracle.layer import Layer, Phase
from oracle.layers import Linear, Norm
from oracle.links import LinkTimer
from oracle.machine import Cluster, Link, Tier
from oracle.memory import MemoryKind
from oracle.model import ModelGraph
from oracle.paradl_net import read_net
from oracle.plan import Job, Stage
from oracle.pricing import IdealTimer
from oracle.project import project
from oracle.strategies import strategy
from oracle.windows import Conv, Pool

TABLES = {
    "alexnet_o_d": "ALEXNET_ImageNet_profall.net_sc",
    "alexnet_analytic_o_d": "ALEXNET_ImageNet.net",
    "resnet50_o_d": "RESNET50_ImageNet_profall.net_sc",
    "vgg16_o_d": "VGG_ImageNet_profall.net_sc",
}
BATCHES = {"alexnet_o_d": 512, "alexnet_analytic_o_d": 512, "resnet50_o_d": 64, "vgg16_o_d": 32}
CASES = [(run, 2**power) for run in TABLES for power in range(11)]

ABCI = Cluster(
    "abci",
    "V100",
    (
        Tier("node", Link(9e-6, 50e9), 4),
        Tier("to 68", Link(4.031e-5, 12.5e9), 68),
        Tier("to 136", Link(4.049e-5, 12.5e9), 136),
        Tier("beyond", Link(4.098e-5, 12.5e9)),
    ),
)
SAMPLES = 1_280_000  # the authors count so many in ImageNet
ANALYTIC_RATE = 7.8e12  # NODE_SPEED of ABCI.plat


@dataclass(frozen=True)
class TheirMemory:
    """Operand, result and weights of every layer but ReLU and batch norm, and all of it again for gradients."""

    def held_bytes(self, job: Job, stages: Sequence[Stage]) -> Mapping[MemoryKind, float]:
        items = weights = 0
        for stage in stages:
            for node in stage.nodes:
                if not (isinstance(node.layer, Norm) or getattr(node.layer, "op", None) == "relu"):
                    items += stage.samples * (math.prod(node.layer.input_shapes[0]) + node.layer.output_items)
                    weights += node.layer.params
        kinds = (MemoryKind.WEIGHTS, MemoryKind.GRADIENTS, MemoryKind.ACTIVATIONS, MemoryKind.TRANSIENT)
        return {kind: 4.0 * size for kind, size in zip(kinds, (weights, weights, items, items), strict=True)}


def their_work(layer: Layer) -> float:
    """The work of forward, and of backward again, in their count."""
    positions = math.prod(layer.output_shape[1:])
    if isinstance(layer, Conv):
        return 2 * layer.params * positions
    if isinstance(layer, Linear):
        return layer.params
    if isinstance(layer, Pool):
        return layer.shape[0] ** 2 * math.prod(layer.kernel) * positions
    return 0 if getattr(layer, "op", None) == "dropout" else layer.output_items


@cache
def their_model(folder: Path, run: str) -> tuple[ModelGraph, IdealTimer]:
    """A table as they see it (scales and shifts are no weights), and a device with their times."""
    text = (folder / "model" / TABLES[run]).read_text()
    table = read_net(text, run)
    plain = [
        replace(n, layer=replace(n.layer, affine=False)) if isinstance(n.layer, Norm) else n for n in table.graph.nodes
    ]
    if run == "alexnet_analytic_o_d":
        # A stray '|0' ends the lines of two layers, which their tool takes for a measured time of zero.
        lines = [line.strip() for line in text.splitlines() if line[:1].isalpha()][3:]
        stray = [node.layer for node, line in zip(plain, lines, strict=True) if line.endswith("|0")]
        assert len(stray) == 2
        kept = [node.layer for node in plain if node.layer not in stray]
        seconds = {layer: (2 * their_work(layer) + layer.params) / ANALYTIC_RATE for layer in kept}
    else:
        # One time per model: these rows do not depend on how it is spread over the layers.
        weighted = [node.layer for node in plain if node.layer.params]
        rate = sum(map(their_work, weighted)) / sum(table.seconds_per_sample)
        seconds = {layer: their_work(layer) / rate for layer in weighted}
    times = {}
    for layer, time in seconds.items():
        phases = (Phase.FORWARD, Phase.BACKWARD_WEIGHT) if layer.params else (Phase.FORWARD,)
        times.update({(layer, phase): time / len(phases) for phase in phases})
    return replace(table.graph, nodes=tuple(plain)), IdealTimer.of_table(times)


@cache
def golden(folder: Path) -> dict[tuple[str, int], dict[str, str]]:
    with (folder / "golden.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"] in TABLES]
    return {(row["run"], int(float(row["devices"]))): row for row in rows}


@pytest.mark.parametrize(("run", "devices"), CASES)
def test_their_rows_come_out_of_our_engine(shared: Path, run: str, devices: int) -> None:
    folder = shared / "data" / "paradl"
    model, timer = their_model(folder, run)
    row = golden(folder)[run, devices]
    job = Job(model, BATCHES[run] * devices, devices, ABCI, dataset_samples=SAMPLES)
    assert job.global_batch == float(row["batch"])
    answer = project(job, strategy(row["strategy"].replace("single", "serial")), timer, LinkTimer(ABCI), TheirMemory())
    steps = job.steps_per_epoch
    assert steps is not None
    assert answer.memory is not None
    # Their last step computes only the samples that are left, but exchanges as every step does.
    compute_s = SAMPLES / job.global_batch * answer.compute_total.middle
    assert compute_s == pytest.approx(float(row["compute_s_per_epoch"]), rel=1e-9)
    communication_s = steps * answer.communication_total.middle
    assert communication_s == pytest.approx(float(row["communication_s_per_epoch"]), rel=1e-9)
    assert answer.memory.total_bytes == float(row["memory_bytes"])


def test_all_their_rows_are_here(shared: Path) -> None:
    assert set(golden(shared / "data" / "paradl")) == set(CASES)
    assert len(CASES) == 44
