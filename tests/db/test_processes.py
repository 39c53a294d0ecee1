"""The store among other processes: two that write, one that is killed, a full disk, folders that may not be written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from db.store import Store
from oracle.constants import Calibration
from oracle.interchange import calibration_to_json
from profiler.measurement import Environment, Measurement

Start = Callable[..., "subprocess.Popen[str]"]

TIMEOUT_S = 60

BEGINNING = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from sqlalchemy import Engine, event
from db.store import Store
from oracle.errors import StoreError
from oracle.interchange import calibration_from_json
from profiler.measurement import Environment, Measurement

path, example = sys.argv[1], calibration_from_json(Path(sys.argv[2]).read_text())
here = Environment({"device": "Simulated 1"}, {})

def measurement(run):
    return Measurement("linear", {}, "forward", "fp32", (1e-5,), (), 1, "d", here, run, "2026-01-02", "done")

def die_before(beginning, count=1):
    # SQLAlchemy's own hook: the process is killed in the middle of a transaction, before that statement.
    left = [count]
    @event.listens_for(Engine, "before_cursor_execute")
    def hook(connection, cursor, statement, parameters, context, many):
        left[0] -= statement.strip().startswith(beginning)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def example(tmp_path: Path, make_calibration: Callable[..., Calibration]) -> Path:
    """A calibration as a file, for a script to store."""
    path = tmp_path / "example.json"
    path.write_text(calibration_to_json(make_calibration()))
    return path


def _finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out + err


def test_two_processes_create_and_write_at_once(tmp_path: Path, example: Path, start_python: Start) -> None:
    path = tmp_path / "store.sqlite"
    script = f"""{BEGINNING}
who = sys.argv[3]
for i in range(12):
    with Store.open(path) as store:
        run = store.begin_run(who, "d", here)
        store.add_measurements([measurement(run) for _ in range(20)])
        store.add_calibration(replace(example, name=f"{{who}} {{i}}"), [run])
        store.finish_run(run)
"""
    processes = [start_python(script, path, example, who) for who in ("one", "two")]
    assert [_finish(process) for process in processes] == [(0, "")] * 2
    with Store.open(str(path)) as store:
        assert [run.measurements for run in store.runs()] == [20] * 24
        assert {run.status for run in store.runs()} == {"finished"}
        assert len(store.calibrations()) == 24
        assert all(store.calibration(f"two {i}").constants for i in range(12))


@pytest.mark.parametrize("beginning", ["INSERT INTO calibration", "INSERT INTO constant", "INSERT INTO measured_shape"])
def test_a_writer_killed_in_a_calibration_leaves_nothing_of_it(
    tmp_path: Path, example: Path, start_python: Start, make_calibration: Callable[..., Calibration], beginning: str
) -> None:
    path = tmp_path / "store.sqlite"
    script = f"""{BEGINNING}
store = Store.open(path)
store.add_calibration(replace(example, name="before"), [])
die_before({beginning!r})
store.add_calibration(example, [])
"""
    assert _finish(start_python(script, path, example))[0] == -signal.SIGKILL
    with Store.open(str(path)) as store:
        (only,) = store.calibrations()
        assert (only.name, only.constants, only.shapes) == ("before", 6, 4)
        assert not store.has_calibration("small")
        # The next one works, under the name that was not taken.
        store.add_calibration(make_calibration(), [])
        assert store.calibration("small") == make_calibration()


def test_a_writer_killed_in_a_run_keeps_what_it_had_stored(
    tmp_path: Path, example: Path, start_python: Start, make_measurement: Callable[..., Measurement]
) -> None:
    path = tmp_path / "store.sqlite"
    script = f"""{BEGINNING}
store = Store.open(path)
run = store.begin_run("measure", "d", here)
die_before("INSERT INTO measurement", 4)
while True:
    store.add_measurement(measurement(run))
"""
    assert _finish(start_python(script, path, example))[0] == -signal.SIGKILL
    with Store.open(str(path)) as store:
        (run,) = store.runs()
        assert (run.status, run.measurements) == ("running", 3)
        store.add_measurement(make_measurement(run.id))
        store.finish_run(run.id, "interrupted")
        assert len(store.measurements(run.id)) == 4


@pytest.mark.parametrize("beginning", ["CREATE TABLE calibration", "CREATE TRIGGER", "INSERT INTO alembic_version"])
def test_a_process_killed_while_it_creates_leaves_an_empty_database(
    tmp_path: Path, example: Path, start_python: Start, beginning: str
) -> None:
    path = tmp_path / "store.sqlite"
    script = f"{BEGINNING}\ndie_before({beginning!r})\nStore.open(path)"
    assert _finish(start_python(script, path, example))[0] == -signal.SIGKILL
    with Store.open(str(path)) as store:
        assert store.runs() == []


def test_a_full_database_keeps_what_it_had(tmp_path: Path, example: Path, start_python: Start) -> None:
    path = tmp_path / "store.sqlite"
    # SQLite's own limit of pages gives the very error of a full disk, without a disk to fill.
    script = f"""{BEGINNING}
with Store.open(path) as store:
    store.add_calibration(example, [])
