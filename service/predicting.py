"""Predict training steps from a stored calibration."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from calibration.timers import CalibratedTimer
from db.store import Store
from oracle.constants import Calibration
from oracle.errors import BadInput, NotCalibrated
from oracle.estimate import Estimate
from oracle.links import LinkTimer
from oracle.loading import load_model
from oracle.machine import Cluster, load_cluster, parse_link
from oracle.model import ModelGraph
from oracle.plan import Job
from oracle.project import Projection, project
from oracle.strategies import strategy
from service.requests import PredictRequest

STALE_DAYS = 90
"""Age from which a calibration is called old: drivers, clocks and cooling change."""


@dataclass(frozen=True)
class PredictResult:
    """Projections, the calibration behind them, and what has to be said about it."""

    calibration: Calibration
    projections: tuple[Projection, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "calibration": self.calibration.name,
            "device": self.calibration.device,
            "created_at": self.calibration.created_at,
            "projections": [projection.to_dict() for projection in self.projections],
            "notes": list(self.notes),
        }


def predict(store: Store, request: PredictRequest) -> PredictResult:
    """Predict every model at every number of devices.

    Raises:
        NotCalibrated: the store is empty, or the calibration lacks a kind of layer.
        UnknownName: no such calibration, model or strategy.
    """
    calibration = find_calibration(store, request.calibration)
    timer = CalibratedTimer(calibration, request.execution)
    cluster = _cluster(request, calibration.device)
    projections = tuple(
        _project(request, name, devices, cluster, timer) for name in request.models for devices in request.devices
    )
    return PredictResult(calibration, projections, validity_notes(calibration))


def _project(request: PredictRequest, model: str, devices: int, cluster: Cluster, timer: CalibratedTimer) -> Projection:
    chosen = strategy(request.strategy or ("serial" if devices == 1 else "data"))
    job = Job(
        model=load_model(model),
        global_batch=request.global_batch(devices),
        devices=devices,
        cluster=cluster,
        execution=request.execution,
        dataset_samples=request.dataset_samples,
    )
    return project(job, chosen, timer, LinkTimer(cluster))


def _cluster(request: PredictRequest, device: str) -> Cluster:
    if request.cluster is not None:
        return load_cluster(request.cluster)
    if request.link is not None:
        return Cluster.of_link(device, parse_link(request.link), max(request.devices))
    return Cluster("one device", device)


def serial_projection(model: ModelGraph, samples: int, timer: CalibratedTimer) -> Projection:
    """One step of a model on one device of the calibrated kind."""
    cluster = Cluster("one device", timer.calibration.device)
    job = Job(model=model, global_batch=samples, devices=1, cluster=cluster, execution=timer.execution)
    return project(job, strategy("serial"), timer, LinkTimer(cluster))


def feasible_step(projection: Projection) -> Estimate:
    """The step of a projection that can be done, in seconds.

    Raises:
        BadInput: it cannot; the text says why.
    """
    if projection.step is None:
        raise BadInput(projection.reason)
    return projection.step


def find_calibration(store: Store, name: str | None) -> Calibration:
    """The calibration of a name, or the newest.

    Raises:
        NotCalibrated: there is none at all. UnknownName: none of that name.
    """
    if name is not None:
        return store.calibration(name)
    summaries = store.calibrations()
    if not summaries:
        raise NotCalibrated(f"no calibration in {store.location}; run 'stepgauge calibrate', or 'stepgauge load FILE'")
    return store.calibration(max(summaries, key=lambda summary: summary.created_at).name)


def validity_notes(calibration: Calibration) -> tuple[str, ...]:
    """What a reader of any number from this calibration has to know."""
    notes = list(calibration.notes)
    age = datetime.now(UTC) - datetime.fromisoformat(calibration.created_at)
    if age.days >= STALE_DAYS:
        notes.append(f"the calibration is {age.days} days old; measure again before you rely on it")
    return tuple(notes)
