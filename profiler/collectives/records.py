"""The files that ranks write, one JSON value a line, and how they become measurements.

A rank appends an `environment` line when it starts and after that one `measurement` line for each visit, with its own
samples; the visits of one case are told apart by `taken_at`, which rank 0 chooses for all. What the backend cannot do
is an `unavailable` line. A line that a dying process cut short is the last of its file: it is reported when files are
read and cut off when the run is resumed. A lock keeps a second run out of the same files.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BufferedRandom
from pathlib import Path
from typing import Any

from oracle.errors import BadInput
from profiler.measurement import Environment, Measurement
from profiler.stopping import StoppingRule, flags

STRAGGLER = 1.2
"""A rank whose median is above that of the median rank by this factor is named in the flags."""

MAX_LINE_BYTES = 1 << 24
"""A longer line is none of ours: reading ends there."""

_FIELDS = ("micro", "phase", "execution", "inner", "device", "run_id", "taken_at", "stopped")


@dataclass(frozen=True)
class Unavailable:
    """What the backend cannot do here, and why."""

    what: str
    reason: str


@dataclass(frozen=True)
class Collected:
    """What the files of a run hold.

    Args:
        measurements: one for each visit of a case; each sample is that of the slowest rank.
        of_ranks: the same visits, each rank for itself; the case names its `rank`.
        unavailable: what the backend could not do.
        problems: lines that could not be read, and visits that lack a rank.
    """

    measurements: tuple[Measurement, ...]
    of_ranks: tuple[Measurement, ...]
    unavailable: tuple[Unavailable, ...]
    problems: tuple[str, ...]


def rank_path(folder: Path, rank: int) -> Path:
    """Where a rank keeps its measurements."""
    return folder / f"rank-{rank:05d}.jsonl"


def rank_files(folder: Path) -> list[Path]:
    """The files of all ranks in a folder, in the order of the ranks."""
    return sorted(path for path in folder.glob("rank-*.jsonl") if path.is_file())


class RankFile:
    """Appends to a rank's file, each line at once.

    Args:
        path: of the file.
        resume: whether there may be something in it.

    Raises:
        BadInput: another run writes it now, or it holds something and was not to be resumed.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        path.touch()
        self._file = path.open("r+b")
        _lock(self._file, path)
        kept = _whole_lines(self._file) if path.is_file() else 0
        if kept and not resume:
            self._file.close()
            raise BadInput(f"{path} holds measurements; resume that run, or choose another folder")
        if path.is_file():
            self._file.truncate(kept)
            self._file.seek(kept)

    def write(self, kind: str, value: Mapping[str, Any]) -> None:
        """Append one line and hand it to the system, so that it outlives this process."""
        self._file.write(json.dumps({kind: value}, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Let another run have the file."""
        self._file.close()


def _lock(file: BufferedRandom, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; a second run is then not noticed
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BadInput(f"another run is writing {path}; wait for it, or choose another folder") from None


def _whole_lines(file: BufferedRandom) -> int:
    """Bytes up to and with the last line end."""
    file.seek(0)
    return sum(len(line) for line in file if line.endswith(b"\n"))


def environment_values(environment: Environment) -> dict[str, Any]:
    """An environment as JSON values."""
    return {
        "identity": dict(environment.identity),
        "state": dict(environment.state),
        "notes": list(environment.notes),
    }


def measurement_values(measurement: Measurement) -> dict[str, Any]:
    """A measurement as JSON values, without its environment."""
    values: dict[str, Any] = {name: getattr(measurement, name) for name in _FIELDS}
    lists = {name: list(getattr(measurement, name)) for name in ("device_s", "host_s", "flags")}
    return {**values, **lists, "case": dict(measurement.case)}


def _measurement(values: Mapping[str, Any], environment: Environment) -> Measurement:
    case, seconds = values["case"], values["device_s"]
    for name in ("rank", "ranks", "bytes"):
        int(case[name])
    if not seconds or not all(0 < second < math.inf for second in seconds):
        raise ValueError("times are positive numbers of seconds")
    return Measurement(
        **{name: values[name] for name in _FIELDS},
        case=dict(values["case"]),
        device_s=tuple(map(float, values["device_s"])),
        host_s=tuple(map(float, values["host_s"])),
        flags=tuple(map(str, values["flags"])),
        environment=environment,
    )


def read_rank_file(path: Path, problems: list[str]) -> Iterator[Measurement | Unavailable]:
    """What one rank wrote; a line that cannot be read adds to the problems and ends nothing.

    Raises:
        BadInput: the file cannot be read at all.
    """
    environment: Environment | None = None
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
                if not line.endswith(b"\n"):
                    problems.append(f"{path.name}, line {number}: cut short, left out")
                    return
                try:
                    kind, values = _one_entry(line)
                    if kind == "environment":
                        environment = Environment(values["identity"], values["state"], tuple(values["notes"]))
                    elif kind == "unavailable":
                        yield Unavailable(values["what"], values["reason"])
                    elif environment is not None:
                        yield _measurement(values, environment)
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    problems.append(f"{path.name}, line {number}: left out, {type(error).__name__} {error}"[:200])
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None


def _one_entry(line: bytes) -> tuple[str, Mapping[str, Any]]:
    entry = json.loads(line)
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError("a line holds one object with one key")
    ((kind, values),) = entry.items()
    if kind not in ("environment", "measurement", "unavailable"):
        raise ValueError(f"unknown kind of line '{kind}'")
    return kind, values


def collect(files: Iterable[Path]) -> Collected:
    """Bring the files of all ranks together.

    Args:
        files: one of each rank, in any order.

    Raises:
        BadInput: no files, or one that cannot be opened.
    """
    problems: list[str] = []
    found = [entry for path in files for entry in read_rank_file(path, problems)]
    of_ranks = [entry for entry in found if isinstance(entry, Measurement)]
    missing = dict.fromkeys(entry for entry in found if isinstance(entry, Unavailable))
    visits: dict[tuple[str, str, str], dict[int, Measurement]] = defaultdict(dict)
    for measurement in of_ranks:
        rank, case = split_rank(measurement.case)
        visits[(measurement.run_id, measurement.taken_at, json.dumps(case, sort_keys=True))][rank] = measurement
    merged = []
    for by_rank in visits.values():
        one = next(iter(by_rank.values()))
        wanted = int(one.case["ranks"]) * int(one.case.get("concurrent", 1))
        if len(by_rank) == wanted and len({len(m.device_s) for m in by_rank.values()}) == 1:
            merged.append(_slowest(by_rank))
        else:
            what = f"{one.case['collective']} of {one.case['bytes']} bytes at {one.taken_at}"
            problems.append(f"{what}: {len(by_rank)} of {wanted} ranks finished it, left out")
    return Collected(tuple(merged), tuple(of_ranks), tuple(missing), tuple(problems))


def split_rank(case: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The rank in a rank's case, and the case that all ranks share."""
    return int(case["rank"]), {name: value for name, value in case.items() if name != "rank"}


def _slowest(by_rank: Mapping[int, Measurement]) -> Measurement:
    """One visit: a collective has ended when its last rank has."""
    ranks = sorted(by_rank)
    first = by_rank[ranks[0]]
    device_s = tuple(max(times) for times in zip(*(by_rank[rank].device_s for rank in ranks), strict=True))
    lines = flags(device_s, StoppingRule(target=0.05)) + stragglers({rank: by_rank[rank].median_s for rank in ranks})
    return replace(first, case=split_rank(first.case)[1], device_s=device_s, host_s=(), flags=lines)


def stragglers(median_s: Mapping[int, float]) -> tuple[str, ...]:
    """Flags that name the ranks which took much longer than the median rank.

    >>> stragglers({0: 1.0, 1: 1.0, 2: 1.5})
    ('straggler: rank 2 x1.50',)
    """
    middle = statistics.median_low(median_s.values())
    slow = {rank: seconds / middle for rank, seconds in median_s.items() if seconds > STRAGGLER * middle}
    return tuple(f"straggler: rank {rank} x{ratio:.2f}" for rank, ratio in sorted(slow.items()))


def rank_medians(of_ranks: Sequence[Measurement]) -> dict[str, dict[int, float]]:
    """Median seconds of each rank, by `case_key` of the merged measurements: over all visits of the case."""
    samples: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for measurement in of_ranks:
        rank, case = split_rank(measurement.case)
        samples[replace(measurement, case=case).case_key][rank] += measurement.device_s
    return {
        key: {rank: statistics.median(own) for rank, own in sorted(ranks.items())} for key, ranks in samples.items()
    }
