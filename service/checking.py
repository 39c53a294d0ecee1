"""Say what of this machine would spoil a calibration, and what is missing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from db.location import default_url
from db.store import Store
from oracle.errors import StepgaugeError
from profiler.checks import Finding, check_machine


@dataclass(frozen=True)
class Report:
    """Findings, from good to bad."""

    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether nothing stands in the way of a calibration."""
        return all(finding.level != "fail" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"usable": self.usable, "findings": [dataclasses.asdict(finding) for finding in self.findings]}


def examine(device: str, db: str | None) -> Report:
    """Check the machine and the store."""
    return Report((*check_machine(device), _check_store(db or default_url())))


def _check_store(url: str) -> Finding:
    try:
        with Store.open(url) as store:
            count = len(store.calibrations())
            return Finding("ok", "store", f"{store.location}: {count} calibrations", "")
    except StepgaugeError as error:
        return Finding("fail", "store", str(error), "choose another database with --db")
