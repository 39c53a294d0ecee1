"""Predict training steps from a stored calibration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from calibration.timers import CalibratedTimer
from db.reading import Reader
from oracle.autograd import OVERHEADS, Autograd
from oracle.constants import Calibration
from oracle.errors import BadInput, NotCalibrated
from oracle.estimate import Estimate
from oracle.links import LinkTimer
from oracle.machine import Cluster, load_cluster, parse_link
from oracle.memory import MemoryRule
from oracle.model import ModelGraph
from oracle.plan import Job
from oracle.predictor import Predictor
from oracle.pricing import TransferTimer
from oracle.project import project
from oracle.projection import Projection
from oracle.strategies import strategy
from oracle.strategies.choices import parse_strategy
from profiler.installed import installed
from service.models import find_model
from service.requests import PredictRequest, Target
from service.staleness import stale_notes

if TYPE_CHECKING:  # a prediction without a measured network does not load what prices one
    from calibration.link_pricing import LinkTimer as MeasuredLinks


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


def predict(store: Reader, request: PredictRequest) -> PredictResult:
    """Predict every model at every number of devices.

    Raises:
        NotCalibrated: the store is empty, or the calibration lacks a kind of layer.
        UnknownName: no such calibration, model or strategy.
    """
    means = look_up(store, request)
    projections = tuple(
        _project(request, name, devices, means) for name in request.models for devices in request.devices
    )
    return PredictResult(means.calibration, projections, means.notes)


@dataclass(frozen=True)
class Means:
    """What a request is answered with.

    Args:
        calibration: of the device.
        cluster: the machine.
        predictor: prices jobs on it.
        notes: what a reader of any answer has to know.
    """

    calibration: Calibration
    cluster: Cluster
    predictor: Predictor
    notes: tuple[str, ...]


def look_up(store: Reader, target: Target) -> Means:
    """Find the calibration, the network and the machine that a request names.

    Raises:
        NotCalibrated: the store is empty.
        UnknownName: no such calibration, network or environment.
        BadInput: the cluster file or the link cannot be read.
    """
    calibration = find_calibration(store, target.calibration)
    measured = _network(store, target)
    cluster = cluster_of(target, calibration, measured)

    def links(named: Cluster) -> TransferTimer:
        return LinkTimer(named) if measured is None else measured

    notes = validity_notes(calibration, cluster)
    if measured is not None:
        notes += (f"transfers are priced by the network '{target.network}' of {measured.calibration.fabric}",)
    predictor = Predictor(CalibratedTimer(calibration, target.execution), links, memory_rule(calibration))
    return Means(calibration, cluster, predictor, notes)


def _project(request: PredictRequest, model: str, devices: int, means: Means) -> Projection:
    chosen = parse_strategy(("serial" if devices == 1 else "data") if request.strategy is None else request.strategy)
    job = Job(
        model=find_model(model),
        global_batch=request.global_batch(devices),
        devices=devices,
        cluster=means.cluster,
        execution=request.execution,
        dataset_samples=request.dataset_samples,
    )
    return means.predictor.project(job, chosen, suggest_batch=True)


def _network(store: Reader, target: Target) -> MeasuredLinks | None:
    """The curves of the network that a request names, or None."""
    if target.network is None:
        return None
    from service.network_pricing import NetworkChoice, network_timer

    dtype = {"tf32": "fp32"}.get(target.execution.precision, target.execution.precision)
    return network_timer(store, NetworkChoice(target.network, target.environment, dtype))


def cluster_of(target: Target, calibration: Calibration, measured: MeasuredLinks | None = None) -> Cluster:
    """The machine that a request names, with the memory of a device where anything says it.

    Args:
        target: the request.
        calibration: of the device.
        measured: the network's curves, which stand for a cluster where the request names none.

    Raises:
        BadInput: the cluster file or the link cannot be read.
    """
    cluster = _named_cluster(target, calibration.device, measured)
    known = calibration.environment.get("gpu_memory_bytes", "") if cluster.device == calibration.device else ""
    measured_bytes = float(known) if known.isdecimal() else None
    return replace(cluster, memory_bytes=target.memory_bytes or cluster.memory_bytes or measured_bytes)


def _named_cluster(target: Target, device: str, measured: MeasuredLinks | None) -> Cluster:
    if target.cluster is not None:
        return load_cluster(target.cluster)
    if target.link is not None:
        return Cluster.of_link(device, parse_link(target.link), max(target.devices))
    if measured is not None:
        from service.network_pricing import flat_cluster

        return flat_cluster(measured, device, max(target.devices))
    return Cluster("one device", device)


def memory_rule(calibration: Calibration) -> MemoryRule:
    """What torch holds on the kind of device that was calibrated: a calibration of a GPU names its CUDA version."""
    return Autograd(OVERHEADS["cuda" if "cuda" in calibration.environment else "cpu"])


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


def find_calibration(store: Reader, name: str | None) -> Calibration:
    """The calibration of a name, or the newest; one for the models of a profile only where there is no other.

    Raises:
        NotCalibrated: there is none at all. UnknownName: none of that name.
    """
    if name is not None:
        return store.calibration(name)
    newest = store.newest_calibration()
    if newest is None:
        raise NotCalibrated(f"no calibration in {store.location}; run 'stepgauge calibrate', or 'stepgauge load FILE'")
    return store.calibration(newest)


def validity_notes(calibration: Calibration, cluster: Cluster | None = None) -> tuple[str, ...]:
    """What a reader of any number from this calibration (for this cluster) has to know."""
    notes = []
    if cluster is not None and cluster.device != calibration.device:
        # First: no other note can make up for kernels of another device.
        notes.append(f"the cluster has {cluster.device}, but the calibration is of {calibration.device}")
    return (*notes, *calibration.notes, *stale_notes(calibration.environment, calibration.created_at, installed()))
