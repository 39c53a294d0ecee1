"""Whatever is wrong with a database is one line that says so."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from db.errors import said_in_one_line
from db.migrations import REVISIONS
from db.reading import Reader
from db.store import Store
from oracle.constants import Calibration
from oracle.errors import StoreError


def _refused(url_or_path: str | Path, *, create: bool = True, timeout_s: float = 0.1) -> str:
    """The one line with which a database is refused, the same to who writes and to who only reads calibrations."""
    messages = []
    for kind in (Store, Reader):
        with pytest.raises(StoreError) as caught, kind.open(str(url_or_path), create=create, timeout_s=timeout_s):
            pass
        messages.append(str(caught.value))
    message, again = messages
    assert message == again
    assert "\n" not in message
    assert len(message) < 800
    return message


@pytest.fixture
def filled(tmp_path: Path, make_calibration: Callable[..., Calibration]) -> Path:
    path = tmp_path / "filled.sqlite"
    with Store.open(str(path)) as store:
        for i in range(20):
            store.add_calibration(make_calibration(f"number {i}"), [])
    return path


def test_a_missing_database_is_made_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    assert _refused(path, create=False) == f"there is no database {path} yet"
    assert not path.exists()
    with Store.open(str(path)):
        pass
    with Store.open(str(path), create=False) as store:
        assert store.runs() == []


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    path.touch()
    assert _refused(path, create=False) == f"{path} has no tables of stepgauge yet"
    with Store.open(str(path)) as store:
        assert store.calibrations() == []


def test_the_folder_of_the_default_is_made_but_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no folder" in _refused(tmp_path / "no" / "folder" / "x.sqlite")
    assert not (tmp_path / "no").exists()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))
    path = tmp_path / "home" / "data" / "stepgauge" / "stepgauge.sqlite"
    with Store.open(str(path)) as store:
        assert store.runs() == []


@pytest.mark.parametrize("name", ["with blank.sqlite", "50%25.sqlite", "what?mode=ro#x.sqlite", "ünï.sqlite"])
def test_any_file_name_is_just_a_name(tmp_path: Path, name: str) -> None:
    with Store.open(str(tmp_path / name)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_link_leads_to_the_database_behind_it(tmp_path: Path, filled: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to(filled)
    with Store.open(str(tmp_path / "link.sqlite"), create=False) as store:
        assert len(store.calibrations()) == 20
    (tmp_path / "loop.sqlite").symlink_to(tmp_path / "loop.sqlite")
    assert "cannot be opened" in _refused(tmp_path / "loop.sqlite")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Store.open("~/x.sqlite"):
        pass
    assert (tmp_path / "x.sqlite").exists()


@pytest.mark.parametrize("content", [b"SELECT 1;\n" * 400, b"\x00\xff" * 3000, b"short", b"SQLite format 3\x00"])
def test_what_is_not_a_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    assert "damaged" in _refused(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.9])
def test_a_truncated_database_is_damaged(filled: Path, part: float) -> None:
    content = filled.read_bytes()
    filled.write_bytes(content[: int(part * len(content))])
    assert "damaged" in _refused(filled)


def test_a_hole_in_a_database_is_damage_when_it_is_read(filled: Path) -> None:
    content = bytearray(filled.read_bytes())
    # The first page holds the tables' names, which opening needs; everything after it is overwritten.
    content[4096:] = b"\xa5" * (len(content) - 4096)
    filled.write_bytes(content)
    for kind in (Store, Reader):
        with pytest.raises(StoreError, match="damaged"), kind.open(str(filled)) as store:
            store.calibration("number 1")


def test_a_newer_schema_is_named(filled: Path) -> None:
    connection = sqlite3.connect(filled)
    connection.execute("UPDATE alembic_version SET version_num = '0999'")
    connection.commit()
    connection.close()
    message = _refused(filled)
    assert f"written by a newer stepgauge (schema 0999); this one knows up to {REVISIONS[-1]}" in message


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmark (url TEXT)")
    connection.close()
    assert "holds tables of something else" in _refused(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmark",)]
    connection.close()


def test_a_database_without_its_version_is_damaged(filled: Path) -> None:
    connection = sqlite3.connect(filled)
    connection.execute("DELETE FROM alembic_version")
    connection.commit()
    connection.close()
    assert "it names 0 schemas" in _refused(filled)


def test_a_locked_database_can_be_read_but_not_written(
    filled: Path, make_calibration: Callable[..., Calibration]
) -> None:
    other = sqlite3.connect(filled, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Store.open(str(filled), timeout_s=0.1) as store:
        assert len(store.calibrations()) == 20
        with pytest.raises(StoreError, match="stayed locked by another process"):
            store.add_calibration(make_calibration("late"), [])
        other.execute("ROLLBACK")
        store.add_calibration(make_calibration("late"), [])
    other.close()


def test_a_new_database_that_another_process_holds_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert "stayed locked" in _refused(path)
    other.execute("ROLLBACK")
    other.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nosuchdb://host/x", "unknown kind of database 'nosuchdb'"),
        ("postgresql+nosuchdriver://host/x", "unknown kind of database 'postgresql+nosuchdriver'"),
        ("://", "not a database URL"),
        ("postgresql://me:secret@host:port/x", "not a database URL"),
        ("sqlite:///x.sqlite?mode=ro", "takes no options"),
        ("", "is a folder"),
        ("/", "is a folder"),
        ("a\0b", "null character"),
        ("x" * 300, "too long"),
        ("/proc/version/x.sqlite", "no folder"),
        ("\udcff/x.sqlite", "no folder"),
    ],
)
def test_a_bad_url_is_said_without_its_password(url: str, says: str) -> None:
    message = _refused(url)
    assert says in message
    assert "secret" not in message


@pytest.mark.parametrize("driver", ["pymssql", "oracledb", "asyncpg", "mysqldb", "pg8000", "psycopg"])
def test_a_missing_driver_is_named(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {"pymssql": "mssql", "oracledb": "oracle", "mysqldb": "mysql"}.get(driver, "postgresql")
    package = "MySQLdb" if driver == "mysqldb" else driver
    monkeypatch.setitem(sys.modules, package, None)  # what Python itself does for a package that is not there
    message = _refused(f"{kind}+{driver}://me:secret@host/x")
    assert f"a {kind} database needs the Python package '{package}'" in message


def test_a_folder_on_a_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No test can mount a network's folder: the list of mounts, which the system provides, is another here.
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nsrv:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr("db.location.MOUNTS", mounts)
    message = _refused(tmp_path / "x.sqlite")
    assert "network file system (nfs4)" in message
    assert "--db or STEPGAUGE_DB" in message
    assert not (tmp_path / "x.sqlite").exists()


def test_errors_of_the_system_are_one_line_too() -> None:
    with pytest.raises(StoreError, match=r"here: .*No space left") as caught, said_in_one_line("here"):
        raise OSError(28, "No space left on device\nand more")
    assert "\n" not in str(caught.value)


def test_a_copy_is_a_whole_database(filled: Path, tmp_path: Path) -> None:
    # Nothing stays in files beside it once the last process has closed it.
    shutil.copy(filled, tmp_path / "copy.sqlite")
    assert not list(tmp_path.glob("*-wal"))
    with Store.open(str(tmp_path / "copy.sqlite")) as store:
        assert len(store.calibrations()) == 20
