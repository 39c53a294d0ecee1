"""The files that ranks write, one JSON value a line; `collected` brings those of all ranks together.

A rank appends an `environment` line when it starts and after that one `measurement` line for each visit, with its own
samples; the visits of one case are told apart by `taken_at`, which rank 0 chooses for all. What the backend cannot do
is an `unavailable` line. A line that a dying process cut short is the last of its file: it is reported when files are
read and cut off when the run is resumed. A lock keeps a second run out of the same files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from io import BufferedRandom
from pathlib import Path
from typing import Any

from oracle.errors import BadInput
from profiler.collectives.sides import MICRO as OVERLAP
from profiler.measurement import Environment, Measurement

MAX_LINE_BYTES = 1 << 24
"""A longer line is none of ours: reading ends there."""

_FIELDS = ("micro", "phase", "execution", "inner", "device", "run_id", "taken_at", "stopped")


@dataclass(frozen=True)
class Unavailable:
    """What the backend cannot do here, and why."""

    what: str
    reason: str


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
    case, seconds = dict(values["case"]), values["device_s"]
    if values["micro"] not in ("collective", OVERLAP) or int(values["inner"]) < 1:
        raise ValueError("no measurement of a collective")
    if int(case["rank"]) < 0 or int(case["ranks"]) < 2 or int(case["bytes"]) < 1:
        raise ValueError("a rank, a number of ranks or bytes that no collective has")
    if not seconds or not all(0 < second < math.inf for second in seconds):
        raise ValueError("times are positive numbers of seconds")
    datetime.fromisoformat(values["taken_at"])
    texts = {name: str(values[name]) for name in _FIELDS if name != "inner"}
    return Measurement(
        **texts,
        inner=int(values["inner"]),
        case=case,
        device_s=tuple(map(float, seconds)),
        host_s=tuple(map(float, values["host_s"])),
        flags=tuple(map(str, values["flags"])),
        environment=environment,
    )


def _environment(values: Mapping[str, Any]) -> Environment:
    identity, state = ({str(k): str(v) for k, v in dict(values[name]).items()} for name in ("identity", "state"))
    return Environment(identity, state, tuple(map(str, values["notes"])))


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
                        environment = _environment(values)
                    elif kind == "unavailable":
                        yield Unavailable(str(values["what"]), str(values["reason"]))
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


def split_rank(case: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The rank in a rank's case, and the case that all ranks share."""
    return int(case["rank"]), {name: value for name, value in case.items() if name != "rank"}
