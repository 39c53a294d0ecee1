"""Fit what is stored: collectives to the calibration of a network, kernels to that of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibration.link_sources import fabric_of, link_rows
from calibration.link_values import LinkCalibration
from db.reading import Reader
from db.store import Store
from oracle.constants import Calibration
from oracle.errors import BadInput, UnknownName
from oracle.layer import Phase
from profiler.case import call_from_case
from profiler.collectives.sides import MICRO as OVERLAP
from profiler.importers.files import content_sha256
from profiler.measurement import Measurement
from profiler.steps.canaries import CANARY
from service.agenda import run_labels
from service.conditions import parse_condition
from service.network_comparing import NetworkComparison, compared, earlier
from service.networks import stored_form

COLLECTIVE = "collective"
"""The microbenchmark of every collective; what runs beside kernels is an overlap."""


@dataclass(frozen=True)
class FitRequest:
    """Fit stored measurements under a name.

    Args:
        sources: runs, or files that were imported.
        name: of the new calibration.
        where: `KEY=VALUE`, `KEY<=NUMBER`...; only measurements of which all hold are taken.
        job_keys: what of an identity marks a job and no environment; see `calibration.link_sources`.
        prior: let stored calibrations of other devices inform kernel families with few shapes.
    """

    sources: tuple[str, ...]
    name: str
    where: tuple[str, ...] = ()
    job_keys: tuple[str, ...] = ()
    prior: bool = True

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise BadInput("a calibration's name must not be empty")
        for text in self.where:
            parse_condition(text)


@dataclass(frozen=True)
class FitResult:
    """What was fitted and stored.

    Args:
        calibration: of a device, or None.
        network: of a network, or None.
        runs: that were read.
        measurements: that were taken; left_out: of the same kind, but no layer that can be priced.
        drift: of a network against the newest earlier one of the same fabric, or None.
    """

    store: str
    calibration: Calibration | None
    network: LinkCalibration | None
    runs: tuple[str, ...]
    measurements: int
    left_out: int
    drift: NetworkComparison | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be said of the fit."""
        fitted = self.calibration or self.network
        return () if fitted is None else fitted.notes

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values: dict[str, Any] = {
            "store": self.store,
            "runs": list(self.runs),
            "measurements": self.measurements,
            "left_out": self.left_out,
            "notes": list(self.notes),
        }
        if self.network is not None:
            about = {"kind": "network", "name": self.network.name, "fabric": self.network.fabric}
            errors = {curve.key.text: curve.held_out_error for curve in self.network.curves}
            values |= {**about, "curves": len(self.network.curves), "held_out_errors": errors}
            values["drift"] = None if self.drift is None else self.drift.to_dict()
        if self.calibration is not None:
            values |= {"kind": "device", "name": self.calibration.name, "device": self.calibration.device}
            values |= {"constants": len(self.calibration.constants), "shapes": len(self.calibration.shapes)}
        return values


def fit_stored(store: Store, request: FitRequest) -> FitResult:
    """Fit the measurements of some runs and store the calibration.

    Raises:
        BadInput: the name is taken, nothing is left to fit, or what is left may not be fitted together.
        UnknownName: no such run or imported file.
    """
    if store.has_calibration(request.name):
        raise BadInput(f"there is a calibration '{request.name}' already; choose another --name")
    runs = tuple(dict.fromkeys(find_run(store, source) for source in request.sources))
    wanted = chosen([item for run in runs for item in store.measurements(run)], request.where)
    collectives = [item for item in wanted if item.micro in (COLLECTIVE, OVERLAP)]
    kernels = [item for item in wanted if _is_kernel(item)]
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    if collectives and kernels:
        raise BadInput("collectives and kernels are two calibrations; choose with --where micro=collective, or a phase")
    canaries = [item for item in wanted if item.micro == CANARY]
    left_out = len(wanted) - len(collectives) - len(kernels) - len(canaries)
    if collectives:
        network = _fit_network(collectives, request)
        before = earlier(store, network)
        store.add_network(stored_form(network, created_at), runs)
        drift = None if before is None else compared(before, network)
        return FitResult(store.location, None, network, runs, len(collectives), left_out, drift)
    if not kernels:
        raise BadInput(f"no collective and no kernel of a layer among {len(wanted)} measurements of {', '.join(runs)}")
    known = newest_calibrations(store)
    calibration = _fit_device([*kernels, *canaries], request.name, created_at, known if request.prior else [])
    labels = dict.fromkeys(label for run in runs for label in run_labels(store.facts(run)))
    calibration = replace(calibration, notes=(*labels, *_unlike(calibration, known), *calibration.notes))
    store.add_calibration(calibration, runs)
    return FitResult(store.location, calibration, None, runs, len(kernels) + len(canaries), left_out)


