"""Runs that were measured elsewhere, in files of their own: stored once, however often they are brought here.

A visit is known by its run, its time and its case, which no other visit shares. Looking and storing are one
transaction, so that two commands that bring in the same files at once add nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from db import rows, schema
from db.environments import remember_environment
from oracle.errors import BadInput
from profiler.measurement import Measurement


def add_missing(connection: Connection, command: str, measurements: Sequence[Measurement]) -> int:
    """Store the measurements of one run that are not here yet, and the run; returns how many were added.

    Raises:
        BadInput: the run's id belongs to another command, or a measurement cannot be one.
    """
    if not measurements:
        return 0
    run_id = measurements[0].run_id
    _remember_run(connection, command, measurements)
    known = select(schema.measurement.c.taken_at, schema.measurement.c.case_json)
    found = {_visit(*row) for row in connection.execute(known.where(schema.measurement.c.run_id == run_id))}
    given = {_visit(item.taken_at, item.case): item for item in measurements}
    missing = [item for visit, item in given.items() if visit not in found]
    if missing:
        columns = [
            rows.measurement_columns(item, remember_environment(connection, item.environment)) for item in missing
        ]
        connection.execute(insert(schema.measurement), columns)
    return len(missing)


def _visit(taken_at: str, case: Mapping[str, Any]) -> tuple[str, str]:
    return taken_at, json.dumps(case, sort_keys=True)


def _remember_run(connection: Connection, command: str, measurements: Sequence[Measurement]) -> None:
    first = measurements[0]
    known = connection.scalar(select(schema.run.c.command).where(schema.run.c.id == first.run_id))
    if known is None:
        times = [item.taken_at for item in measurements]
        row = {
            "id": first.run_id,
            "command": command,
            "device": first.device,
            "started_at": min(times),
            "finished_at": max(times),
            "status": "finished",
            "environment_id": remember_environment(connection, first.environment),
        }
        connection.execute(insert(schema.run), row)
    elif known != command:
        raise BadInput(f"the run {first.run_id} is one of '{known}' here, not of '{command}'")
