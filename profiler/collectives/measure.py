"""Measure collectives: on one machine with processes of its own, under a launcher as the rank that it started."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from oracle.errors import BadInput, MissingDependency, NoDevice, RankLost
from profiler.collectives.collected import Collected, collect
from profiler.collectives.joining import Remember
from profiler.collectives.launch import run_here
from profiler.collectives.places import RankPlace, place_from_launcher
from profiler.collectives.rank import take_part
from profiler.collectives.records import RankFile, Unavailable, rank_files, rank_path
from profiler.collectives.settings import CollectiveSettings
from profiler.environment import import_torch
from profiler.importers.base import host_digest
from profiler.run import Progress, Record


@dataclass(frozen=True)
class CollectiveSummary:
    """What a run did.

    Args:
        run_id: of the run.
        cases: that were measured; visits: measurements of them.
        unavailable: what the backend cannot do here.
        problems: of the files.
        files: where the ranks of this machine keep their measurements.
        elapsed_s: wall-clock seconds.
        place: of this process under a launcher, whose files `collect` brings together; None on one machine.
    """

    run_id: str
    cases: int
    visits: int
    unavailable: tuple[Unavailable, ...]
    problems: tuple[str, ...]
    files: tuple[Path, ...]
    elapsed_s: float
    place: RankPlace | None = None


def measure_collectives(
    settings: CollectiveSettings,
    record: Record,
    progress: Progress = lambda done, total, text: None,
    remember: Remember = lambda names: None,
) -> CollectiveSummary:
    """Measure collectives between processes.

    On one machine it starts `settings.ranks` processes and records, when they have ended, what their files hold; with
    `resume` that includes what earlier runs left there (one visit has one `run_id`, `taken_at` and case). Under
    torchrun, srun or mpirun this process is one of the ranks: it writes its file and records nothing, because no
    database should be written from many nodes.

    Args:
        settings: what and how.
        record: called with each measurement, the slowest rank of each sample.
        progress: called with visits done, visits planned, and what is measured now.
        remember: called with the name of every host by its digest.

    Raises:
        RankLost: a rank died, hangs or failed; what was measured is in the files and goes on with `resume`.
        BadInput: the files hold something already, or another run writes them.
        NoDevice: fewer CUDA devices than ranks.
        MissingDependency: torch is not installed.
    """
    begun_s = time.monotonic()
    if import_torch() is None:
        raise MissingDependency("torch", "measure")
    place = place_from_launcher(os.environ)
    if place is not None:
        take_part(settings, place, progress, remember)
        own = [path for path in rank_files(settings.folder) if path.name.endswith(f"{place.rank:05d}.jsonl")]
        return _summary(settings, collect(own), time.monotonic() - begun_s, place)
    _check_devices(settings)
    _check_files(settings)
    remember({host_digest({platform.node()}, settings.host_key): platform.node()})
    try:
        run_here(settings, progress)
    except RankLost as error:
        kept = len(collect(rank_files(settings.folder)).measurements)
        raise RankLost(f"{error}; {kept} measurements are kept in {settings.folder}: go on with --resume") from None
    found = collect(rank_files(settings.folder))
    for measurement in found.measurements:
        record(measurement)
    return _summary(settings, found, time.monotonic() - begun_s, None)


def _check_files(settings: CollectiveSettings) -> None:
    """Find out here what would end every rank."""
    for rank in range(settings.ranks):
        path = rank_path(settings.folder, rank)
        try:
            RankFile(path, settings.resume).close()
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from None


def _check_devices(settings: CollectiveSettings) -> None:
    if settings.device == "cuda":
        import torch

        count = torch.cuda.device_count()
        if count < settings.ranks:
            raise NoDevice(f"{settings.ranks} ranks need a CUDA device each; there are {count}")


def _summary(
    settings: CollectiveSettings, found: Collected, elapsed_s: float, place: RankPlace | None
) -> CollectiveSummary:
    measured = found.of_ranks if place else found.measurements
    return CollectiveSummary(
        run_id=measured[0].run_id if measured else settings.run_id,
        cases=len({measurement.case_key for measurement in measured}),
        visits=len(measured),
        unavailable=found.unavailable,
        problems=() if place else found.problems,
        files=tuple(rank_files(settings.folder)),
        elapsed_s=elapsed_s,
        place=place,
    )
