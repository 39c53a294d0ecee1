"""Score the fit of collectives on public measurements: sizes left out of a calibration, and scales beyond it.

    python benchmarks/collectives.py [path of collectives.csv.gz]

A fabric is one (source, device, interconnect). Errors are |predicted / measured - 1| in percent, mean and median over
the rows that the calibration has not seen; fabrics are never pooled, and the last line is a mean over fabrics.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.link_curves import arrays, envelope
from calibration.link_pieces import relative_affine
from calibration.link_rows import LinkRow, canonical
from calibration.link_series import LinkSeries
from calibration.link_values import CurveKey, LinkCalibration, LinkCurve, RankLaw
from calibration.links import fit_links
from oracle.estimate import Floats

ONE_SERIES = frozenset({"abci"})
"""Sources whose tag is a job of one environment: every rank count of a scaling study is its own job there."""

SOME = 40
"""Curves of each fabric that sizes beyond the calibration are tried on."""

Fabric = tuple[str, str, str]


@dataclass(frozen=True)
class Measured:
    """One row of the public table and whether a calibration may see it."""

    row: LinkRow
    seen: bool

    @property
    def seconds(self) -> float:
        """What was measured, in seconds."""
        return self.row.seconds[0]


@dataclass(frozen=True)
class Score:
    """Errors as fractions and hits of one fabric's unseen rows; arrays of shape (n,)."""

    fabric: Fabric
    errors: dict[str, Floats]
    hit_80: Floats
    hit_90: Floats
    half_80: Floats


def load(path: Path) -> dict[Fabric, list[Measured]]:
    """The rows of every fabric, in the order of the file."""
    found: dict[Fabric, list[Measured]] = defaultdict(list)
    with gzip.open(path, "rt", newline="") as file:
        for line in csv.DictReader(file):
            one = line["source"] in ONE_SERIES
            key = CurveKey(
                collective=canonical(line["collective"]),
                ranks=int(float(line["nranks"])),
                nodes=int(float(line["nnodes"] or 0)),
                dtype=line["dtype"],
                environment="" if one else line["tag"],
                job=line["tag"] if one else "",
            )
            row = LinkRow(key, float(line["bytes"]), (1e-6 * float(line["time_us"]),))
            fabric = (line["source"], line["gpu"], line["interconnect"])
            found[fabric].append(Measured(row, line["calib"] == "True"))
    return dict(found)


def hockney(curve: LinkCurve, sizes: Floats) -> Floats:
    """Seconds by the Hockney model."""
    return np.array([curve.alpha_beta.seconds(float(size)) for size in sizes])


def log_log(curve: LinkCurve, sizes: Floats) -> Floats:
    """Seconds by straight lines in logarithms."""
    return np.exp(np.interp(np.log(sizes), np.log(curve.sizes_bytes), np.log(curve.seconds)))


def pieces(curve: LinkCurve, sizes: Floats) -> Floats:
    """Seconds by the envelope of affine pieces alone."""
    return envelope(*arrays(curve.pieces), sizes)


BESIDE: dict[str, Callable[[LinkCurve, Floats], Floats]] = {
    "alpha-beta": hockney,
    "log-log": log_log,
    "pieces": pieces,
}


def score(fabric: Fabric, rows: Sequence[Measured]) -> Score | None:
    """Fit the seen rows of a fabric and predict the others; None where there is nothing to predict."""
    calibration = fit_links([item.row for item in rows if item.seen], "benchmark", " ".join(fabric))
    curves = {curve.key: curve for curve in calibration.curves}
    unseen: dict[CurveKey, list[Measured]] = defaultdict(list)
    for item in rows:
        if not item.seen and item.row.key in curves:
            unseen[item.row.key].append(item)
    parts = [_score_curve(calibration, curves[key], items) for key, items in unseen.items()]
    if not parts:
        return None
    names = ["price", *BESIDE]
    errors = {name: np.concatenate([part[0][name] for part in parts]) for name in names}
    hit_80, hit_90, half = (np.concatenate([part[index] for part in parts]) for index in (1, 2, 3))
    return Score(fabric, errors, hit_80, hit_90, half)


def _score_curve(
    calibration: LinkCalibration, curve: LinkCurve, items: Sequence[Measured]
) -> tuple[dict[str, Floats], Floats, Floats, Floats]:
    sizes = np.array([item.row.bytes for item in items])
    measured = np.array([item.seconds for item in items])
    answer = LinkSeries([curve], None, calibration.spread).read(curve.key.ranks, sizes)
    errors = {"price": np.abs(np.exp(answer.log_s) / measured - 1)}
    errors.update({name: np.abs(rule(curve, sizes) / measured - 1) for name, rule in BESIDE.items()})
    miss = np.abs(answer.log_s - np.log(measured))
    return errors, 1.0 * (miss <= answer.half_80), 1.0 * (miss <= answer.half_90), np.expm1(answer.half_80)


