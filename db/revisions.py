"""Which revision of the schema a database has."""

from __future__ import annotations

from collections.abc import Set

from db.migrations import REVISIONS
from db.plain_sql import Ask
from oracle.errors import StoreError


def stored_revision(ask: Ask, tables: Set[str], where: str) -> str | None:
    """The schema's revision; None for a database without tables.

    Args:
        ask: reads the database.
        tables: the names of those that it has.
        where: what to call it in messages.

    Raises:
        StoreError: tables that are not stepgauge's, or a revision that this version does not know.
    """
    if not tables:
        return None
    if not {"alembic_version", "calibration", "measurement"} <= tables:
        raise StoreError(f"{where} holds tables of something else; give stepgauge a database of its own")
    versions = [row["version_num"] for row in ask("SELECT version_num FROM alembic_version")]
    if len(versions) != 1:
        raise StoreError(f"{where} is damaged: it names {len(versions)} schemas")
    if versions[0] not in REVISIONS:
        raise StoreError(
            f"{where} was written by a newer stepgauge (schema {versions[0]}); this one knows up to {REVISIONS[-1]}"
        )
    return str(versions[0])
