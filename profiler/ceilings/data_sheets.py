"""What vendors promise: dense peaks and memory bandwidth by device, in `data_sheets.csv`, each row with its source.

A product that a tensor core runs is compared with the tensor core's peak, a chain of multiply-adds with the vector
units'. Devices are found by the name that the driver gives them; one that is not in the table has no promise.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class DataSheet:
    """One device.

    Args:
        device: its name.
        peaks: column of the table -> FLOP/s, or bytes/s for `memory`.
        source: the document.
    """

    device: str
    peaks: Mapping[str, float]
    source: str

    def promise(self, question: str) -> float | None:
        """What the data sheet says to a question of `profiler.ceilings`; None where it says nothing.

        >>> find_data_sheet("NVIDIA H200").promise("wgmma_bf16")
        989400000000000.0
        """
        return self.peaks.get(_column(question))


def _column(question: str) -> str:
    way, _, kind = question.partition("_")
    if question in ("read", "copy", "triad") or question in ("raw_read", "raw_write", "raw_copy", "raw_triad"):
        return "memory"
    if way == "fma":
        return {"fp16x2": "fp16_vector", "bf16x2": "fp16_vector"}.get(kind, kind)
    if way in ("gemm", "mma", "wgmma"):
        return "fp64_tensor" if kind == "fp64" else kind
    return ""


def find_data_sheet(device: str) -> DataSheet | None:
    """The data sheet of a device by its name, with or without the vendor in front of it.

    >>> find_data_sheet("a chip") is None
    True
    """
    return _table().get(_key(device))


def _key(device: str) -> str:
    return device.lower().removeprefix("nvidia ").removeprefix("tesla ")


@cache
def _table() -> Mapping[str, DataSheet]:
    text = files("profiler.ceilings").joinpath("data_sheets.csv").read_text(encoding="utf-8")
    sheets = {}
    for row in csv.DictReader(text.splitlines()):
        device, source = row.pop("device"), row.pop("source")
        sheets[_key(device)] = DataSheet(device, {name: float(peak) for name, peak in row.items() if peak}, source)
    return sheets
