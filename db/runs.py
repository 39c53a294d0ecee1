"""Runs: commands that measured, how they ended, and what they have to say beside their measurements.

What a run says (the cases that it was asked for, when it was resumed, a case that did not fit) are facts, in the same
table as those of imported files, and are as unchangeable as a measurement. A run whose process was killed stays
`running`; whoever resumes it has to make sure that nobody else still works on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, func, insert, select, update

from db import schema
from db.environments import remember_environment
from oracle.errors import UnknownName
from profiler.importers.base import Fact
from profiler.measurement import Environment, new_run_id


@dataclass(frozen=True)
class Run:
    """One command that measured.

    Args:
        id: what its measurements carry; sorts by time.
        command: what was typed.
        device: the device's name.
        started_at, finished_at: UTC, ISO 8601; `finished_at` is None until it has ended.
        status: one of `db.schema.RUN_STATUSES`; a run whose process was killed stays `running`.
        measurements: how many it has stored.
    """

    id: str
    command: str
    device: str
    started_at: str
    finished_at: str | None
    status: str
    measurements: int


def begin(connection: Connection, command: str, device: str, environment: Environment) -> str:
    """Insert a running run; returns its id."""
    now = datetime.now(UTC)
    run_id = new_run_id(now)
    row = {
        "id": run_id,
        "command": command,
        "device": device,
        "started_at": now.isoformat(timespec="seconds"),
        "status": "running",
        "environment_id": remember_environment(connection, environment),
    }
    connection.execute(insert(schema.run), row)
    return run_id


def finish(connection: Connection, run_id: str, status: str) -> None:
    """Note how a run ended.

    Raises:
        UnknownName: no such run, or no such end.
    """
    endings = schema.RUN_STATUSES[1:]
    if status not in endings:
        raise UnknownName("end of a run", status, endings)
    check(connection, [run_id])
    now = datetime.now(UTC).isoformat(timespec="seconds")
    connection.execute(update(schema.run).where(schema.run.c.id == run_id).values(status=status, finished_at=now))


def resume(connection: Connection, run_id: str) -> None:
    """Note that a run goes on.

    Raises:
        UnknownName: no such run.
    """
    check(connection, [run_id])
    going_on = {"status": "running", "finished_at": None}
    connection.execute(update(schema.run).where(schema.run.c.id == run_id).values(**going_on))


def add_facts(connection: Connection, run_id: str, facts: Iterable[Fact]) -> None:
    """Insert what a run has to say.

    Raises:
        UnknownName: no such run.
    """
    check(connection, [run_id])
    said = [
        {"run_id": run_id, "kind": fact.kind, "subject": fact.subject, "values_json": dict(fact.values)}
        for fact in facts
    ]
    if said:
        connection.execute(insert(schema.imported_fact), said)


def all_runs(connection: Connection) -> list[Run]:
    """All runs, oldest first."""
    count = func.count(schema.measurement.c.id).label("measurements")
    query = select(schema.run, count).outerjoin(schema.measurement).group_by(schema.run.c.id)
    found = connection.execute(query.order_by(schema.run.c.started_at, schema.run.c.id)).all()
    return [
        Run(row.id, row.command, row.device, row.started_at, row.finished_at, row.status, row.measurements)
        for row in found
    ]


def check(connection: Connection, run_ids: Iterable[str]) -> None:
    """Refuse runs that were never begun.

    Raises:
        UnknownName: there is no such run; the text lists the latest.
    """
    for run_id in run_ids:
        if connection.scalar(select(schema.run.c.id).where(schema.run.c.id == run_id)) is None:
            latest = select(schema.run.c.id).order_by(schema.run.c.id.desc()).limit(10)
            raise UnknownName("run", run_id, connection.scalars(latest))
