"""Measure a device, fit its constants, and store both."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from calibration.calibrate import Report, fit
from calibration.design import default_cases, model_calls
from db.store import Store
from oracle.constants import Calibration
from oracle.errors import BadInput
from oracle.loading import load_model
from oracle.pricing import LayerCall
from profiler.backends.base import open_backend
from profiler.run import RunSettings, RunSummary, measure
from profiler.stopping import StoppingRule
from service.requests import CalibrateRequest, Progress, silent

QUICK_BUDGET_S = 300.0
"""Enough for two visits of most quick cases on two cores."""

FULL_BUDGET_S = 900.0

TARGET = 0.03
"""Half-width of a median's 95 % interval at which a visit ends: less than what the machine drifts between visits."""

VISIT_S = 0.15
"""Sampling time of one visit: several short visits show the drift between them, which one long visit hides."""

CALIBRATION_MODELS = (("resnet50", 8), ("alexnet", 32))
"""The models whose own shapes a default calibration measures, with the samples of one step."""


@dataclass(frozen=True)
class CalibrateResult:
    """What was measured, fitted and stored.

    Args:
        elapsed_s: wall time of measuring and fitting.
        store: where it was stored.
    """

    calibration: Calibration
    report: Report
    run: RunSummary
    elapsed_s: float
    store: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.calibration.name,
            "device": self.calibration.device,
            "store": self.store,
            "elapsed_s": self.elapsed_s,
            "measured": self.run.measured,
            "visits": self.run.visits,
            "unmeasured": [{"case": item.case.to_dict(), "reason": item.reason} for item in self.run.unmeasured],
            "notes": list(self.calibration.notes),
        }


def calibrate(store: Store, request: CalibrateRequest, progress: Progress = silent) -> CalibrateResult:
    """Measure the default cases of a device within a budget, fit them, and store the calibration.

    Every measurement is stored as soon as it is taken; the calibration is stored whole or not at all.

    Raises:
        BadInput: the name is taken. UnknownName: no such kind of device.
        MissingDependency: torch or scikit-learn is not installed.
    """
    started_s = time.monotonic()
    if request.name is not None and store.has_calibration(request.name):
        raise BadInput(f"there is a calibration '{request.name}' already; choose another --name")
    backend = open_backend(request.device)
    models = [(load_model(name), samples) for name, samples in CALIBRATION_MODELS]
    cases = default_cases(models, request.execution, quick=request.quick)
    counts = sum((Counter(model_calls(graph, samples)) for graph, samples in models), Counter[LayerCall]())
    weights = [float(max(1, counts[case.call])) for case in cases]
    budget_s = request.budget_s or (QUICK_BUDGET_S if request.quick else FULL_BUDGET_S)
    run_id = store.begin_run("calibrate", backend.device, backend.environment())
    settings = RunSettings(run_id, budget_s, request.seed, StoppingRule(target=TARGET, max_s=VISIT_S))
    status = "interrupted"
    try:
        run = measure(cases, backend, store.add_measurement, settings, weights, progress)
        status = "finished"
    finally:
        store.finish_run(run_id, status)
    if not run.measured:
        raise BadInput(f"nothing could be measured within {budget_s:g} s; give a longer --budget")
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    name = request.name or free_name(store, backend.device, created_at)
    calibration, report = fit(store.measurements(run_id), name, created_at=created_at)
    store.add_calibration(calibration, [run_id])
    return CalibrateResult(calibration, report, run, time.monotonic() - started_s, store.location)


def free_name(store: Store, device: str, created_at: str) -> str:
    """A name that is not taken, made of the device and the date."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((?:r|tm)\)", "", device.lower())).strip("-")
    base = f"{slug}-{created_at[:10]}"
    name, count = base, 1
    while store.has_calibration(name):
        count += 1
        name = f"{base}-{count}"
    return name