@event.listens_for(Engine, "connect")
def limit(connection, record):
    connection.execute("PRAGMA max_page_count = 40")
with Store.open(path) as store:
    try:
        for i in range(100):
            store.add_calibration(replace(example, name=f"number {{i}}"), [])
    except StoreError as error:
        print(error)
    print(i, len(store.calibrations()))
"""
    status, output = _finish(start_python(script, path, example))
    message, counts = output.splitlines()
    assert (status, message) == (0, f"the disk of {path} is full; nothing of this was stored")
    stored, listed = map(int, counts.split())
    assert listed == stored + 1  # number 0 to number i - 1, and the first
    with Store.open(str(path)) as store:
        assert [one.constants for one in store.calibrations()] == [6] * listed


@pytest.mark.skipif(not shutil.which("unshare"), reason="a small disk needs unshare to be mounted")
def test_a_full_disk_is_said(tmp_path: Path, example: Path, start_python: Start) -> None:
    probe = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip("this user may not mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"""{BEGINNING}
import subprocess
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(Path(path).parent)], check=True)
try:
    with Store.open(path) as store:
        for i in range(100):
            store.add_calibration(replace(example, name=f"number {{i}}"), [])
except StoreError as error:
    print(error)
with Store.open(path) as store:
    print(i > 0, len(store.calibrations()) == i)
"""
    prefix = ["unshare", "--map-root-user", "--mount"]
    status, output = _finish(start_python(script, disk / "store.sqlite", example, prefix=prefix))
    assert status == 0, output
    message, kept = output.splitlines()
    assert "full" in message
    assert kept == "True True"


def _without_power() -> list[str]:
    """What to put before a command so that permissions hold for it: root passes over them otherwise."""
    if os.geteuid():
        return []
    if not shutil.which("setpriv"):
        pytest.skip("root needs setpriv to be held to permissions")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


TRY = """
def attempt(what):
    try:
        print(what())
    except StoreError as error:
        print(error)
def write():
    with Store.open(path) as store:
        store.begin_run("measure", "d", here)
def read():
    with Store.open(path) as store:
        return store.calibration("small") == example
attempt(read)
attempt(write)
"""


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_read_only_database_is_read_but_not_written(
    tmp_path: Path, example: Path, start_python: Start, make_calibration: Callable[..., Calibration], what: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "store.sqlite"
    with Store.open(str(path)) as store:
        store.add_calibration(make_calibration(), [])
    target, mode = (folder, 0o555) if what == "folder" else (path, 0o444)
    target.chmod(mode)
    status, output = _finish(start_python(BEGINNING + TRY, path, example, prefix=_without_power()))
    target.chmod(0o755)
    assert (status, output) == (0, f"True\n{path} is read-only: nothing can be stored in it\n")


def test_a_read_only_folder_holds_no_new_database(tmp_path: Path, example: Path, start_python: Start) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o555)
    path = folder / "store.sqlite"
    status, output = _finish(start_python(BEGINNING + TRY, path, example, prefix=_without_power()))
    assert (status, output) == (0, f"{path} cannot be created: its folder is read-only\n" * 2)


def test_a_database_that_may_not_be_read_is_said(tmp_path: Path, example: Path, start_python: Start) -> None:
    path = tmp_path / "store.sqlite"
    with Store.open(str(path)) as store:
        store.begin_run("measure", "d", Environment({}, {}))
    path.chmod(0)
    status, output = _finish(start_python(BEGINNING + TRY, path, example, prefix=_without_power()))
    assert status == 0
    assert output.count("cannot be opened") == 2


def test_a_reader_meets_a_writer_that_was_killed_in_a_read_only_folder(
    tmp_path: Path, example: Path, start_python: Start
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "store.sqlite"
    script = f"""{BEGINNING}
store = Store.open(path)
store.add_calibration(example, [])
os.kill(os.getpid(), signal.SIGKILL)
"""
    _finish(start_python(script, path, example))
    assert Path(f"{path}-wal").exists()  # what was stored is still only in the log
    folder.chmod(0o555)
    status, output = _finish(start_python(BEGINNING + TRY, path, example, prefix=_without_power()))
    folder.chmod(0o755)
    assert (status, output) == (0, f"True\n{path} is read-only: nothing can be stored in it\n")


@pytest.mark.parametrize(
    ("opens", "slow"),
    [("db.store:Store", ["sqlalchemy.orm"]), ("db.reading:Reader", ["sqlalchemy"])],
    ids=["writing", "reading"],
)
def test_opening_needs_no_alembic_and_no_mapper(
    tmp_path: Path, start_python: Start, opens: str, slow: list[str]
) -> None:
    path = tmp_path / "store.sqlite"
    with Store.open(str(path)):
        pass
    module, _, name = opens.partition(":")
    script = f"""
import sys
from {module} import {name}
with {name}.open(sys.argv[1]) as store:
    store.calibrations()
slow = {{"alembic", "torch", "scipy", "sklearn", *{slow!r}}}
print(sorted(slow & set(sys.modules)))
"""
    assert _finish(start_python(script, path)) == (0, "[]\n")