def _fit_network(collectives: Sequence[Measurement], request: FitRequest) -> LinkCalibration:
    from calibration.link_overlap import fit_overlap
    from calibration.links import fit_links

    alone = [item for item in collectives if item.micro == COLLECTIVE]
    network = fit_links(link_rows(alone, request.job_keys), request.name, fabric_of(collectives[0]))
    beside = [item for item in collectives if item.micro == OVERLAP]
    return replace(network, overlap=fit_overlap(beside, request.job_keys))


def _fit_device(
    measurements: Sequence[Measurement], name: str, created_at: str, others: Sequence[Calibration]
) -> Calibration:
    from calibration.calibrate import fit

    return fit(measurements, name, created_at=created_at, others=others)[0]


def _unlike(calibration: Calibration, known: Sequence[Calibration]) -> tuple[str, ...]:
    from calibration.unlike import unlike_notes

    return unlike_notes(calibration, known)


def newest_calibrations(store: Reader) -> list[Calibration]:
    """The newest calibration of every device in a store."""
    newest = {summary.device: summary.name for summary in sorted(store.calibrations(), key=lambda s: s.created_at)}
    return [store.calibration(name) for name in newest.values()]


def find_run(store: Store, source: str) -> str:
    """The run of a text: its id, or the name or path of a file that was imported.

    Raises:
        BadInput: several imported files have that name. UnknownName: no run of that text.
    """
    runs = [run.id for run in store.runs()]
    if source in runs:
        return source
    files = store.imported_files()
    named = [file for file in files if file.name == Path(source).name]
    if Path(source).is_file():
        sha256 = content_sha256(source)
        named = [file for file in files if file.sha256 == sha256]
        if not named:
            raise BadInput(f"{source} was not imported yet; run 'stepgauge import {source}' first")
    if len(named) > 1:
        raise BadInput(f"{len(named)} imported files are called {source}: {', '.join(file.run_id for file in named)}")
    if not named:
        raise UnknownName("run", source, [*(file.name for file in files), *runs[-10:]])
    return named[0].run_id


def chosen(measurements: Sequence[Measurement], where: Sequence[str]) -> list[Measurement]:
    """The measurements that say everything that is asked.

    Args:
        measurements: of any kind.
        where: conditions (`service.conditions`); a key is device, micro, phase, execution, flag, or one of an identity
            or a case.

    Raises:
        BadInput: none does; the text says which values there are.
    """
    found = list(measurements)
    for condition in map(parse_condition, where):
        key = condition.key
        kept = [item for item in found if (said := _said(item, key)) and condition.holds(said)]
        if not kept:
            known = sorted({said for item in found for said in _said(item, key)})
            there = f"there are {', '.join(known[:20])}" if known else f"none of them says anything of '{key}'"
            raise BadInput(f"no measurement has {condition.text}; {there}")
        found = kept
    return found


_FIELDS: dict[str, Callable[[Measurement], tuple[str, ...]]] = {
    "device": lambda item: (item.device,),
    "micro": lambda item: (item.micro,),
    "phase": lambda item: (item.phase,),
    "execution": lambda item: (item.execution,),
    "flag": lambda item: item.flags,
}


def _said(measurement: Measurement, key: str) -> tuple[str, ...]:
    if key in _FIELDS:
        return _FIELDS[key](measurement)
    for values in (measurement.environment.identity, measurement.case):
        if key in values:
            return (str(values[key]),)
    return ()


def _is_kernel(measurement: Measurement) -> bool:
    """Whether a measurement is of a layer's own kernels (not of an operation that no layer has)."""
    if "layer" not in measurement.case:
        return False
    try:
        call = call_from_case(measurement.case, measurement.phase)
    except (BadInput, ValueError):
        return False
    return call.phase is Phase.UPDATE or call.layer.kind == measurement.micro
