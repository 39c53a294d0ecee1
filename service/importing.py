"""Import files that other tools wrote: each one whole or not at all, and never twice.

A file is known by the digest of its content. One of which nothing could be taken is not remembered, so that it can be
tried again with what it does not say itself (`--collective`, `--ranks`).

Names of hosts are kept only as a digest under a key of this user's own (see `service.hosts`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.store import Store
from oracle.errors import BadInput, OutOfRange, UnknownName
from profiler.importers.base import Assumptions, Dropped, ImportReport, Item, Limits
from profiler.importers.collectives import NAMES, collective_name
from profiler.importers.files import content_sha256, stream_file
from service.hosts import host_key


@dataclass(frozen=True)
class ImportRequest:
    """Files to import, and what they may not say themselves.

    Args:
        files: logs, tables or traces.
        collective, ranks, nodes, device: of the run; what a file says wins.
        verbose: list what was dropped line by line in the tables (JSON always does).
    """

    files: tuple[Path, ...]
    collective: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    device: str | None = None
    verbose: bool = False

    def __post_init__(self) -> None:
        for what, value, least in (("--ranks", self.ranks, 2), ("--nodes", self.nodes, 1)):
            if value is not None and value < least:
                raise OutOfRange(f"{what} must be at least {least}, not {value}")
        if self.collective is not None and collective_name(self.collective) is None:
            raise UnknownName("collective", self.collective, sorted(set(NAMES.values())))

    def assumptions(self) -> Assumptions:
        """What importers are told."""
        name = None if self.collective is None else collective_name(self.collective)
        return Assumptions(name, self.ranks, self.nodes, self.device, host_key())


@dataclass(frozen=True)
class ImportedOne:
    """What became of one file.

    Args:
        file: as it was named.
        run: that its measurements belong to; empty where nothing was stored.
        stored: measurements and facts that this import added.
        known: the very content was imported before, and nothing was added.
        report: what the importer says; None where the file is known or was refused.
        error: why it was refused, in one line; empty where it was not.
    """

    file: str
    run: str = ""
    stored: int = 0
    known: bool = False
    report: ImportReport | None = None
    error: str = ""

    @property
    def error_line(self) -> str:
        """The error without line breaks, which names of files and parts of them may hold."""
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in self.error)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values: dict[str, Any] = {
            "file": self.file,
            "run": self.run or None,
            "stored": self.stored,
            "known": self.known,
            "error": self.error or None,
        }
        if self.report is not None:
            values |= _report_values(self.report)
        return values


@dataclass(frozen=True)
class ImportResult:
    """What became of every file; `verbose` asks the tables for every dropped row."""

    store: str
    files: tuple[ImportedOne, ...]
    verbose: bool = False

    @property
    def refused(self) -> tuple[ImportedOne, ...]:
        """The files of which nothing was taken."""
        return tuple(file for file in self.files if file.error)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"store": self.store, "files": [file.to_dict() for file in self.files]}


def _report_values(report: ImportReport) -> dict[str, Any]:
    return {
        "format_of_file": report.format,
        "sha256": report.sha256,
        "rows_taken": report.rows_taken,
        "rows_dropped": report.rows_dropped,
        "dropped": [item._asdict() for item in report.dropped],
        "lines_skipped": report.lines_skipped,
        "skipped": [item._asdict() for item in report.skipped],
        "ranks": list(report.ranks),
        "verdict": str(report.verdict),
        "warnings": list(report.warnings),
    }


def import_files(store: Store, request: ImportRequest, limits: Limits = Limits()) -> ImportResult:
    """Import every file; one that is refused does not keep the others from being stored.

    Raises:
        BadInput: the only file was refused and nothing can be reported of it.
        StoreError: the database cannot be written.
    """
    assume = request.assumptions()
    done: list[ImportedOne] = []
    for path in request.files:
        try:
            done.append(import_one(store, path, assume, limits))
        except BadInput as error:
            if len(request.files) == 1:
                raise
            done.append(ImportedOne(str(path), error=str(error)))
    return ImportResult(store.location, tuple(done), request.verbose)


def import_one(store: Store, path: Path, assume: Assumptions, limits: Limits) -> ImportedOne:
    """Import one file, in one transaction.

    Raises:
        BadInput: it cannot be read, exceeds a limit, or has no known format.
    """
    sha256 = content_sha256(path, limits)
    run_id = f"import-{sha256[:16]}"
    with store.importing(sha256, path.name) as writer:
        if writer.known is not None:
            return ImportedOne(str(path), run=writer.known.run_id, known=True)

        def take(item: Item) -> None:
            writer.add(item, run_id)

        report = stream_file(path, take, assume, limits)
        if report.sha256 != sha256:
            raise BadInput(f"{path} changed while it was read; import it again")
        writer.finish(report)
    if writer.added:
        return ImportedOne(str(path), run=run_id, stored=writer.added, report=report)
    why = f": {report.dropped[0].reason} (line {report.dropped[0].line})" if report.dropped else ""
    error = f"nothing could be taken from {path} ({report.format}, {report.rows_dropped} rows dropped{why})"
    return ImportedOne(str(path), report=report, error=error)


def grouped(dropped: tuple[Dropped, ...]) -> list[tuple[str, int, int]]:
    """Reasons with how many rows each has and the first line of them, the most frequent first.

    >>> grouped((Dropped(3, "a", "cut off"), Dropped(9, "b", "N/A"), Dropped(12, "c", "N/A")))
    [('N/A', 2, 9), ('cut off', 1, 3)]
    """
    counts = Counter(item.reason for item in dropped)
    first = {item.reason: item.line for item in reversed(dropped)}
    return [(reason, count, first[reason]) for reason, count in counts.most_common()]
