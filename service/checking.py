"""Say what of this machine would spoil a calibration, and what is missing; refuse to calibrate there, or label it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from db.location import default_url
from db.store import Store
from oracle.errors import BadInput, StepgaugeError, UnknownName
from profiler.backends import BACKENDS
from profiler.checks import check_machine, conditions
from profiler.findings import Finding


@dataclass(frozen=True)
class Report:
    """What was found."""

    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether nothing stands in the way of a calibration."""
        return all(finding.level not in ("refuse", "fail") for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"usable": self.usable, "findings": [dataclasses.asdict(finding) for finding in self.findings]}


def examine(device: str, db: str | None) -> Report:
    """Check the machine and the store.

    Raises:
        UnknownName: no such kind of device.
    """
    if device not in BACKENDS:
        raise UnknownName("device", device, BACKENDS)
    return Report((*check_machine(device), _check_store(db or default_url())))


def labels_for(device: str, force: bool) -> tuple[str, ...]:
    """Look at this machine before it is measured; what a calibration taken now has to say of itself.

    Args:
        device: the kind that is to be measured; nothing of this machine matters to a simulated one.
        force: go on where something else than the device would be measured.

    Raises:
        BadInput: nothing can be measured, or something else would be.
    """
    return () if device == "simulated" else labels_of(conditions(device), force)


def labels_of(findings: Sequence[Finding], force: bool) -> tuple[str, ...]:
    """What follows from findings: one label for what was forced, one for what is doubtful.

    Args:
        findings: of this machine.
        force: go on where something else than the device would be measured.

    Raises:
        BadInput: nothing can be measured, or something else would be.
    """
    failed = [finding for finding in findings if finding.level == "fail"]
    refused = [finding for finding in findings if finding.level == "refuse"]
    if failed:
        raise BadInput(f"nothing can be measured here: {_said(failed)}")
    if refused and not force:
        raise BadInput(f"what is measured now would not be the device alone: {_said(refused)}; --force goes on")
    doubtful = [finding for finding in findings if finding.level == "warn"]
    forced = (f"measured in spite of {_said(refused)}",) if refused else ()
    return (*forced, *((f"measured with {_said(doubtful)}",) if doubtful else ()))


def _said(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{finding.subject}: {finding.text}" for finding in findings)


def _check_store(url: str) -> Finding:
    try:
        with Store.open(url) as store:
            count = len(store.calibrations())
            return Finding("ok", "store", f"{store.location}: {count} calibrations", "")
    except StepgaugeError as error:
        return Finding("fail", "store", str(error), "choose another database with --db")
