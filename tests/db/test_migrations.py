"""Old databases open, and migrating leads to the very tables that the code expects."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.schema import CreateTable

from db import migrations
from db.migrations import REVISIONS
from db.schema import METADATA
from db.store import Store
from db.upgrade import upgrade
from oracle.constants import Calibration
from oracle.stored_array import StoredArray
from profiler.measurement import Environment

OLD_DATABASES = sorted((Path(__file__).parents[1] / "data").glob("schema-*.sql"))


def _tables(connection: Connection) -> dict[str, list[str]]:
    """Each table and index with the lines of its SQL, in any order."""
    query = text("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql IS NOT NULL")
    return {
        name: sorted(line.strip().rstrip(",") for line in sql.splitlines())
        for name, sql in connection.execute(query)
        if name != "alembic_version"
    }


def test_the_names_of_the_revisions_are_those_of_the_files() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    walked = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(script.revision for script in walked) == REVISIONS[::-1]


def test_migrating_leads_to_the_tables_of_the_schema() -> None:
    migrated, created = create_engine("sqlite://"), create_engine("sqlite://")
    with migrated.begin() as old, created.begin() as new:
        upgrade(old)
        METADATA.create_all(new)
        assert compare_metadata(MigrationContext.configure(old), METADATA) == []
        # Alembic compares no check constraints; the text of the tables shows them too.
        assert _tables(old) == _tables(new)
    migrated.dispose()
    created.dispose()


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_database_of_every_revision_opens(
    tmp_path: Path, revision: str, make_calibration: Callable[..., Calibration]
) -> None:
    path = tmp_path / "old.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade(connection, revision)
    engine.dispose()
    with Store.open(str(path), create=False) as store:
        run = store.begin_run("measure", "Simulated 1", Environment({}, {}))
        store.add_calibration(make_calibration(), [run])
        assert store.calibration("small") == make_calibration()


@pytest.mark.parametrize("dump", OLD_DATABASES, ids=lambda dump: str(dump.stem))
def test_an_old_database_keeps_what_it_holds(
    tmp_path: Path, dump: Path, make_calibration: Callable[..., Calibration]
) -> None:
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()
    with Store.open(str(path)) as store:
        (run,) = store.runs()
        (measurement,) = store.measurements(run.id)
        assert store.calibration("small") == make_calibration()
        assert store.calibration_runs("small") == [run.id]
        assert measurement.device_s == (3.1e-5, 2.9e-5, 1 / 3e4)


def test_arrays_that_were_lists_are_the_same_bytes(
    tmp_path: Path, make_calibration: Callable[..., Calibration]
) -> None:
    first, *others = make_calibration().fits
    lists = {
        "x": ("float64", [2, 2], "[1e-300, -0.3333333333333333, 2.0, 1e+300]"),
        "y": ("float32", [2], "[0.1, 30000000.0]"),
        "nodes": ("int16", [1, 2], "[3, -2]"),
        "names": ("text", [2], '["log2_m", "log2_n"]'),
    }
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript((Path(OLD_DATABASES[0]).parent / "schema-0003.sql").read_text())
    connection.executemany(
        "INSERT INTO kernel_array (calibration_id, family, phase, execution, name, dtype, shape, numbers) "
        "VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
        [(*first.key, name, dtype, json.dumps(shape), text) for name, (dtype, shape, text) in lists.items()],
    )
    connection.commit()
    connection.close()
    arrays = (
        StoredArray.of("x", np.array([[1e-300, -1 / 3], [2.0, 1e300]])),
        StoredArray.of("y", np.array([0.1, 3e7], dtype=np.float32)),
        StoredArray.of("nodes", np.array([[3, -2]], dtype=np.int16)),
        StoredArray.of("names", np.array(["log2_m", "log2_n"])),
    )
    with Store.open(str(path)) as store:
        assert store.calibration("small") == make_calibration(fits=(replace(first, arrays=arrays), *others))
    connection = sqlite3.connect(path)
    for change in ("UPDATE kernel_array SET name = 'z'", "DELETE FROM kernel_array"):
        with pytest.raises(sqlite3.IntegrityError, match="immutable"):
            connection.execute(change)
    connection.close()


def test_every_schema_so_far_has_a_database_to_open() -> None:
    assert [dump.stem for dump in OLD_DATABASES] == [f"schema-{revision}" for revision in REVISIONS]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_every_table_can_be_written_for_every_kind_of_server(kind: str) -> None:
    dialect = URL.create(kind).get_dialect()()
    for table in METADATA.sorted_tables:
        created = str(CreateTable(table).compile(dialect=dialect))
        # No name is a word of the language: plain SQL needs no quotes.
        assert f"CREATE TABLE {table.name} (" in created
        assert not {'"', "`"} & set(created)
        names = [*(index.name for index in table.indexes), *(rule.name for rule in table.constraints)]
        assert max(len(str(name)) for name in names) <= 63  # what PostgreSQL allows
