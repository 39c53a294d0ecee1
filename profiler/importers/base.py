"""What every importer takes and yields: limits, assumptions, facts, dropped lines and the report. Plain values.

An importer is a name, a test on the first characters of a file, and a generator over its lines. What it yields is
either a `Measurement` (something was timed) or a `Fact` (a topology, a device, a bandwidth that a tool printed).
Everything that it leaves out goes to the `Log` with its line and a reason, so that nothing is lost in silence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from profiler.measurement import Measurement

if TYPE_CHECKING:
    from profiler.importers.source import Source

SHOWN_CHARACTERS = 160


class Verdict(StrEnum):
    """How whole a file is, from best to worst."""

    COMPLETE = "complete"
    """Head and end are there."""
    INCOMPLETE = "incomplete"
    """Cut off, or a part is missing: what is there was taken."""
    FAILED = "failed"
    """The tool itself says that it failed, or no row can be trusted."""


@dataclass(frozen=True)
class Limits:
    """What a file may cost, so that a hostile one ends in an error instead of in swap.

    Args:
        file_bytes: of the file's content, after decompression.
        line_bytes: of one line.
        value_bytes: of one JSON value (one event of a trace, one result).
        results: measurements and facts that are kept in memory at once.
        listed: dropped lines that are listed one by one; further ones are only counted.
    """

    file_bytes: int = 1 << 30
    line_bytes: int = 1 << 20
    value_bytes: int = 1 << 24
    results: int = 2_000_000
    listed: int = 20_000


@dataclass(frozen=True)
class Assumptions:
    """What the caller knows and the file may not say; what the file says wins, and a contradiction is a warning.

    Args:
        collective: such as all_reduce; logs of nccl-tests before June 2025 often do not name it.
        ranks, nodes: of the run.
        device: the name of the device.
        host_key: secret of the digest under which host names are kept.
    """

    collective: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    device: str | None = None
    host_key: bytes = b""


class Dropped(NamedTuple):
    """A line (or a part of one) that was not taken."""

    line: int
    text: str
    reason: str


@dataclass(frozen=True)
class Fact:
    """Something that a tool printed and that was not timed here: JSON values in SI units.

    Args:
        kind: such as topology, device, nccl_tuning, bandwidth, kernel, system.
        subject: what it is about, such as a device or a pair of them.
        values: the unit is in the name.
    """

    kind: str
    subject: str
    values: Mapping[str, Any]


Item = Measurement | Fact


@dataclass(frozen=True)
class ImportReport:
    """What became of one file.

    Args:
        format: the importer's name.
        sha256: of the content after decompression: a compressed copy is the same file.
        rows_taken, rows_dropped: rows of data. A row of nccl-tests holds two results and counts once as taken; each
            result of it that is left out is listed in `dropped`.
        dropped: rows, or parts of rows, that were not taken, with line number, text and reason.
        skipped: other lines that the importer made no use of (noise of launchers, comments that it does not know).
        lines_skipped: how many there were; the lists hold the first `Limits.listed`.
        warnings: what a reader has to know before trusting the numbers.
        ranks: every number of ranks that occurs.
        verdict: how whole the file is.
    """

    format: str
    sha256: str
    rows_taken: int
    rows_dropped: int
    dropped: tuple[Dropped, ...]
    skipped: tuple[Dropped, ...]
    lines_skipped: int
    warnings: tuple[str, ...]
    ranks: tuple[int, ...]
    verdict: Verdict


@dataclass(frozen=True)
class ImportResult:
    """What was read from one file."""

    report: ImportReport
    measurements: tuple[Measurement, ...]
    facts: tuple[Fact, ...]


@dataclass
class Log:
    """Collects what an importer says about its file while it reads."""

    limits: Limits = field(default_factory=Limits)
    assumptions: Assumptions = field(default_factory=Assumptions)
    run_id: str = ""
    rows_taken: int = 0
    rows_dropped: int = 0
    lines_skipped: int = 0
    verdict: Verdict = Verdict.COMPLETE
    ranks: set[int] = field(default_factory=set)
    _last_dropped: int = -1
    _dropped: list[Dropped] = field(default_factory=list)
    _skipped: list[Dropped] = field(default_factory=list)
    _warnings: dict[str, None] = field(default_factory=dict)

    def take(self, rows: int = 1) -> None:
        """Count rows that were taken."""
        self.rows_taken += rows

    def drop(self, line: int, text: str, reason: str) -> None:
        """Leave out a row of data; a row of which several parts are dropped in turn counts once."""
        self.rows_dropped += line != self._last_dropped
        self._last_dropped = line
        self.drop_part(line, text, reason)

    def drop_part(self, line: int, text: str, reason: str) -> None:
        """Leave out a part of a row (one of its results); the row itself is counted elsewhere."""
        if len(self._dropped) < self.limits.listed:
            self._dropped.append(Dropped(line, shown(text), reason))

    def skip(self, line: int, text: str, reason: str) -> None:
        """Make no use of a line that is no row of data."""
        self.lines_skipped += 1
        if len(self._skipped) < self.limits.listed:
            self._skipped.append(Dropped(line, shown(text), reason))

    def warn(self, text: str) -> None:
        """Say once what a reader has to know."""
        if len(self._warnings) < self.limits.listed:
            self._warnings[text] = None

    def judge(self, verdict: Verdict) -> None:
        """Let the worst verdict stand."""
        order = list(Verdict)
        self.verdict = max(self.verdict, verdict, key=order.index)

    def report(self, name: str, sha256: str) -> ImportReport:
        """Everything so far, as a value."""
        return ImportReport(
            format=name,
            sha256=sha256,
            rows_taken=self.rows_taken,
            rows_dropped=self.rows_dropped,
            dropped=tuple(self._dropped),
            skipped=tuple(self._skipped),
            lines_skipped=self.lines_skipped,
            warnings=tuple(self._warnings),
            ranks=tuple(sorted(self.ranks)),
            verdict=self.verdict,
        )


@dataclass(frozen=True)
class Importer:
    """One format.

    Args:
        name: of the format; the module has the same name.
        recognises: whether the first characters of a file are this format's.
        read: yields what is in the file, and tells the log what it leaves out.
    """

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[Source, Log], Iterator[Item]]


def shown(text: str) -> str:
    r"""A line as a report shows it: printable, at most `SHOWN_CHARACTERS` long.

    >>> shown("a\tb\x07")
    'a b?'
    """
    short = text.strip()[:SHOWN_CHARACTERS].replace("\t", " ")
    return "".join(character if character.isprintable() else "?" for character in short)


def host_digest(hosts: set[str], key: bytes) -> str:
    """One short keyed digest of a set of host names, which are never kept themselves.

    >>> host_digest({"b", "a"}, b"k") == host_digest({"a", "b"}, b"k") != host_digest({"a"}, b"k")
    True
    """
    text = "\n".join(sorted(hosts)).encode()
    return hashlib.blake2b(text, key=key[:64], digest_size=8).hexdigest()
