"""Score networks: sums of DeepBench's layer lists, training steps of a ResNet-50, depthwise and 3-D convolutions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.kernel_data import (
    PHASES,
    Family,
    Row,
    convolution_shapes,
    one_row_per_shape,
    read_processors,
    read_rows,
)
from benchmarks.kernel_scores import Index, calibrate, choose, mape, mean, score
from calibration.anchors import session_factor
from calibration.kernel_regression import fit_kernel_model
from calibration.medoids import choose_medoids
from calibration.quantities import Processor, Quantities, convolutions, join, row_operations
from calibration.roofline_fit import fit_plain
from oracle.estimate import Floats

LIST_POINTS = 50
OWN_CONVOLUTIONS = 12
OWN_OTHERS = 4

_DEVICE = "Tesla V100-SXM2-16GB"
_PASSES = {"relu fwd": 8, "relu bwd": 12, "batch_norm fwd": 8, "batch_norm bwd": 12, "add ew": 12}
"""Bytes per item of the operations that work on rows: operands read and written in float32."""


def print_lists(folder: Path, families: Mapping[tuple[str, str], Family], seeds: int) -> None:
    """Sums of the ResNet-like and VGG-like lists, forward and both backwards, layers that were not measured only."""
    print("2. sums of DeepBench's layer lists, fp32, 50 kernels per phase, |error| in %")
    print(f"  {'list, device':<34} {'unmeasured':>12} {'with look-up':>12} {'plain':>12} {'target':>12}")
    listed = read_rows(folder / "deepbench_lists.csv")
    pooled = defaultdict(list)
    for name in ("resnet_like", "vgg_like"):
        wanted = _dims([row for row in listed if row[name]])
        for device in dict.fromkeys(d for n, d in families if n == "conv2d fwd fp32" and "(DB)" in d):
            phases = [families[f"conv2d {phase} fp32", device] for phase in PHASES]
            cells = [
                mean(column) for column in zip(*(_list_errors(phases, wanted, s) for s in range(seeds)), strict=True)
            ]
            print(f"  {name + ' ' + device:<34} " + " ".join(f"{cell:12.2f}" for cell in cells))
            for index, cell in enumerate(cells):
                pooled[index].append(cell)
    print(f"  {'mean':<34} " + " ".join(f"{mean(pooled[index]):12.2f}" for index in sorted(pooled)) + f" {11:>12}")


def _dims(rows: list[Row]) -> set[tuple[float, ...]]:
    shapes = convolution_shapes(rows)
    columns = [shapes.samples, shapes.channels, shapes.filters, shapes.out_extents.prod(axis=1)]
    return {tuple(row) for row in np.log2(np.stack(columns, axis=1)).round(6)}


def _list_errors(phases: list[Family], wanted: set[tuple[float, ...]], seed: int) -> tuple[float, float, float]:
    measured, predicted, plain, looked_up = 0.0, 0.0, 0.0, 0.0
    for family in phases:
        rows = choose(family, LIST_POINTS, seed, "random")
        model = calibrate(family, rows)
        part = family.take(rows)
        listed = np.array([tuple(axes) in wanted for axes in family.kernels.dims.round(6)])
        seen = np.isin(np.arange(len(family.seconds)), rows)
        test = np.flatnonzero(listed & ~seen)
        unseen = family.take(test)
        measured += unseen.seconds.sum()
        predicted += model.predict(unseen.kernels).mean_s.sum()
        plain += fit_plain(part.kernels, part.seconds).seconds(unseen.kernels).sum()
        looked_up += family.seconds[listed & seen].sum()
    total = measured + looked_up
    return (
        100 * abs(predicted / measured - 1),
        100 * abs((predicted + looked_up) / total - 1),
        100 * abs(plain / measured - 1),
    )


@dataclass(frozen=True, eq=False)
class _Step:
    """One training step: for each kind of kernel its table, seconds, and what cannot be described by shapes."""

    kinds: Mapping[str, tuple[Quantities, Floats]]
    rest_s: Mapping[str, float]


def _key(kernels: Quantities) -> list[tuple[float, ...]]:
    table = np.concatenate([kernels.dims, kernels.classes, kernels.columns], axis=1)
    return [tuple(row) for row in table.round(9)]


def _step(rows: list[Row], processor: Processor) -> _Step:
    grouped: dict[str, list[Row]] = defaultdict(list)
    batch = Counter(row["N"] for row in rows if row["op"] == "conv2d").most_common(1)[0][0]
    for row in rows:
        kind = f"{row['op']} {row['phase']}"
        if kind == "add ew" and not (row["N"] == batch and row["H"]):
            continue  # sums over parameters belong to the optimizer, which has a row of its own
        grouped[kind].append(row)
    kinds, rest = {}, {}
    for kind, members in grouped.items():
        seconds = np.array([float(row["time_ms"]) for row in members]) / 1e3
        if members[0]["op"] == "conv2d":
            kernels = convolutions(convolution_shapes(members), PHASES[members[0]["phase"]], 4, processor)
        elif kind in _PASSES:
            numbers = np.array([[float(row[a] or 1) for a in ("N", "C", "H", "W")] for row in members])
            kernels = row_operations(
                numbers[:, 0] * numbers[:, 1], numbers[:, 2] * numbers[:, 3], _PASSES[kind], processor
            )
        else:
            rest[kind] = float(seconds.sum())
            continue
        kinds[kind] = (kernels, seconds)
    return _Step(kinds, rest)


def _unique(kernels: Quantities, seconds: Floats) -> tuple[Quantities, Floats, Floats]:
    """One row per shape, its median seconds, and how often it occurs."""
    keys = _key(kernels)
    first = {key: index for index, key in reversed(list(enumerate(keys)))}
    rows = np.array(sorted(first.values()), dtype=np.intp)
    times: dict[tuple[float, ...], list[float]] = defaultdict(list)
    for key, value in zip(keys, seconds, strict=True):
        times[key].append(value)
    medians = np.array([np.median(times[keys[row]]) for row in rows])
    return kernels.take(rows), medians, np.array([float(len(times[keys[row]])) for row in rows])


def _total(
    kernels: Quantities, known: Mapping[tuple[float, ...], float], price: Callable[[Quantities], Floats]
) -> float:
    """The sum over kernels: what was measured where it was, the price otherwise."""
    priced = price(kernels)
    return float(sum(known.get(key, value) for key, value in zip(_key(kernels), priced, strict=True)))


def _predict_kind(
    first: tuple[Quantities, Floats], second: tuple[Quantities, Floats], others: Family | None
) -> tuple[float, float]:
    """Seconds of all kernels of a kind in the second step, from a few shapes of the first: the model, the plain fit."""
    kernels, seconds, counts = _unique(*first)
    if others is None:
        rows = choose_medoids(kernels.dims, kernels.bytes, OWN_OTHERS)
        table, times = kernels.take(rows), seconds[rows]
    else:
        model, _ = fit_kernel_model(others.kernels, others.seconds, others.siblings.tolist())
        rows = np.argsort(-counts * model.predict(kernels).median_s)[:OWN_CONVOLUTIONS]
        factor = session_factor(model, kernels.take(rows), seconds[rows]).factor
        table = join([kernels.take(rows), others.kernels])
        times = np.concatenate([seconds[rows], others.seconds * factor])
    model, _ = fit_kernel_model(table, times)
    plain = fit_plain(table, times)
    known = dict(zip(_key(kernels.take(rows)), seconds[rows], strict=True))
    return (
        _total(second[0], known, lambda unseen: model.predict(unseen).mean_s),
        _total(second[0], {}, plain.seconds),
    )


def print_steps(folder: Path, families: Mapping[tuple[str, str], Family], seeds: int) -> None:
    """ResNet-50 steps on V100: a few shapes of one step price another; then all shapes looked up."""
    processor = read_processors(folder / "devices.csv")[_DEVICE]
    rows = read_rows(folder / "training_ops.csv.gz")
    steps: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["gpu"] == "Tesla V100-DGXS-32GB":
            steps[row["source"], row["trace_step"]].append(row)
    names = sorted(steps)
    print(
        f"2. ResNet-50 step on V100 ({len(names)} steps), {OWN_CONVOLUTIONS} of its convolutions per phase, error in %"
    )
    print(f"  {'kernels':<34} {'model':>12} {'plain':>12} {'looked up':>12} {'target':>12}")
    cells: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for seed in range(seeds):
        pair = np.random.default_rng(seed).choice(len(names), 2, replace=False)
        first, second = (_step(steps[names[index]], processor) for index in pair)
        for kind, errors in _step_errors(first, second, families).items():
            cells[kind].append(errors)
    for kind, found in cells.items():
        target = 7 if kind == "total" else 12
        means = [mean([abs(errors[index]) for errors in found]) for index in range(3)]
        print(f"  {kind:<34} " + " ".join(f"{cell:12.2f}" for cell in means) + f" {target:>12}")
    _print_rare(rows, processor, seeds)


def _step_errors(
    first: _Step, second: _Step, families: Mapping[tuple[str, str], Family]
) -> dict[str, tuple[float, float, float]]:
    sums: dict[str, Floats] = {}
    for kind, (kernels, seconds) in second.kinds.items():
        others = families[f"{kind} fp32", "V100 (DB)"] if kind.startswith("conv2d") else None
        model, plain = _predict_kind(first.kinds[kind], second.kinds[kind], others)
        unique, medians, _ = _unique(*first.kinds[kind])
        known = dict(zip(_key(unique), medians, strict=True))
        looked_up = _total(kernels, known, lambda unseen: np.full(len(unseen), np.nan))
        sums[kind] = np.array([model, plain, looked_up, seconds.sum()])
    for kind, value in second.rest_s.items():  # one shape each, measured in the first step
        sums[kind] = np.array([first.rest_s[kind]] * 3 + [value])
    both = sums["batch_norm fwd"] + sums["batch_norm bwd"]
    shown = {kind: sums[kind] for kind in sums if kind.startswith("conv2d")}
    shown |= {"batch_norm": both, "optimizer:SGD optimizer": sums["optimizer:SGD optimizer"]}
    shown["total"] = np.sum(list(sums.values()), axis=0)
    return {kind: tuple((100 * (row[:3] / row[3] - 1)).tolist()) for kind, row in shown.items()}


def _print_rare(rows: Sequence[Row], processor: Processor, seeds: int) -> None:
    """Depthwise and 3-D convolutions: half of the shapes price the other half."""
    print("2. rare convolutions on V100, half of the shapes from the other half, error in %")
    print(f"  {'kernels':<34} {'shapes':>12} {'model':>12} {'plain':>12}")
    picked: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if "V100" not in row["gpu"] or row["phase"] not in PHASES:
            continue
        if row["op"] == "conv2d" and row["groups"] not in ("", "1"):
            picked["depthwise", row["phase"]].append(row)
        if row["op"] == "conv3d" and row["layout"] == "ncdhw":
            picked["conv3d fp16", row["phase"]].append(row)
    for (name, phase), members in picked.items():
        item_bytes = 2 if "fp16" in name else 4
        kernels = convolutions(convolution_shapes(members), PHASES[phase], item_bytes, processor)
        seconds = np.array([float(row["time_ms"]) for row in members]) / 1e3
        family = one_row_per_shape(Family(name, "V100", kernels, seconds, np.arange(len(seconds), dtype=np.float64)))
        halves = [_half(family, seed) for seed in range(seeds)]
        cells = [mean([half[index] for half in halves]) for index in range(2)]
        print(f"  {name + ' ' + phase:<34} {len(family.seconds):>12} " + " ".join(f"{cell:12.2f}" for cell in cells))


def _half(family: Family, seed: int) -> tuple[float, float]:
    order = np.random.default_rng(seed).permutation(len(family.seconds))
    rows: Index = np.sort(order[: len(order) // 2])
    scored = score(family, calibrate(family, rows), rows, np.sort(order[len(order) // 2 :]))
    return mape(scored.prediction.median_s, scored.measured_s), scored.plain_error
