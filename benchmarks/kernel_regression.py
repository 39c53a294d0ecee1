"""How well are kernel times predicted?

    python benchmarks/kernel_regression.py [../shared/data] [--item 1 ...] [--seeds 3] [--choice medoids|random]

Every figure is a mean over seeds, with the plain fit launch + a flop + b bytes of the same kernels beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kernel_data import Family, read_families
from benchmarks.kernel_network import print_lists, print_steps
from benchmarks.kernel_scores import (
    LEVELS,
    Scored,
    beyond,
    coverage,
    held_out,
    mean,
    new_device,
    sibling_folds,
    sum_scores,
)

SOURCES = ("neusight_train", "aiconfigurator", "deepbench")
TARGETS: dict[str, tuple[int, float, dict[str, float]]] = {
    "linear fwd fp32": (200, 6.5, {"V100": 7.5, "A100": 7.5, "P100": 10, "T4": 12.5}),
    "bmm fwd fp32": (200, 3.5, {"A100": 7.5, "V100": 10.5, "P100": 9, "T4": 15.5}),
    "gemm fwd bf16": (200, 3.5, {"A100 SXM": 8.5, "H100 SXM": 7.5}),
    "conv2d fwd fp32": (200, 5.0, {"V100": 18, "T4": 17, "P100": 25}),
    "ln fwd fp32": (100, 1.5, dict.fromkeys(("V100", "A100", "P100", "T4", "P4"), 4.5)),
    "softmax fwd fp32": (100, 1.5, dict.fromkeys(("V100", "A100", "P100", "T4", "P4"), 4.5)),
    "add fwd fp32": (100, 1.5, dict.fromkeys(("V100", "A100", "P100", "T4", "P4"), 2.2)),
    "gelu fwd fp32": (100, 1.5, dict.fromkeys(("V100", "A100", "P100", "T4", "P4"), 2.2)),
    "tanh fwd fp32": (100, 1.5, dict.fromkeys(("V100", "A100", "P100", "T4", "P4"), 2.2)),
}
"""Kernels to calibrate with, and targets in %: of sums of 50 layers, and of single kernels by device."""

REPRESENTATIVE = tuple(name for name in TARGETS if name not in ("gelu fwd fp32", "tanh fwd fp32"))
"""The families of items 5 and 6: one elementwise operation stands for all."""

SIBLING_TARGETS = {"fwd": 13.0, "bwd_input": 15.0, "bwd_weight": 13.0}
"""Median error in % of DeepBench convolutions by phase."""

Families = dict[tuple[str, str], Family]


def _line(*cells: object) -> None:
    texts = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print("  " + " ".join(f"{text:>12}" if index else f"{text:<34}" for index, text in enumerate(texts)), flush=True)


def print_single(families: Families, seeds: int, how: str) -> dict[tuple[str, str], list[Scored]]:
    print("1. other shapes of the same family, mean error in %")
    _line("family, device", "N", "model", "plain", "median", "target")
    scores = {}
    for name, (count, _, devices) in TARGETS.items():
        for device, target in devices.items():
            found = [held_out(families[name, device], count, seed, how) for seed in range(seeds)]
            middle = mean([float(100 * _median_error(one)) for one in found])
            errors, plain = mean([one.error for one in found]), mean([one.plain_error for one in found])
            _line(f"{name} {device}", count, errors, plain, middle, target)
            scores[name, device] = found
        if len(devices) > 4:
            own = [one for (family, _), found in scores.items() if family == name for one in found]
            _line(f"{name} (all)", count, mean([s.error for s in own]), mean([s.plain_error for s in own]))
    return scores


def _median_error(scored: Scored) -> float:
    return float(np.median(abs(scored.prediction.median_s / scored.measured_s - 1)))


def print_siblings(families: Families, seeds: int) -> None:
    print("2. DeepBench convolutions, siblings on one side, error in %")
    _line("phase", "devices", "median", "mean", "plain median", "plain mean", "target")
    for (phase, target), dtype in product(SIBLING_TARGETS.items(), ("fp32", "fp16_mixed")):
        chosen = [family for (name, _), family in families.items() if name == f"conv2d {phase} {dtype}"]
        chosen = [family for family in chosen if "(DB)" in family.device]
        found = [sibling_folds(family, seed) for family in chosen for seed in range(seeds)]
        off = [abs(one.prediction.median_s / one.measured_s - 1) for one in found]
        plain = [abs(one.plain_s / one.measured_s - 1) for one in found]
        middles = [mean([100 * float(np.median(one)) for one in part]) for part in (off, plain)]
        means = [mean([100 * float(np.mean(one)) for one in part]) for part in (off, plain)]
        _line(f"conv2d {phase} {dtype}", len(chosen), middles[0], means[0], middles[1], means[1], target)


def print_sums(scores: dict[tuple[str, str], list[Scored]]) -> None:
    print("3. sums of 50 layers, error in %")
    _line("family, device", "model", "bias", "plain", "target")
    keys = ("error", "bias", "plain_error")
    families: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for (name, device), found in scores.items():
        sums = [sum_scores(one, seed) for seed, one in enumerate(found)]
        cells = tuple(mean([getattr(one, key) for one in sums]) for key in keys)
        _line(f"{name} {device}", *cells)
        families[name].append(cells)
    for name, rows in families.items():
        _line(f"{name} (all)", *(mean(column) for column in zip(*rows, strict=True)), TARGETS[name][1])


def print_coverage(scores: dict[tuple[str, str], list[Scored]]) -> None:
    print("4. coverage of intervals in %, median high/low, interval score relative to the time")
    _line(
        "family, device", *(f"{what} {level:.0%}" for level in LEVELS for what in ("in", "ratio", "score")), "sums 90%"
    )
    columns: dict[int, list[float]] = defaultdict(list)
    for (name, device), found in scores.items():
        cells: list[float] = []
        for level in LEVELS:
            each = [coverage(one, level) for one in found]
            cells += [mean([getattr(one, key) for one in each]) for key in ("covered", "ratio", "interval_score")]
        cells.append(mean([sum_scores(one, seed).coverage for seed, one in enumerate(found)]))
        _line(f"{name} {device}", *cells)
        for index, cell in enumerate(cells):
            columns[index].append(cell)
    _line("pooled", *(mean(columns[index]) for index in sorted(columns)))
    _line("worst", *(min(columns[index]) for index in sorted(columns)))
    _line("target", "76-85", 1.45, "", "86-94", 1.7, "", ">= 90")


def print_beyond(families: Families, seeds: int, how: str) -> None:
    print("5. beyond the calibrated range, mean error in %; part flagged in %")
    _line("family, device", "3-10x", "plain", "10-100x", "plain", "flag >100x", "flag inside")
    pooled = defaultdict(list)
    keys = ("near", "near_plain", "far", "far_plain", "flagged_beyond_100", "flagged_inside")
    for name in REPRESENTATIVE:
        count, _, devices = TARGETS[name]
        for device in devices:
            found = [beyond(families[name, device], count, seed, how) for seed in range(seeds)]
            cells = [mean([getattr(one, key) for one in found]) for key in keys]
            _line(f"{name} {device}", *cells)
            for index, cell in enumerate(cells):
                pooled[index].append(cell)
    _line("pooled", *(mean(pooled[index]) for index in sorted(pooled)))
    _line("target", 18, "", 20, "", ">= 95", "<= 5")


def print_prior(families: Families, seeds: int, how: str) -> None:
    print("6. a new device with 25 kernels, mean error in %")
    _line("family, device", "own", "prior", "plain", "change")
    changes = defaultdict(list)
    for name in (*REPRESENTATIVE, *(f"conv2d {phase} fp32" for phase in ("bwd_input", "bwd_weight"))):
        if name == "gemm fwd bf16":
            continue
        for (family_name, device), family in families.items():
            if family_name != name:
                continue
            collection = "(DB)" in device
            others = [
                other
                for (other_name, other_device), other in families.items()
                if other_name == name and other_device != device and ("(DB)" in other_device) == collection
            ]
            pairs = [new_device(family, others, seed, how) for seed in range(seeds)]
            own, prior = (mean([pair[index].error for pair in pairs]) for index in (0, 1))
            plain = mean([pair[0].plain_error for pair in pairs])
            changes[name.split()[0]].append(100 * (prior / own - 1))
            _line(f"{name} {device}", own, prior, plain, f"{changes[name.split()[0]][-1]:+.1f} %")
    for operation, change in changes.items():
        _line(f"{operation}, mean and worst", "", "", "", f"{mean(change):+.1f} %", f"{max(change):+.1f} %")
    _line("target", "", "", "", "<= 5; conv <= -20")


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared"
    parser = argparse.ArgumentParser(description="Score the regression of kernel times on measured kernels.")
    default = Path(os.environ.get("STEPGAUGE_SHARED", beside)) / "data"
    parser.add_argument("data", nargs="?", type=Path, default=default, help="the folder with ops.csv.gz")
    parser.add_argument("--item", type=int, action="append", help="only these items, 1 to 6 (3 and 4 need 1)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--choice", choices=("medoids", "random"), default="medoids")
    asked = parser.parse_args()
    items = set(asked.item or range(1, 7))
    begin = time.monotonic()
    families = read_families(asked.data, SOURCES)
    if items & {1, 3, 4}:
        scores = print_single(families, asked.seeds, asked.choice)
        print_sums(scores)
        print_coverage(scores)
    if 2 in items:
        print_siblings(families, asked.seeds)
        print_lists(asked.data, families, asked.seeds)
        print_steps(asked.data, families, asked.seeds)
    if 5 in items:
        print_beyond(families, asked.seeds, asked.choice)
    if 6 in items:
        print_prior(families, asked.seeds, asked.choice)
    print(f"took {(time.monotonic() - begin) / 60:.1f} min")


if __name__ == "__main__":
    main()
