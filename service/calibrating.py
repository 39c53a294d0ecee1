"""Measure a device, fit its constants, and store both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from db.store import Store
from oracle.constants import Calibration
from oracle.errors import BadInput, MissingDependency
from profiler.backends.base import Backend, open_backend
from profiler.measurement import Measurement
from profiler.run import RunSummary
from profiler.state_sampler import mean_power_w
from service.agenda import run_labels
from service.checking import labels_for
from service.fitting import newest_calibrations
from service.measuring import Clock, unmeasured_notes, unmeasured_values, working_on
from service.measuring_requests import CalibrateRequest, Progress, silent

if TYPE_CHECKING:
    from calibration.calibrate import Report

FITTING = ("sklearn", "scipy")
"""What a fit needs and a measurement does not."""


@dataclass(frozen=True)
class CalibrateResult:
    """What was measured, fitted and stored.

    Args:
        elapsed_s: wall time of measuring and fitting.
        store: where it was stored.
        resumed: whether an earlier session had begun the run.
    """

    calibration: Calibration
    report: Report
    run: RunSummary
    elapsed_s: float
    store: str
    resumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.calibration.name,
            "device": self.calibration.device,
            "store": self.store,
            "run": self.run.run_id,
            "resumed": self.resumed,
            "elapsed_s": self.elapsed_s,
            "measured": self.run.measured,
            "visits": self.run.visits,
            "unmeasured": unmeasured_values(self.run.unmeasured),
            "notes": list(self.calibration.notes),
        }


def calibrate(
    store: Store, request: CalibrateRequest, progress: Progress = silent, backend: Backend | None = None
) -> CalibrateResult:
    """Measure the cases of a device within a budget, fit them, and store the calibration.

    Every measurement is stored as soon as it is taken; the calibration is stored whole or not at all, together with
    the end of its run.

    Args:
        store: where to.
        request: what to measure, and for how long.
        progress: told of every visit.
        backend: the device, where it is open already; else the request says which kind to open.

    Raises:
        BadInput: the name is taken, or the run cannot go on here. UnknownName: no such device, model, strategy or run.
        MissingDependency: torch or scikit-learn is not installed.
    """
    clock = Clock.started()
    _check_libraries()
    _check_free(store, request.name)
    labels = labels_for(request.device, request.force)
    backend = backend or open_backend(request.device)
    with working_on(store, request, backend, labels) as session:
        agenda = session.agenda
        _check_free(store, agenda.name)
        run = session.measure(clock, clock.reserve_s(len(agenda.cases)), progress)
        if not run.measured:
            raise BadInput(f"nothing could be measured within {agenda.budget_s:g} s; give a longer --budget")
        progress(1, 1, "fitting")
        from calibration.calibrate import fit  # a second of imports that measuring does not wait for

        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        name = agenda.name or free_name(store, backend.device, created_at)
        measurements = store.measurements(run.run_id)
        others = newest_calibrations(store) if request.prior else []
        calibration, report = fit(measurements, name, created_at=created_at, others=others)
        said = (*run_labels(store.facts(run.run_id)), *unmeasured_notes(run), *power_notes(measurements))
        calibration = replace(calibration, notes=(*said, *calibration.notes))
        store.add_calibration(calibration, [run.run_id], finishes=run.run_id)
    return CalibrateResult(calibration, report, run, clock.elapsed_s, store.location, resumed=session.resumed)


def power_notes(measurements: Iterable[Measurement]) -> Iterator[str]:
    """The mean power of the device while it worked, where it was seen."""
    power_w = mean_power_w(measurements)
    if power_w is not None:
        yield f"mean power of the device while it was measured: {power_w:.0f} W (--power also wants the node's share)"


def _check_libraries() -> None:
    """Say what is missing before anything is measured."""
    for library in FITTING:
        if find_spec(library) is None:
            raise MissingDependency(library, "measure")


def _check_free(store: Store, name: str | None) -> None:
    if name is not None and store.has_calibration(name):
        raise BadInput(f"there is a calibration '{name}' already; choose another --name")


def free_name(store: Store, device: str, created_at: str) -> str:
    """A name that is not taken, made of the device and the date."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((?:r|tm)\)", "", device.lower())).strip("-")
    base = f"{slug}-{created_at[:10]}"
    name, count = base, 1
    while store.has_calibration(name):
        count += 1
        name = f"{base}-{count}"
    return name
