"""Calibrations read from a file by SQLite's own driver are those that the store gives."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from db.calibrations import PROFILE, find_calibration
from db.migrations import REVISIONS
from db.networks import Network, NetworkConstant
from db.reading import Reader
from db.sqlite_file import SqliteFile, find_place
from db.store import Store
from oracle.constants import Calibration
from oracle.errors import StoreError, UnknownName
from oracle.stored_array import StoredArray
from profiler.measurement import Environment

HERE = Environment({"device": "Simulated 1"}, {})
CONSTANT = NetworkConstant("all_reduce.8x1.fp32.alpha_s", "all_reduce", 8, 1, "fp32", "", "", 1e-5, "s", 9e-6, 2e-5)
NETWORK = Network("net", "8 of them", "2026-01-02T00:00:00+00:00", {"curves": [1.5, None]}, (CONSTANT,))


@pytest.fixture
def filled(tmp_path: Path, make_calibration: Callable[..., Calibration]) -> str:
    """A file with two calibrations, the newer of them of single models, and a network."""
    path = str(tmp_path / "filled.sqlite")
    with Store.open(path) as store:
        general, profile = (store.begin_run(command, "d", HERE) for command in ("measure", PROFILE))
        store.add_calibration(make_calibration("old", created_at="2026-01-01T00:00:00+00:00"), [general])
        store.add_calibration(make_calibration("mine", created_at="2026-01-05T00:00:00+00:00"), [general, profile])
        store.add_network(NETWORK, [general])
    return path


def _all(reader: Reader) -> list[object]:
    names = ("old", "mine")
    return [
        reader.location,
        reader.calibrations(),
        reader.networks(),
        reader.newest_calibration(),
        reader.network("net"),
        *map(reader.calibration, names),
        *map(reader.calibration_runs, names),
        *map(reader.has_calibration, (*names, "net", "nett")),
    ]


def test_both_drivers_give_the_same(filled: str) -> None:
    with Reader.open(filled) as plain, Store.open(filled) as store, Reader.open(f"sqlite:///{filled}") as by_url:
        assert isinstance(plain._source, SqliteFile)
        assert not isinstance(by_url._source, SqliteFile)
        assert _all(plain) == _all(store) == _all(by_url)
        assert plain.newest_calibration() == "old"
        assert plain.network("net") == NETWORK


def test_drivers_that_read_json_and_give_views_of_bytes_give_the_same(
    tmp_path: Path, make_calibration: Callable[..., Calibration]
) -> None:
    # As psycopg2 does for PostgreSQL, which no test can start: JSON comes as values, bytes as a memoryview.
    first, *others = make_calibration().fits
    arrays = (StoredArray.of("names", np.array(["flop", "bytes"])), StoredArray.of("x", np.array([1.5, 2.0])))
    stored = make_calibration(fits=(replace(first, arrays=arrays), *others))
    path = str(tmp_path / "x.sqlite")
    with Store.open(path) as store:
        store.add_calibration(stored, [])
    source = SqliteFile(find_place(path, create=False), 1.0)
    with source.reading() as ask:

        def as_a_server(statement: str, /, **values: object) -> list[dict[str, Any]]:
            return [{name: _served(row[name]) for name in row.keys()} for row in ask(statement, **values)]  # type: ignore[attr-defined] # noqa: SIM118

        again = find_calibration(as_a_server, "small")
    source.close()
    assert again == stored
    assert [array.read().tolist() for array in again.fits[0].arrays] == [["flop", "bytes"], [1.5, 2.0]]


def _served(value: object) -> object:
    if isinstance(value, bytes):
        return memoryview(value)
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def test_layers_that_are_measured_twice_are_read_once(filled: str) -> None:
    with Reader.open(filled) as reader:
        layers = [shape.layer for shape in reader.calibration("old").shapes]
    assert len({id(layer) for layer in layers}) == len(set(layers)) < len(layers)


def test_unknown_names_are_said_with_the_closest(filled: str) -> None:
    with Reader.open(filled) as reader:
        with pytest.raises(UnknownName, match="unknown calibration 'olf'; did you mean 'old'"):
            reader.calibration("olf")
        with pytest.raises(UnknownName, match="did you mean 'net'"):
            reader.network("nett")


def test_rows_that_were_tampered_with_are_said_in_one_line(filled: str) -> None:
    connection = sqlite3.connect(filled)
    connection.execute("DROP TRIGGER measured_shape_no_update")
    connection.execute("UPDATE measured_shape SET layer = '{'")
    connection.commit()
    connection.close()
    with Reader.open(filled) as reader, pytest.raises(StoreError, match="cannot be read back"):
        reader.calibration("old")


def test_a_missing_and_an_older_database_are_made_ready(tmp_path: Path) -> None:
    with Reader.open(str(tmp_path / "new.sqlite")) as reader:
        assert reader.newest_calibration() is None
    old = tmp_path / "old.sqlite"
    connection = sqlite3.connect(old)
    connection.executescript((Path(__file__).parents[1] / "data" / "schema-0001.sql").read_text(encoding="utf-8"))
    connection.close()
    with Reader.open(str(old)) as reader:
        assert reader.calibrations()
    connection = sqlite3.connect(old)
    assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (REVISIONS[-1],)
    connection.close()


def test_what_another_process_stores_is_seen_and_not_held_up(
    filled: str, make_calibration: Callable[..., Calibration]
) -> None:
    with Reader.open(filled) as reader, Store.open(filled, timeout_s=0.1) as store:
        assert not reader.has_calibration("new")
        store.add_calibration(make_calibration("new"), [])
        assert reader.has_calibration("new")
