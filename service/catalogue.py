"""List, show, export and load stored calibrations."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.store import CalibrationSummary, Store
from oracle.constants import Calibration
from oracle.errors import BadInput
from oracle.interchange import calibration_from_json, calibration_to_json
from service.predicting import find_calibration, validity_notes

MAX_FILE_BYTES = 64 * 2**20
"""Far above any calibration; what is larger is something else."""


@dataclass(frozen=True)
class Catalogue:
    """The calibrations of a store."""

    location: str
    calibrations: tuple[CalibrationSummary, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "store": self.location,
            "calibrations": [dataclasses.asdict(summary) for summary in self.calibrations],
        }


@dataclass(frozen=True)
class ShownCalibration:
    """One calibration and what has to be said about it."""

    calibration: Calibration
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the same as an export, with the notes of the day."""
        return {**json.loads(calibration_to_json(self.calibration)), "notes": list(self.notes)}


def list_calibrations(store: Store) -> Catalogue:
    """All calibrations, oldest first."""
    return Catalogue(store.location, tuple(sorted(store.calibrations(), key=lambda summary: summary.created_at)))


def show_calibration(store: Store, name: str | None) -> ShownCalibration:
    """One calibration; the newest without a name."""
    calibration = find_calibration(store, name)
    return ShownCalibration(calibration, validity_notes(calibration))


def export_calibration(store: Store, name: str) -> str:
    """One calibration as JSON text."""
    return calibration_to_json(store.calibration(name))


def load_calibration(store: Store, file: Path, name: str | None) -> Calibration:
    """Store what `export_calibration` wrote, under its own name or another.

    Raises:
        BadInput: the file cannot be read, is no calibration, or its name is taken.
    """
    calibration = calibration_from_json(_read(file))
    if name is not None:
        calibration = dataclasses.replace(calibration, name=name)
    store.add_calibration(calibration, [])
    return calibration


def _read(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadInput(f"{file} has {size} bytes; a calibration has at most {MAX_FILE_BYTES}")
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from None


def write_text(file: Path, text: str) -> None:
    """Write a text file.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error.strerror}") from None