def print_scores(scores: Sequence[Score]) -> None:
    names = ["price", *BESIDE]
    print("Sizes left out of the calibration: MAPE / median error in %")
    print(f"{'fabric':54}{'rows':>6}" + "".join(f"{name:>13}" for name in names) + "   in 80%  in 90%  half-width")
    for one in scores:
        cells = "".join(f"{100 * e.mean():7.1f} /{100 * np.median(e):4.1f}" for e in one.errors.values())
        cover = f"{100 * one.hit_80.mean():8.0f}{100 * one.hit_90.mean():8.0f}{100 * np.median(one.half_80):11.1f}"
        print(f"{' '.join(one.fabric)[:53]:54}{len(one.hit_80):6}{cells} {cover}")
    means = [np.mean([one.errors[name].mean() for one in scores]) for name in names]
    medians = [np.median(np.concatenate([one.errors[name] for one in scores])) for name in names]
    cells = "".join(f"{100 * a:7.1f} /{100 * b:4.1f}" for a, b in zip(means, medians, strict=True))
    hits = np.concatenate([one.hit_80 for one in scores])
    print(f"{'mean over fabrics of MAPE / median over rows':54}{len(hits):6}{cells}")
    print(
        f"80 % intervals cover {100 * hits.mean():.1f} % of the rows, "
        f"{100 * np.mean([one.hit_80.mean() for one in scores]):.1f} % in the mean over fabrics, "
        f"at least {100 * min(one.hit_80.mean() for one in scores):.0f} % of every fabric; 90 %: "
        f"{100 * np.concatenate([one.hit_90 for one in scores]).mean():.1f} %; median half-width "
        f"{100 * np.median(np.concatenate([one.half_80 for one in scores])):.1f} %"
    )


def beyond(rows: Sequence[LinkRow], top: int, target: int) -> dict[str, Floats]:
    """Errors at `target` ranks of a calibration that has seen at most `top`, and whether its interval held.

    Every curve is seen whole. Beside it: the largest seen scale as it is, and alpha and beta linear in log2(p).
    """
    calibration = fit_links([row for row in rows if row.key.ranks <= top and row.key.nodes > 1], "scale", "benchmark")
    asked = [row for row in rows if row.key.ranks == target]
    sizes, measured = (np.array(values) for values in zip(*((row.bytes, row.seconds[0]) for row in asked), strict=True))
    law: RankLaw | None = next(iter(calibration.laws), None)
    series = LinkSeries(calibration.curves, law, calibration.spread)
    answer = series.read(target, sizes)
    flat = series.read(series.scales[-1], sizes)
    guesses = {
        "price": np.exp(answer.log_s),
        "last scale": np.exp(flat.log_s),
        "alpha-beta in log2 p": linear_constants(calibration.curves, target, sizes),
    }
    errors = {name: np.abs(guess / measured - 1) for name, guess in guesses.items()}
    errors["inside 80 %"] = 1.0 * (np.abs(answer.log_s - np.log(measured)) <= answer.half_80)
    return errors


def linear_constants(curves: Sequence[LinkCurve], target: int, sizes: Floats) -> Floats:
    """Seconds where alpha and beta of the Hockney model each grow linearly in log2(ranks)."""
    doublings = np.log2([curve.key.ranks for curve in curves])
    constants = [relative_affine(np.array(curve.sizes_bytes), np.array(curve.seconds)) for curve in curves]
    alpha, beta = (
        np.polyval(np.polyfit(doublings, values, 1), np.log2(target)) for values in zip(*constants, strict=True)
    )
    return np.maximum(alpha, 1e-9) + np.maximum(beta, 1e-13) * sizes


