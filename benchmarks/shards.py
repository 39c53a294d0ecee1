"""How well are shards of convolutions priced that nobody measured?

    python benchmarks/shards.py [--model resnet50] [--batch 8] [--budget 180]

Measured are the kernels of whole layers and of the generic grid, as `stepgauge measure --for MODEL:BATCH` does, and,
once before them and once after, every convolution of the model with a half and a quarter of its filters, of its input
channels and of its height (with the halo of that split), in forward, backward-data and backward-weight. A shard that is
another layer of the model as well, or of the grid, is left out: its price is its own measurement. The noise floor is
how far the two visits of a shard lie apart in the median, over the square root of two.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from calibration.calibrate import fit
from calibration.step_factor import of_kernels_alone
from calibration.timers import CalibratedTimer
from db.store import Store
from oracle.errors import OutOfRange
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.loading import load_model
from oracle.pricing import LayerCall, Method
from oracle.sharding import shard
from oracle.windows import Conv
from profiler.anchors import choose_anchors
from profiler.backends.base import open_backend
from profiler.case import Case
from profiler.measurement import Measurement
from profiler.run import Planned, RunSettings, measure
from profiler.stopping import StoppingRule
from service.measuring import measure_device
from service.measuring_requests import MeasureRequest, Questions

PHASES = (Phase.FORWARD, Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT)
SPLITS = ("filters", "channels", "height")
WAYS = (2, 4)

Split = tuple[str, int]


def shards_of(layers: Sequence[Conv]) -> Iterator[tuple[Split, Layer]]:
    """Every way in which a layer can be split, once."""
    for what in SPLITS:
        for ways in WAYS:
            for layer in layers:
                try:
                    yield (what, ways), _shard(layer, what, ways)
                except OutOfRange:
                    continue


def _shard(layer: Layer, what: str, ways: int) -> Layer:
    if what == "filters":
        return shard(layer, filters=ways)
    return shard(layer, channels=ways) if what == "channels" else shard(layer, spatial=(ways,))


def visit(calls: Sequence[LayerCall], run_id: str, budget_s: float) -> dict[LayerCall, Measurement]:
    """Measure every call once."""
    backend, found = open_backend("cpu"), dict[str, Measurement]()
    cases = [Case(call, Execution()) for call in calls]
    settings = RunSettings(
        run_id=run_id,
        budget_s=budget_s,
        rule=StoppingRule(target=0.03, max_s=0.1),
        anchors=choose_anchors(backend, Execution()),
        max_rounds=1,
    )

    def record(measurement: Measurement) -> None:
        found[measurement.case_key] = measurement

    measure([Planned(case) for case in cases], backend, record, settings)
    return {case.call: found[case.key] for case in cases if case.key in found}


def print_table(rows: dict[tuple[Split, Phase], list[tuple[float, float]]]) -> None:
    """Median error and floor of each split and phase, and of all."""
    print(f"{'split':16s} {'phase':16s} {'shards':>6s} {'median error':>12s} {'floor':>7s} {'bias':>7s}")
    for ((what, ways), phase), pairs in rows.items():
        errors, floors = zip(*pairs, strict=True)
        error, floor, bias = median(map(abs, errors)), median(floors), median(errors)
        print(f"{f'1/{ways} of {what}':16s} {phase:16s} {len(pairs):6d} {error:12.1%} {floor:7.1%} {bias:+7.1%}")
    everything = [pair for pairs in rows.values() for pair in pairs]
    error, floor = median(abs(e) for e, _ in everything), median(f for _, f in everything)
    print(f"all {len(everything)}: median error {error:.1%}, floor {floor:.1%}; limit 10 % or 1.5 floors")


def main() -> None:
    parser = argparse.ArgumentParser(description="Shards of convolutions, priced and measured.")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds for the whole layers")
    asked = parser.parse_args()
    graph = load_model(asked.model)
    layers = list(dict.fromkeys(node.layer for node in graph.nodes if isinstance(node.layer, Conv)))
    splits: dict[LayerCall, list[Split]] = defaultdict(list)
    for split, layer in shards_of(layers):
        for phase in PHASES:
            splits[LayerCall(layer, phase, asked.batch)].append(split)
    before = visit(list(splits), "before", asked.budget)
    with tempfile.TemporaryDirectory() as folder, Store.open(str(Path(folder) / "store.sqlite")) as store:
        questions = Questions(((asked.model, asked.batch),))
        whole = measure_device(store, MeasureRequest(budget_s=asked.budget, questions=questions))
        calibration, _ = fit(
            list(store.measurements(whole.run.run_id)), "whole", created_at="2026-01-01T00:00:00+00:00"
        )
    after = visit(list(splits), "after", asked.budget)
    calls = [call for call in splits if call in before and call in after]
    prices = CalibratedTimer(of_kernels_alone(calibration), Execution()).price(calls)
    rows: dict[tuple[Split, Phase], list[tuple[float, float]]] = defaultdict(list)
    for call, price_s, method in zip(calls, prices.middle_s.tolist(), prices.methods, strict=True):
        if method is not Method.MEASURED:
            seconds = before[call].median_s, after[call].median_s
            floor = abs(math.log(seconds[0] / seconds[1])) / math.sqrt(2)
            for split in splits[call]:
                rows[split, call.phase].append((price_s / median(seconds) - 1, floor))
    print_table(rows)


if __name__ == "__main__":
    main()
