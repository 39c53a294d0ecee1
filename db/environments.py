"""Stores an environment once, for all that was measured in it."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from db import rows, schema
from profiler.measurement import Environment


def remember_environment(connection: Connection, environment: Environment) -> str:
    """Store an environment unless it is known; returns its id."""
    columns = rows.environment_columns(environment)
    known = select(schema.environment.c.id).where(schema.environment.c.id == columns["id"])
    if connection.scalar(known) is None:
        try:
            with connection.begin_nested():
                connection.execute(insert(schema.environment), columns)
        except IntegrityError:
            # On a server another process may store the same environment between the look and the insertion.
            if connection.scalar(known) is None:
                raise
    return str(columns["id"])
