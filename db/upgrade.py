"""Brings a database to a revision of the schema with Alembic. Imported only when there is something to bring."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from db import migrations


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Create or migrate the tables up to `revision`, inside the transaction that `connection` is in.

    The transaction is the caller's, so that an interrupted migration leaves nothing behind where the database can roll
    back what it did to tables (SQLite and PostgreSQL can, MySQL cannot).
    """
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
