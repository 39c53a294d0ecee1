"""Time the layers of models inside real steps, and make a calibration of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from calibration.insitu import ProfiledStep, with_profiles
from db.calibrations import PROFILE
from db.store import Store
from oracle.constants import Calibration
from oracle.errors import BadInput
from oracle.layer import Phase
from profiler.backends.base import open_backend
from profiler.insitu.profile import Profile, measurements_of
from profiler.insitu.profile import profile as profile_layers
from profiler.measurement import Measurement
from profiler.state_sampler import sampling
from profiler.steps.serial import StepSettings
from profiler.stopping import StoppingRule
from service.measuring_requests import ProfileRequest, Progress, silent
from service.models import find_question
from service.predicting import find_calibration

MOST_STEPS = 50


@dataclass(frozen=True)
class LayerRow:
    """A layer of a profiled model: seconds of each of its phases."""

    node: str
    kind: str
    seconds: dict[Phase, float]

    @property
    def total_s(self) -> float:
        """All phases."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class ProfileResult:
    """What was profiled, where the measurements are, the calibration that was made of them, and how much to print."""

    profiles: tuple[Profile, ...]
    calibration: Calibration | None
    run_id: str
    store: str
    all_layers: bool = False

    def rows(self, found: Profile) -> list[LayerRow]:
        """The layers of a profile, the longest first."""
        rows: dict[str, LayerRow] = {}
        for time in found.times:
            row = rows.setdefault(time.node, LayerRow(time.node, time.layer.kind, {}))
            row.seconds[time.phase] = time.ordinary_s
        return sorted(rows.values(), key=lambda row: -row.total_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "store": self.store,
            "run": self.run_id,
            "calibration": None if self.calibration is None else self.calibration.name,
            "profiles": [self._profile(found) for found in self.profiles],
        }

    def _profile(self, found: Profile) -> dict[str, Any]:
        return {
            "model": found.graph.name,
            "batch": found.samples,
            "step_s": found.step_s,
            "steps": len(found.forward_s),
            "layers_s": found.layers_s,
            "phases_s": {phase.value: found.phase_s(phase) for phase in Phase},
            "rest_s": dict(found.rest_s),
            "peak_bytes": found.peak_bytes,
            "page_faults": found.page_faults,
            "layers": [
                {
                    "layer": row.node,
                    "kind": row.kind,
                    "seconds": {phase.value: seconds for phase, seconds in row.seconds.items()},
                }
                for row in self.rows(found)
            ],
        }


def profile(store: Store, request: ProfileRequest, progress: Progress = silent) -> ProfileResult:
    """Time the layers of each model in situ and store them; with a name, make a calibration that uses them.

    Raises:
        BadInput: the name is taken, the calibration is of another device, or the steps of a model differ.
        NotCalibrated: a name is given and there is no calibration.
    """
    if request.name is not None and store.has_calibration(request.name):
        raise BadInput(f"there is a calibration '{request.name}' already; choose another --name")
    base = None if request.name is None else find_calibration(store, request.calibration)
    questions = [find_question(name, samples) for name, samples in request.models]
    backend = open_backend(request.device)
    if base is not None and base.device != backend.device:
        raise BadInput(f"calibration '{base.name}' is of {base.device}, but this is {backend.device}")
    run_id = store.begin_run(PROFILE, backend.device, backend.environment())
    rule = StoppingRule(min_samples=5, max_samples=MOST_STEPS, max_s=request.budget_s)
    status, profiles, steps = "interrupted", [], []
    try:
        for index, question in enumerate(questions):
            progress(index, len(questions), f"{question.graph.name}, {question.samples} samples a step")
            with sampling(backend) as sampler, sampler.window() as window:
                found = profile_layers(question, request.execution, backend, StepSettings(run_id, rule))
            taken = measurements_of(found, run_id, backend.device, backend.environment(), rule)
            measurements = tuple(map(window.summary.added_to, taken))
            store.add_measurements(measurements)
            profiles.append(found)
            steps.append(_step(found, measurements))
        status = "finished"
    finally:
        store.finish_run(run_id, status)
    progress(len(questions), len(questions), "done")
    calibration = None
    if base is not None and request.name is not None:
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        calibration = with_profiles(base, steps, request.name, created_at)
        store.add_calibration(calibration, [*store.calibration_runs(base.name), run_id])
    return ProfileResult(tuple(profiles), calibration, run_id, store.location)


def _step(found: Profile, measurements: tuple[Measurement, ...]) -> ProfiledStep:
    return ProfiledStep(found.graph, found.samples, found.execution, measurements, found.parts_s)
