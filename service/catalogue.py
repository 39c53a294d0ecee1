"""List, show, export and load stored calibrations."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibration.link_values import LinkCalibration
from db.calibrations import CalibrationSummary
from db.networks import Network, NetworkSummary
from db.reading import Reader
from oracle.constants import Calibration
from oracle.errors import BadInput
from oracle.interchange import calibration_from_json, calibration_to_json
from profiler.installed import Installed, installed
from service.networks import FORMAT, from_document, link_calibration, network_names, stored_form, to_json
from service.predicting import find_calibration, validity_notes
from service.redacting import Redaction, redacted_calibration, redacted_network
from service.staleness import stale_notes

if TYPE_CHECKING:  # what only reads calibrations does not load what stores them
    from db.store import Store

MAX_FILE_BYTES = 64 * 2**20
"""Far above any calibration; what is larger is something else."""


@dataclass(frozen=True)
class Catalogue:
    """The calibrations of a store, of devices and of networks, looked at from this machine (`here`)."""

    location: str
    calibrations: tuple[CalibrationSummary, ...]
    networks: tuple[NetworkSummary, ...]
    here: Installed

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "store": self.location,
            "calibrations": [self._values(summary) for summary in self.calibrations],
            "networks": [dataclasses.asdict(summary) for summary in self.networks],
        }

    def stale(self, summary: CalibrationSummary) -> tuple[str, ...]:
        """Why a calibration may not hold any more."""
        return stale_notes(summary.environment, summary.created_at, self.here)

    def _values(self, summary: CalibrationSummary) -> dict[str, Any]:
        values = dataclasses.asdict(summary)
        del values["environment"]  # `show` has it
        return {**values, "stale": list(self.stale(summary))}


@dataclass(frozen=True)
class ShownCalibration:
    """One calibration and what has to be said about it."""

    calibration: Calibration
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the same as an export, with the notes of the day."""
        return {**json.loads(calibration_to_json(self.calibration)), "notes": list(self.notes)}


@dataclass(frozen=True)
class ShownNetwork:
    """One network, and whether every measured size is to be shown."""

    network: Network
    collectives: bool = False

    @property
    def calibration(self) -> LinkCalibration:
        """What was fitted."""
        return link_calibration(self.network)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the same as an export."""
        document: dict[str, Any] = json.loads(to_json(self.network))
        return document


@dataclass(frozen=True)
class Loaded:
    """A calibration that came from elsewhere: its name, the device or fabric it is of, how many constants it has."""

    name: str
    of: str
    constants: int


def list_calibrations(store: Reader) -> Catalogue:
    """All calibrations, oldest first."""
    devices = sorted(store.calibrations(), key=lambda summary: summary.created_at)
    networks = sorted(store.networks(), key=lambda summary: summary.created_at)
    return Catalogue(store.location, tuple(devices), tuple(networks), installed())


def show_calibration(store: Reader, name: str | None, collectives: bool = False) -> ShownCalibration | ShownNetwork:
    """One calibration; the newest of a device without a name.

    Args:
        store: where it is.
        name: of a device's or a network's calibration.
        collectives: show every measured size of a network.
    """
    if name is not None and name in network_names(store):
        return ShownNetwork(store.network(name), collectives)
    calibration = find_calibration(store, name)
    return ShownCalibration(calibration, validity_notes(calibration))


def export_calibration(store: Reader, name: str, how: Redaction | None = None) -> str:
    """One calibration as JSON text.

    Args:
        how: to leave out what could tell the site; None leaves everything in.
    """
    if name in network_names(store):
        network = store.network(name)
        if how is None:
            return to_json(network)
        return to_json(stored_form(redacted_network(link_calibration(network), how), network.created_at))
    calibration = store.calibration(name)
    return calibration_to_json(calibration if how is None else redacted_calibration(calibration, how))


def load_calibration(store: Store, file: Path, name: str | None) -> Loaded:
    """Store what `export_calibration` wrote, under its own name or another; its format says which kind it is.

    Raises:
        BadInput: the file cannot be read, is no calibration, or its name is taken.
    """
    text = _read(file)
    document = _document(text)
    if document.get("format") == FORMAT:
        network = from_document(document, name)
        store.add_network(network, [])
        return Loaded(network.name, network.fabric, len(network.constants))
    calibration = calibration_from_json(text)
    if name is not None:
        calibration = dataclasses.replace(calibration, name=name)
    store.add_calibration(calibration, [])
    return Loaded(calibration.name, calibration.device, len(calibration.constants))


def _document(text: bytes) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none, for `calibration_from_json` to complain about."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _read(file: Path) -> bytes:
    try:
        if file.exists() and not file.is_file():
            raise BadInput(f"{file} is no regular file")
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BadInput(f"{file} has {size} bytes; a calibration has at most {MAX_FILE_BYTES}")
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from None


def write_text(file: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        BadInput: it cannot be written, or is a database or no regular file.
    """
    part = file.with_name(f"{file.name}.part")
    try:
        if file.exists() and (not file.is_file() or file.open("rb").read(16).startswith(b"SQLite format 3")):
            raise BadInput(f"{file} is a database or no regular file; it is not overwritten")
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"cannot write {file}: {error.strerror}") from None
