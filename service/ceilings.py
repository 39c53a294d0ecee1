"""Measure a device's limits and store what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from db.store import Store
from oracle.errors import BadInput, UnknownName
from profiler.backends.base import open_backend
from profiler.backends.torch_device import TorchDevice
from profiler.ceilings.copies import copy_probes
from profiler.ceilings.data_sheets import DataSheet, find_data_sheet
from profiler.ceilings.launches import launch_probes
from profiler.ceilings.probe import GROUPS, Ceiling, CeilingSettings, Probe, Unanswered, measure_ceilings
from profiler.ceilings.products import product_probes
from profiler.ceilings.raw import raw_probes
from profiler.ceilings.streams import stream_probes
from profiler.ceilings.updates import update_probes
from service.measuring_requests import Progress, silent

PROBES: tuple[Callable[[TorchDevice], list[Probe]], ...] = (
    product_probes,
    stream_probes,
    launch_probes,
    copy_probes,
    update_probes,
    raw_probes,
)
DEFAULT_GROUPS = GROUPS[:-1]


@dataclass(frozen=True)
class CeilingsRequest:
    """Which limits to measure.

    Args:
        device: the kind of device.
        groups: of questions; none takes all but the optimizer steps, of which there are many.
        sustained_s: seconds for each rate after its burst; 0 for bursts only.
    """

    device: str = "cpu"
    groups: tuple[str, ...] = ()
    sustained_s: float = 2.0

    def __post_init__(self) -> None:
        for group in self.groups:
            if group not in GROUPS:
                raise UnknownName("group of questions", group, GROUPS)


@dataclass(frozen=True)
class CeilingsResult:
    """The limits of a device.

    Args:
        sheet: what its vendor promises, where that is known.
    """

    device: str
    store: str
    run_id: str
    ceilings: tuple[Ceiling, ...]
    unanswered: tuple[Unanswered, ...]
    sheet: DataSheet | None

    def promise(self, ceiling: Ceiling) -> float | None:
        """The data sheet's figure for a question."""
        return self.sheet.promise(ceiling.probe.question) if self.sheet else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "device": self.device,
            "store": self.store,
            "run": self.run_id,
            "data_sheet": self.sheet.source if self.sheet else None,
            "ceilings": [
                {
                    "group": item.probe.group,
                    "question": item.probe.question,
                    "case": dict(item.probe.case),
                    "unit": item.probe.unit,
                    "burst": item.burst,
                    "sustained": item.sustained,
                    "samples": item.samples,
                    "data_sheet": self.promise(item),
                }
                for item in self.ceilings
            ],
            "unanswered": [
                {"question": item.probe.question, "case": dict(item.probe.case), "reason": item.reason}
                for item in self.unanswered
            ],
        }


def find_ceilings(store: Store, request: CeilingsRequest, progress: Progress = silent) -> CeilingsResult:
    """Measure the limits of a device; every measurement is stored as soon as it is taken.

    Raises:
        BadInput: the device runs no kernels. UnknownName: no such kind of device.
        NoDevice: there is none. MissingDependency: torch is not installed.
    """
    backend = open_backend(request.device)
    if not isinstance(backend, TorchDevice):
        raise BadInput(f"a {backend.name} device has no ceilings to measure")
    wanted = request.groups or DEFAULT_GROUPS
    probes = [probe for make in PROBES for probe in make(backend) if probe.group in wanted]
    run_id = store.begin_run("ceilings", backend.device, backend.environment())
    settings = CeilingSettings(run_id, sustained_s=request.sustained_s)
    status = "interrupted"
    try:
        answered, failed = measure_ceilings(probes, backend, store.add_measurement, settings, progress)
        status = "finished"
    finally:
        store.finish_run(run_id, status)
    return CeilingsResult(
        device=backend.device,
        store=store.location,
        run_id=run_id,
        ceilings=tuple(_in_groups(answered)),
        unanswered=tuple(failed),
        sheet=find_data_sheet(backend.device),
    )


def _in_groups(ceilings: Sequence[Ceiling]) -> list[Ceiling]:
    """Group by group, each in the order in which it was asked."""
    return sorted(ceilings, key=lambda item: GROUPS.index(item.probe.group))
