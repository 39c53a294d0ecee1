"""Measure collectives, bring the files of ranks into a store, and fit a network from them.

Ranks write files and no database (`profiler.collectives.records`). On one machine this process starts the ranks, and
when they have ended it stores what their files hold. Under torchrun, srun or mpirun this process is a rank itself and
opens no store; `collect_folders` brings the files together afterwards, on one machine.

The files of a run on one machine lie in the data folder (`collectives/NAME`) while it lasts, where `resume` finds them.
Once stored they are kept under the run's id, with the times of every rank, and the name is free for another run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibration.link_values import LinkCalibration
from db.location import home_path
from db.store import Store
from oracle.constants import checked_text
from oracle.errors import BadInput, OutOfRange
from oracle.units import parse_bytes
from profiler.collectives.collected import Collected, collect
from profiler.collectives.measure import CollectiveSummary, measure_collectives
from profiler.collectives.places import place_from_launcher
from profiler.collectives.records import Unavailable, rank_files
from profiler.collectives.settings import PLACES, SPACINGS, CollectiveSettings
from profiler.measurement import Measurement
from service.collective_rows import JOB_KEYS, CollectiveRow, rows_of
from service.fitting import FitRequest, FitResult, fit_stored
from service.hosts import host_key, remember_hosts
from service.launch_lines import LARGEST_BYTES
from service.measuring_requests import Progress, silent
from service.network_comparing import NetworkComparison

COMMAND = "measure --collectives"
"""What the runs of collectives are called in a store."""

BUDGET_S, QUICK_BUDGET_S = 300.0, 60.0
QUICK_FACTOR = 4.0


@dataclass(frozen=True)
class CollectivesRequest:
    """Measure collectives.

    Args:
        device: `cpu` (Gloo) or `cuda` (NCCL, one device for each rank).
        ranks: processes to start on this machine; None starts two. Under a launcher its ranks are used.
        budget_s: seconds of measuring; None takes the default.
        largest: largest message, such as 64MiB; None takes that of the device.
        groups: kinds of groups, see `profiler.collectives.settings`; empty takes `all`, under a launcher also `node`
            and `across`.
        dtypes: data types of the items.
        only: collectives; empty takes all.
        concurrent: measure groups also all at once.
        spacing: what lies between calls; empty for back to back alone.
        beside: kernels beside which collectives are measured as well.
        cupy: measure on the same devices through CuPy as well, which says what torch.distributed adds.
        resume: go on with what is in the files.
        quick: fewer sizes in less time.
        seed: of the order.
        name: of the network, and of the files while they are written.
        folder: of the files; needed under a launcher.
    """

    device: str = "cpu"
    ranks: int | None = None
    budget_s: float | None = None
    largest: str | None = None
    groups: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("fp32",)
    only: tuple[str, ...] = ()
    concurrent: bool = False
    spacing: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    cupy: bool = False
    resume: bool = False
    quick: bool = False
    seed: int = 0
    name: str | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.budget_s is not None and not self.budget_s > 0:
            raise OutOfRange(f"a budget is a positive time, not {self.budget_s} s")
        if self.cupy and self.device != "cuda":
            raise BadInput(f"--cupy measures NCCL on GPUs: it goes with --device cuda, not {self.device}")
        if self.name is not None:
            checked_text("name", self.name)

    def settings(self, folder: Path, key: bytes, groups: tuple[str, ...]) -> CollectiveSettings:
        """What is asked of the ranks.

        Args:
            folder: of their files.
            key: of host names.
            groups: to take where none are asked for.
        """
        largest = LARGEST_BYTES.get(self.device, 0) if self.largest is None else round(parse_bytes(self.largest))
        settings = CollectiveSettings(
            folder=folder,
            run_id="",
            budget_s=self.budget_s or (QUICK_BUDGET_S if self.quick else BUDGET_S),
            ranks=2 if self.ranks is None else self.ranks,
            device=self.device,
            collectives=self.only or tuple(PLACES),
            dtypes=self.dtypes,
            groups=self.groups or groups,
            concurrent=self.concurrent,
            spacings=self.spacing or SPACINGS[:1],
            beside=self.beside,
            seed=self.seed,
            resume=self.resume,
            host_key=key,
            largest_bytes=max(largest, 1),
        )
        return replace(settings, size_factor=QUICK_FACTOR) if self.quick else settings


@dataclass(frozen=True)
class CollectivesResult:
    """What was measured on one machine, or by one rank of many.

    Args:
        folder: where the files of the ranks are.
        summary: of the run.
        rows: one for each curve; empty on a rank of many.
        store: where it was stored; None on a rank of many.
        network: what was fitted, where that was asked.
        drift: of the network against the one before of its fabric, or None.
    """

    folder: Path
    summary: CollectiveSummary
    rows: tuple[CollectiveRow, ...] = ()
    store: str | None = None
    network: LinkCalibration | None = None
    drift: NetworkComparison | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        place = self.summary.place
        return {
            "name": None if self.network is None else self.network.name,
            "store": self.store,
            "run": self.summary.run_id,
            "folder": str(self.folder),
            "rank": None if place is None else place.rank,
            "elapsed_s": self.summary.elapsed_s,
            "visits": self.summary.visits,
            "rows": [row.to_dict() for row in self.rows],
            "unavailable": unavailable_dicts(self.summary.unavailable),
            "problems": list(self.summary.problems),
            "notes": [] if self.network is None else list(self.network.notes),
            "drift": None if self.drift is None else self.drift.to_dict(),
        }


@dataclass(frozen=True)
class CollectedRun:
    """One run in the files that were collected.

    Args:
        ranks, nodes: of the whole run; 0 where the files do not say.
        visits: that every rank finished; added: those that the store did not have.
    """

    run: str
    device: str
    ranks: int
    nodes: int
    visits: int
    added: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class CollectResult:
    """What the files of ranks brought into a store."""

    store: str
    runs: tuple[CollectedRun, ...]
    rows: tuple[CollectiveRow, ...]
    unavailable: tuple[Unavailable, ...]
    problems: tuple[str, ...]
    network: LinkCalibration | None
    drift: NetworkComparison | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "store": self.store,
            "name": None if self.network is None else self.network.name,
            "runs": [run.to_dict() for run in self.runs],
            "rows": [row.to_dict() for row in self.rows],
            "unavailable": unavailable_dicts(self.unavailable),
            "problems": list(self.problems),
            "notes": [] if self.network is None else list(self.network.notes),
            "drift": None if self.drift is None else self.drift.to_dict(),
        }


def unavailable_dicts(unavailable: Sequence[Unavailable]) -> list[dict[str, str]]:
    """What a backend cannot do, as plain JSON values."""
    return [{"what": item.what, "reason": item.reason} for item in unavailable]


def measure_here(
    store: Store, request: CollectivesRequest, fit: bool, progress: Progress = silent
) -> CollectivesResult:
    """Measure between processes of this machine, store the measurements, and fit a network where that is asked.

    Raises:
        BadInput: the name is taken, or the files are in use or hold something that is not to be resumed.
        RankLost: a rank died, hangs or failed; what was measured is in the files, and `resume` goes on.
        NoDevice, MissingDependency: what the ranks need is not there.
    """
    if fit and request.name is not None:
        check_free(store, request.name)
    settings = request.settings(request.folder or _own_folder(request), host_key(), ("all",))
    summary = measure_collectives(settings, lambda measurement: None, progress, remember_hosts)
    found = collect(summary.files)
    if request.cupy:
        found = replace(found, measurements=(*found.measurements, *_through_cupy(settings, summary.run_id, progress)))
    runs = _stored(store, found)
    if not runs:
        raise BadInput(f"nothing could be measured within {settings.budget_s:g} s; give a longer --budget")
    fitted = None
    if fit:
        name = request.name or _free_name(store, settings, runs[0].device)
        fitted = fit_runs(store, [run.run for run in runs], name)
    network, drift = (None, None) if fitted is None else (fitted.network, fitted.drift)
    folder = settings.folder if request.folder else _kept(settings.folder, runs[-1].run)
    return CollectivesResult(folder, summary, rows_of(found.measurements, network), store.location, network, drift)


def _through_cupy(settings: CollectiveSettings, run_id: str, progress: Progress) -> list[Measurement]:
    from profiler.collectives.cupy_nccl import measure_cupy

    found: list[Measurement] = []
    measure_cupy(replace(settings, run_id=run_id), found.append, progress)
    return found


def take_part(request: CollectivesRequest, progress: Progress = silent) -> CollectivesResult:
    """Be the rank that a launcher started; writes this rank's file and nothing else.

    Raises:
        BadInput: no folder is given, or the file is in use or holds something that is not to be resumed.
        RankLost: another rank was lost; the text names it.
    """
    if request.folder is None:
        raise BadInput("under a launcher say where each rank keeps its file: --folder DIR, the same for all")
    if request.ranks is not None:
        raise BadInput("under a launcher its own ranks are used; leave --ranks out")
    if request.cupy:
        raise BadInput("CuPy drives the GPUs of one machine from one process; measure it there without a launcher")
    settings = request.settings(request.folder, host_key(), ("all", "node", "across"))
    summary = measure_collectives(settings, lambda measurement: None, progress, remember_hosts)
    return CollectivesResult(request.folder, summary)


def launched_rank() -> int | None:
    """The rank of this process under a launcher; None where it is alone."""
    place = place_from_launcher(os.environ)
    return None if place is None else place.rank


def collect_folders(store: Store, folders: Sequence[Path], name: str | None) -> CollectResult:
    """Store what the files of ranks hold; visits that the store has already add nothing.

    Args:
        folders: of one run or several, or single files; the ranks of one run may lie in several.
        name: of a network to be fitted from them; None fits nothing.

    Raises:
        BadInput: the name is taken, a folder has no files of ranks, or no visit in them is whole.
    """
    if name is not None:
        checked_text("name", name)
        check_free(store, name)
    found = collect([path for folder in folders for path in _files_in(folder)])
    if not found.measurements:
        why = f": {found.problems[0]}" if found.problems else ""
        raise BadInput(f"no visit was finished by all of its ranks{why}")
    runs = _stored(store, found)
    fitted = None if name is None else fit_runs(store, [run.run for run in runs], name)
    network, drift = (None, None) if fitted is None else (fitted.network, fitted.drift)
    rows = rows_of(found.measurements, network)
    return CollectResult(store.location, runs, rows, found.unavailable, found.problems, network, drift)


def check_free(store: Store, name: str) -> None:
    """Raises BadInput where a name is taken."""
    if store.has_calibration(name):
        raise BadInput(f"there is a calibration '{name}' already; choose another --name")


def fit_runs(store: Store, runs: Sequence[str], name: str) -> FitResult:
    """Fit a network from runs of collectives and store it; the result says how it drifted since the one before."""
    return fit_stored(store, FitRequest(tuple(runs), name, job_keys=JOB_KEYS))


def _files_in(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}")
    files = rank_files(folder)
    if not files:
        raise BadInput(f"{folder} holds no files of ranks (rank-00000.jsonl and so on)")
    return files


def _stored(store: Store, found: Collected) -> tuple[CollectedRun, ...]:
    runs = []
    for run_id in dict.fromkeys(measurement.run_id for measurement in found.measurements):
        own = [measurement for measurement in found.measurements if measurement.run_id == run_id]
        added = store.collect(COMMAND, own)
        identity = own[0].environment.identity
        ranks, nodes = (_number(identity.get(key, "")) for key in ("world_ranks", "nodes"))
        runs.append(CollectedRun(run_id, own[0].device, ranks, nodes, len(own), added))
    return tuple(runs)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _own_folder(request: CollectivesRequest) -> Path:
    """Where the files of a run on one machine lie while it lasts."""
    backend = "nccl" if request.device == "cuda" else "gloo"
    name = request.name or f"{backend}-{request.ranks or 2}-ranks"
    return home_path().with_name("collectives") / re.sub(r"[^\w.-]+", "-", name).strip(".")


def _kept(folder: Path, run_id: str) -> Path:
    """Keep the files of a run that is stored under its id, so that the next run of that name starts anew."""
    kept = folder.with_name(re.sub(r"[^\w.-]+", "-", run_id))
    return folder if kept.exists() else folder.rename(kept)


def _free_name(store: Store, settings: CollectiveSettings, device: str) -> str:
    from datetime import UTC, datetime

    from service.calibrating import free_name

    backend = "nccl" if settings.device == "cuda" else "gloo"
    return free_name(store, f"{backend} {settings.ranks} ranks {device}", datetime.now(UTC).isoformat())
