"""Files that were imported: their content's digest, what was taken, and the rows themselves, in one transaction.

Rows are written in batches, so that a file of any length takes the memory of one batch; what an importer refuses in
mid-file leaves nothing behind, since all batches and the file's own row belong to one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from db import rows, schema
from db.environments import remember_environment
from profiler.importers.base import Fact, ImportReport
from profiler.measurement import Environment, Measurement

BATCH = 2_000
"""Rows in memory at once."""


@dataclass(frozen=True)
class ImportedFile:
    """A file that was imported.

    Args:
        sha256: of its content after decompression.
        run_id: the run that its measurements carry.
        name: of the file, without its folder.
        format: the importer's name.
        rows_taken, rows_dropped: rows of data.
        verdict: how whole it was.
        warnings: what a reader has to know.
    """

    sha256: str
    run_id: str
    name: str
    format: str
    rows_taken: int
    rows_dropped: int
    verdict: str
    warnings: tuple[str, ...]


@dataclass
class ImportWriter:
    """Writes what comes out of one file, inside the caller's transaction.

    Args:
        connection: in a writing transaction.
        name: of the file.
        known: what was imported from the same content before; nothing may be added then.
    """

    connection: Connection
    name: str
    known: ImportedFile | None
    added: int = 0
    _batch: list[Measurement | Fact] = field(default_factory=list)
    _last: tuple[Environment, str] | None = None
    _run_id: str = ""

    def add(self, item: Measurement | Fact, run_id: str) -> None:
        """Take one result of the run; it is written with its batch."""
        self._run_id = run_id
        self._batch.append(item)
        if len(self._batch) >= BATCH:
            self._flush()

    def finish(self, report: ImportReport) -> None:
        """Write what is left and the file's own row; nothing at all where nothing was taken."""
        self._flush()
        if not self.added:
            return
        columns = {
            "sha256": report.sha256,
            "run_id": self._run_id,
            "name": self.name,
            "format": report.format,
            "rows_taken": report.rows_taken,
            "rows_dropped": report.rows_dropped,
            "verdict": str(report.verdict),
            "warnings": list(report.warnings),
        }
        self.connection.execute(insert(schema.imported_file), columns)

    def _flush(self) -> None:
        if not self._batch:
            return
        if not self.added:
            self._begin()
        measured = [item for item in self._batch if isinstance(item, Measurement)]
        facts = [item for item in self._batch if isinstance(item, Fact)]
        if measured:
            columns = [rows.measurement_columns(item, self._remembered(item.environment)) for item in measured]
            self.connection.execute(insert(schema.measurement), columns)
        if facts:
            said = [
                {"run_id": self._run_id, "kind": f.kind, "subject": f.subject, "values_json": dict(f.values)}
                for f in facts
            ]
            self.connection.execute(insert(schema.imported_fact), said)
        self.added += len(self._batch)
        self._batch.clear()

    def _begin(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        environment = Environment({}, {}, ("imported; every measurement has the environment that its file names",))
        run = {
            "id": self._run_id,
            "command": f"import {self.name}",
            "device": "imported",
            "started_at": now,
            "finished_at": now,
            "status": "finished",
            "environment_id": self._remembered(environment),
        }
        self.connection.execute(insert(schema.run), run)

    def _remembered(self, environment: Environment) -> str:
        """The id of an environment; rows that follow one another mostly share the very same one."""
        if self._last is None or self._last[0] is not environment:
            self._last = environment, remember_environment(self.connection, environment)
        return self._last[1]


def find_import(connection: Connection, sha256: str) -> ImportedFile | None:
    """What was imported from a content of this digest."""
    row = connection.execute(select(schema.imported_file).where(schema.imported_file.c.sha256 == sha256)).one_or_none()
    return None if row is None else _imported_from(row)


def all_imports(connection: Connection) -> list[ImportedFile]:
    """Every imported file, oldest first."""
    started = schema.run.c.started_at
    query = select(schema.imported_file).join(schema.run).order_by(started, schema.run.c.id)
    return [_imported_from(row) for row in connection.execute(query)]


def facts_of(connection: Connection, run_id: str) -> list[Fact]:
    """The facts of one run, in the order of the file."""
    table = schema.imported_fact
    query = select(table).where(table.c.run_id == run_id).order_by(table.c.id)
    return [Fact(row.kind, row.subject, row.values_json) for row in connection.execute(query)]


def _imported_from(row: Row[Any]) -> ImportedFile:
    return ImportedFile(
        sha256=row.sha256,
        run_id=row.run_id,
        name=row.name,
        format=row.format,
        rows_taken=row.rows_taken,
        rows_dropped=row.rows_dropped,
        verdict=row.verdict,
        warnings=tuple(row.warnings),
    )
