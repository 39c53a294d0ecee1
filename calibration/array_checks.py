"""What the arrays of a stored kernel model must be like before they are believed. NumPy only.

The canaries notice whatever changes a predicted median. They notice neither an interval nor a range of calibrated
kernels that was changed, nor that they themselves are gone: hence these checks, with bounds far beyond any fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracle.errors import BadInput
from oracle.estimate import Floats

MOST_UNITS = 10**6
"""Parallel units of a processor at most."""

LARGEST_LOG = 1e6
"""Of log2 axes and ln seconds, of either sign."""

LARGEST_SCORE = 1e3
"""Of the z scores: they are in units of their own usual size, so that no fit comes near it."""

LARGEST_LOG_FACTOR = 50.0
"""Of the local spread, of either sign: kernels that all lie on their predictions make it a large negative number."""

ROW_ARRAYS = ("launches", "flop", "bytes", "wave_stretch", "tile_efficiency", "winograd")
"""Quantities with one number for each canary."""

_POSITIVE = ("launches", "wave_stretch", "tile_efficiency")
_LEAST = np.array([[np.nextafter(0.0, 1.0) if name in _POSITIVE else 0.0] for name in ROW_ARRAYS])


def check_processor(numbers: Floats) -> tuple[int, float]:
    """Parallel units and bytes of cache.

    Raises:
        BadInput: they are none.
    """
    _need(numbers.shape == (2,), "the processor is not two numbers")
    units, cache_bytes = numbers.tolist()
    whole = 1 <= units <= MOST_UNITS and units == int(units)
    _need(whole, f"the processor has {units:g} units; there are 1 to {MOST_UNITS}, a whole number")
    _need(0 < cache_bytes < np.inf, f"the processor has a cache of {cache_bytes:g} bytes")
    return int(units), cache_bytes


def check_arrays(arrays: Mapping[str, Any]) -> None:
    """Check what `KernelModel.to_arrays` wrote, but for the residuals themselves, whose medians the canaries check.

    Raises:
        KeyError: an array is missing; BadInput: one cannot be what a fit wrote.
    """
    _check_branches(arrays)
    _check_scores(arrays["z_scores"])
    if "local_spread" in arrays:
        _check_spread(arrays["local_spread"])
    _check_coverage(arrays)
    _check_canaries(arrays)


def _need(good: bool, what: str) -> None:
    if not good:
        raise BadInput(what)


def _within(values: Floats, largest: float) -> bool:
    return _all(np.abs(values) <= largest)  # false for what is not a number


def _all(good: Any) -> bool:
    return bool(np.logical_and.reduce(good, axis=None))  # half of the time of `all`


def _check_branches(arrays: Mapping[str, Any]) -> None:
    shares = arrays["shares"]
    good = shares.ndim == 1 and len(shares) > 0 and _all(shares >= 0) and abs(shares.sum() - 1) <= 1e-6
    _need(good, "the shares of the branches do not add up to 1")
    for branch in range(len(shares)):
        numbers = arrays[f"branch{branch}.numbers"]
        _need(numbers.shape == (3,), f"branch{branch}.numbers is not three numbers")
        spread, limit, process_share = numbers.tolist()
        good = 0 <= spread <= LARGEST_SCORE and limit >= 0 and 0 <= process_share <= 1
        _need(good, f"branch{branch}.numbers has a spread, a limit or a share that cannot be")


def _check_scores(scores: Floats) -> None:
    _need(scores.ndim == 1 and len(scores) > 0, "there are no z scores")
    rising = _all(scores[1:] >= scores[:-1])
    good = rising and scores[0] >= 0 and scores[-1] <= LARGEST_SCORE
    _need(good, f"the z scores are not rising numbers from 0 to {LARGEST_SCORE:g}")


def _check_spread(spread: Floats) -> None:
    _need(spread.ndim == 2 and spread.shape[0] == 2 and spread.shape[1] > 0, "the local spread is not two rows")
    at, log_factor = spread
    good = _all(at[1:] > at[:-1]) and _within(at, LARGEST_LOG)
    _need(good, f"the local spread is not at rising ln seconds within +-{LARGEST_LOG:g}")
    _need(_within(log_factor, LARGEST_LOG_FACTOR), f"the local spread has a factor beyond exp({LARGEST_LOG_FACTOR:g})")


def _check_coverage(arrays: Mapping[str, Any]) -> None:
    axes, numbers = arrays["coverage.axes"], arrays["coverage.numbers"]
    _need(axes.ndim == 2 and axes.shape[0] == 2, "the calibrated axes are not two rows")
    good = _within(axes, LARGEST_LOG) and _all(axes[0] <= axes[1])
    _need(good, f"the calibrated axes are not ranges within +-{LARGEST_LOG:g}")
    _need(numbers.shape == (3,), "the calibrated range is not three numbers")
    low, high, largest_sd = numbers.tolist()
    good = -LARGEST_LOG <= low <= high <= LARGEST_LOG
    _need(good, f"the calibrated ln seconds are not a range within +-{LARGEST_LOG:g}")
    _need(0 <= largest_sd <= LARGEST_LOG, f"the largest usual sd is {largest_sd:g}")
    classes = arrays["coverage.classes"]
    _need(classes.ndim == 2 and classes.shape[1] == 2 and len(classes) > 0, "no classes were seen")
    columns, width = classes[:, 0], arrays["canary.classes"].shape[-1]
    good = _all((columns >= 0) & (columns < width) & (columns % 1 == 0)) and _within(classes, LARGEST_LOG)
    _need(good, "the classes that were seen are of other columns than those of the canaries")


def _check_canaries(arrays: Mapping[str, Any]) -> None:
    log_s = arrays["canary.log_s"]
    _need(log_s.ndim == 1 and len(log_s) > 0, "there are no canaries")
    _need(_within(log_s, LARGEST_LOG), f"the canaries have ln seconds beyond +-{LARGEST_LOG:g}")
    numbers = [arrays[f"canary.{name}"] for name in ROW_ARRAYS]
    for name, values in zip(ROW_ARRAYS, numbers, strict=True):
        _need(values.shape == log_s.shape, f"canary.{name} is not one number for each canary")
    for name, good in zip(ROW_ARRAYS, np.logical_and.reduce(np.array(numbers) >= _LEAST, axis=1).tolist(), strict=True):
        _need(good, f"canary.{name} has a number that is too small")
    widths = {
        "dims": arrays["coverage.axes"].shape[-1],
        "classes": arrays["canary.classes"].shape[-1],
        "columns": len(arrays["names"]),
    }
    tables = [arrays[f"canary.{name}"] for name in widths]
    for (name, width), values in zip(widths.items(), tables, strict=True):
        _need(values.shape == (len(log_s), width), f"canary.{name} is not {width} numbers for each canary")
    for name, values in zip(widths, tables, strict=True):
        _need(_within(values, LARGEST_LOG), f"canary.{name} has a number beyond +-{LARGEST_LOG:g}")