def beyond_sizes(rows: Sequence[Measured], factor: float = 32.0) -> tuple[Floats, Floats]:
    """Errors and hits at sizes up to `factor` times the largest that a calibration has seen."""
    by_key: dict[CurveKey, list[LinkRow]] = defaultdict(list)
    for item in rows:
        by_key[item.row.key].append(item.row)
    keep: list[LinkRow] = []
    asked: dict[CurveKey, list[LinkRow]] = {}
    for key, own in list(by_key.items())[:SOME]:
        edge = max(row.bytes for row in own) / factor
        if len({row.bytes for row in own if row.bytes <= edge}) >= 5:
            keep.extend(row for row in own if row.bytes <= edge)
            asked[key] = [row for row in own if row.bytes > edge]
    if not asked:
        return np.array([]), np.array([])
    calibration = fit_links(keep, "beyond", "benchmark")
    misses, halves = [], []
    for curve in calibration.curves:
        sizes = np.array([row.bytes for row in asked[curve.key]])
        answer = LinkSeries([curve], None, calibration.spread).read(curve.key.ranks, sizes)
        misses.append(answer.log_s - np.log([row.seconds[0] for row in asked[curve.key]]))
        halves.append(answer.half_80)
    miss: Floats = np.concatenate(misses).astype(np.float64)
    hits = (np.abs(miss) <= np.concatenate(halves)).astype(np.float64)
    return np.abs(np.expm1(miss)), hits


def middle_scales(rows: Sequence[LinkRow]) -> tuple[Floats, Floats]:
    """Errors and hits at every scale between nodes but the ends, left out once."""
    errors, hits = [], []
    scales = sorted({row.key.ranks for row in rows if row.key.nodes > 1})
    for middle in scales[1:-1]:
        seen = [row for row in rows if row.key.nodes > 1 and row.key.ranks != middle]
        calibration = fit_links(seen, "middle", "benchmark")
        asked = [row for row in rows if row.key.ranks == middle]
        series = LinkSeries(calibration.curves, None, calibration.spread)
        answer = series.read(middle, np.array([row.bytes for row in asked]))
        miss = answer.log_s - np.log([row.seconds[0] for row in asked])
        errors.append(np.abs(np.expm1(miss)))
        hits.append(1.0 * (np.abs(miss) <= answer.half_80))
    return np.concatenate(errors), np.concatenate(hits)


def print_extrapolation(fabrics: dict[Fabric, list[Measured]]) -> None:
    print(f"\nSizes up to 32 times beyond the calibration, {SOME} curves of each fabric at most")
    covers = []
    for fabric, rows in sorted(fabrics.items()):
        errors, hits = beyond_sizes(rows)
        if len(errors):
            covers.append(hits.mean())
            mape, cover = 100 * errors.mean(), 100 * hits.mean()
            print(f"{' '.join(fabric)[:53]:54}{len(errors):6}{mape:8.1f} %   in 80 %: {cover:.0f} %")
    print(f"80 % intervals cover {100 * np.mean(covers):.0f} % in the mean over fabrics")


def print_scaling(fabrics: dict[Fabric, list[Measured]]) -> None:
    print("\nScales beyond the calibration: MAPE in %, and rows inside the 80 % interval")
    names = ("price", "last scale", "alpha-beta in log2 p", "inside 80 %")
    print(f"{'':54}" + "".join(f"{name:>22}" for name in names))
    for fabric, items in fabrics.items():
        if fabric[0] == "abci":
            rows = [item.row for item in items if item.row.key.collective == "all_reduce"]
            for top in (32, 64):
                _print_line(f"ABCI V100 all_reduce, up to {top} ranks -> 128", [beyond(rows, top, 128)], names)
        if fabric[0] == "alps":
            by_tag: dict[str, list[LinkRow]] = defaultdict(list)
            for item in items:
                by_tag[item.row.key.environment].append(item.row)
            results = [beyond(rows, 32, 64) for rows in by_tag.values()]
            _print_line(f"Alps GH200, up to 8 nodes -> 16, {len(results)} environments", results, names)
            parts = [middle_scales(rows) for rows in by_tag.values()]
            errors, hits = (np.concatenate(values) for values in zip(*parts, strict=True))
            print(f"Alps GH200, scales left out between others{100 * errors.mean():34.1f}{100 * hits.mean():66.1f}")


def _print_line(what: str, results: Sequence[dict[str, Floats]], names: Sequence[str]) -> None:
    cells = (100 * float(np.mean([result[name].mean() for result in results])) for name in names)
    print(f"{what:54}" + "".join(f"{cell:22.1f}" for cell in cells))


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared"
    default = Path(os.environ.get("STEPGAUGE_SHARED", beside)) / "data" / "collectives.csv.gz"
    fabrics = load(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    scores = [found for fabric, rows in sorted(fabrics.items()) if (found := score(fabric, rows)) is not None]
    print_scores(scores)
    print_scaling(fabrics)
    print_extrapolation(fabrics)


if __name__ == "__main__":
    main()
