"""Read measured kernels of real devices as families: quantities, seconds, and which shapes are siblings.

The files are described in the README beside them. A family is one operation, phase, dtype and device of one collection.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration.quantities import Convolutions, Processor, Quantities, convolutions, matrix_products, row_operations
from oracle.errors import BadInput
from oracle.estimate import Floats
from oracle.layer import Phase

Row = Mapping[str, str]

DEVICES = {
    "A100": ("NVIDIA A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB"),
    "V100": ("Tesla V100-PCIE-32GB", "Tesla V100-PCIE-32GB"),
    "P100": ("Tesla P100-PCIE-16GB", "Tesla P100-PCIE-16GB"),
    "T4": ("Tesla T4", "Tesla T4"),
    "P4": ("Tesla P4", "Tesla P4"),
    "A100 SXM": ("a100_sxm", "NVIDIA A100-SXM4-40GB"),
    "H100 SXM": ("h100_sxm", "NVIDIA H100 80GB HBM3"),
    "M40 (DB)": ("M40", "Tesla M40"),
    "TitanX (DB)": ("TitanX", "NVIDIA GeForce GTX TITAN X"),
    "TitanX Pascal (DB)": ("TitanX_Pascal", "NVIDIA TITAN X (Pascal)"),
    "TitanXp (DB)": ("TitanXp", "NVIDIA TITAN Xp"),
    "1080Ti (DB)": ("1080Ti", "NVIDIA GeForce GTX 1080 Ti"),
    "P100 (DB)": ("P100", "Tesla P100-PCIE-16GB"),
    "V100 (DB)": ("V100", "Tesla V100-SXM2-16GB"),
}
"""Short name: the name in the collections, and the name in the table of devices."""

PHASES = {"fwd": Phase.FORWARD, "bwd_input": Phase.BACKWARD_DATA, "bwd_weight": Phase.BACKWARD_WEIGHT}
"""The phases as the collections call them."""

_BYTES_PER_ITEM = {"add": 12, "mul": 12, "div": 12, "pow": 12}
_ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16_mixed": 2}
_SIBLING_AXES = ("C", "H", "W", "K", "R", "S", "stride_h", "stride_w", "pad_h", "pad_w")


@dataclass(frozen=True, eq=False)
class Family:
    """Measured kernels of one family on one device; kernels of one of `siblings` differ in the samples only."""

    name: str
    device: str
    kernels: Quantities
    seconds: Floats
    siblings: Floats

    def take(self, rows: NDArray[np.intp]) -> Family:
        """Some of the kernels."""
        return Family(self.name, self.device, self.kernels.take(rows), self.seconds[rows], self.siblings[rows])


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a table, plain or gzipped."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return list(csv.DictReader(io.StringIO(text.decode())))


def read_processors(path: Path) -> dict[str, Processor]:
    """Parallel units and last-level cache by device name."""
    return {
        row["name"]: Processor(int(row["sm_count"]), float(row["l2_bytes"]))
        for row in read_rows(path)
        if row["sm_count"] and row["l2_bytes"]
    }


def _axis(rows: Iterable[Row], name: str, missing: float = 1.0) -> Floats:
    return np.array([float(row.get(name) or missing) for row in rows])


def _axes(rows: Iterable[Row], names: tuple[str, str, str], missing: float) -> Floats:
    rows = list(rows)
    return np.stack([_axis(rows, name, missing) for name in names], axis=1)


def convolution_shapes(rows: list[Row]) -> Convolutions:
    """The convolutions of rows of either kernel table (the columns tell which)."""
    if "kH" in rows[0]:
        return Convolutions(
            samples=_axis(rows, "N"),
            channels=_axis(rows, "C"),
            filters=_axis(rows, "K"),
            groups=_axis(rows, "groups"),
            extents=_axes(rows, ("D", "H", "W"), 1),
            kernel=_axes(rows, ("kD", "kH", "kW"), 1),
            stride=_axes(rows, ("sD", "sH", "sW"), 1),
            padding=_axes(rows, ("pD", "pH", "pW"), 0),
            dilation=_axes(rows, ("dD", "dH", "dW"), 1),
        )
    ones = np.ones((len(rows), 3))
    return Convolutions(
        samples=_axis(rows, "N"),
        channels=_axis(rows, "C"),
        filters=_axis(rows, "K"),
        groups=np.ones(len(rows)),
        extents=_axes(rows, ("", "H", "W"), 1),
        kernel=_axes(rows, ("", "R", "S"), 1),
        stride=_axes(rows, ("", "stride_h", "stride_w"), 1),
        padding=_axes(rows, ("", "pad_h", "pad_w"), 0),
        dilation=ones,
    )


def _quantities(rows: list[Row], operation: str, phase: str, dtype: str, processor: Processor) -> Quantities:
    item_bytes = _ITEM_BYTES[dtype]
    if operation == "conv2d":
        return convolutions(convolution_shapes(rows), PHASES[phase], item_bytes, processor)
    if rows[0].get("gm"):
        axes = {"batch": _axis(rows, "batch"), "m": _axis(rows, "gm"), "n": _axis(rows, "gn"), "k": _axis(rows, "gk")}
        return matrix_products(axes, item_bytes, processor)
    return row_operations(_axis(rows, "rows"), _axis(rows, "cols"), _BYTES_PER_ITEM.get(operation, 8), processor)


def read_families(folder: Path, sources: Iterable[str]) -> dict[tuple[str, str], Family]:
    """Families of `ops.csv.gz` by (name, device); names read like `conv2d fwd fp32`.

    Raises:
        BadInput: there are no such rows.
    """
    processors = read_processors(folder / "devices.csv")
    short = {collection: name for name, (collection, _) in DEVICES.items()}
    wanted = set(sources)
    grouped: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in read_rows(folder / "ops.csv.gz"):
        if row["source"] in wanted and row["gpu"] in short and not row["op"].startswith("rnn"):
            grouped[row["op"], row["phase"], row["dtype"], short[row["gpu"]]].append(row)
    if not grouped:
        raise BadInput(f"{folder} has no kernels of {', '.join(sorted(wanted))}")
    families = {}
    for (operation, phase, dtype, device), rows in grouped.items():
        kernels = _quantities(rows, operation, phase, dtype, processors[DEVICES[device][1]])
        seconds = np.array([float(row["time_ms"]) for row in rows]) / 1e3
        family = Family(f"{operation} {phase} {dtype}", device, kernels, seconds, _siblings(rows, operation))
        families[family.name, device] = one_row_per_shape(family)
    return families


def _siblings(rows: list[Row], operation: str) -> Floats:
    if operation != "conv2d":
        return np.arange(len(rows), dtype=np.float64)
    keys = [tuple(row[axis] for axis in _SIBLING_AXES) for row in rows]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.float64)


def one_row_per_shape(family: Family) -> Family:
    """Repeats of a shape become one row with their median, so that no shape is calibrated and tested."""
    key = np.concatenate([family.kernels.dims, family.kernels.columns], axis=1)
    _, first, shape = np.unique(key, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(shape.ravel(), kind="stable")
    repeats = np.split(family.seconds[order], np.flatnonzero(np.diff(shape.ravel()[order])) + 1)
    medians = np.array([np.median(times) for times in repeats])
    found = family.take(first)
    return Family(found.name, found.device, found.kernels, medians, found.siblings)
