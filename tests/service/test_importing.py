"""`stepgauge import` stores what other tools measured, once, and says what it left out."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Stepgauge = Callable[..., Any]
SAMPLES = Path(__file__).resolve().parents[1] / "data" / "importers"


@pytest.fixture(autouse=True)
def _own_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def _rows(db: Path, table: str) -> int:
    connection = sqlite3.connect(db)
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return int(count)


def test_the_same_file_twice_adds_nothing(stepgauge: Stepgauge, tmp_path: Path) -> None:
    db, log = tmp_path / "store.sqlite", SAMPLES / "nccl_tests.txt"
    first = json.loads(stepgauge("import", log, "--json", "--db", db).out)["files"][0]
    before = _rows(db, "measurement")
    assert before == first["stored"] > 0
    # A compressed copy under another name is the same content.
    (tmp_path / "copy.gz").write_bytes(gzip.compress(log.read_bytes()))
    ran = stepgauge("import", log, tmp_path / "copy.gz", "--json", "--db", db)
    again = json.loads(ran.out)["files"]
    assert ran.code == 0
    assert [file["known"] for file in again] == [True, True]
    assert [file["run"] for file in again] == [first["run"], first["run"]]
    assert (_rows(db, "measurement"), _rows(db, "run"), _rows(db, "imported_file")) == (before, 1, 1)


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*[!d]")), ids=lambda path: str(path.name))
def test_every_sample_is_stored_or_refused_with_a_reason(stepgauge: Stepgauge, tmp_path: Path, sample: Path) -> None:
    db = tmp_path / "store.sqlite"
    ran = stepgauge("import", sample, "--json", "--db", db)
    (file,) = json.loads(ran.out)["files"]
    assert ran.code == (2 if file["error"] else 0)
    assert _rows(db, "measurement") + _rows(db, "imported_fact") == file["stored"]
    assert (file["stored"] > 0) == (not file["error"])
    assert ran.err.count("\n") == (1 if file["error"] else 0)


def test_dropped_rows_are_grouped_or_listed_line_by_line(stepgauge: Stepgauge, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    head = "collective,bytes,nranks,nnodes,dtype,time_us"
    table.write_text(f"{head}\nall_reduce,1024,8,1,float,20\nall_reduce,0,8,1,float,1\nall_reduce,0,8,1,float,2\n")
    grouped = stepgauge("import", table, "--db", tmp_path / "a.sqlite")
    assert "dropped 2 x size 0, or no whole number of bytes (first in line 3)" in grouped.out
    listed = stepgauge("import", table, "--verbose", "--db", tmp_path / "b.sqlite")
    assert "table.csv:4: size 0" in listed.out
    assert "complete" in listed.out


def test_what_the_log_does_not_say_can_be_given(stepgauge: Stepgauge, tmp_path: Path) -> None:
    log, db = SAMPLES / "osu.txt", tmp_path / "store.sqlite"
    given = ("--device", "Tesla V100", "--nodes", 2)
    (file,) = json.loads(stepgauge("import", log, *given, "--json", "--db", db).out)["files"]
    assert file["stored"] > 0


def test_one_refused_file_does_not_keep_the_others_out(stepgauge: Stepgauge, tmp_path: Path) -> None:
    db = tmp_path / "store.sqlite"
    (tmp_path / "bad\n.txt").write_bytes(b"\x00\x01" * 100)
    ran = stepgauge("import", tmp_path / "bad\n.txt", SAMPLES / "nccl_tests.txt", "--db", db)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert "refused" in ran.out
    assert _rows(db, "imported_file") == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "empty"), (b"\x00" * 100, ""), (b"a poem\nof two lines\n", "none of the known formats"), (None, "no such")],
)
def test_a_bad_file_is_refused_in_one_line(
    stepgauge: Stepgauge, tmp_path: Path, content: bytes | None, text: str
) -> None:
    bad = tmp_path / "bad.txt"
    if content is not None:
        bad.write_bytes(content)
    ran = stepgauge("import", bad, "--db", tmp_path / "store.sqlite")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("error: ")
    assert text in ran.err.lower()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--ranks", 1), "--ranks must be at least 2"),
        (("--nodes", 0), "--nodes must be at least 1"),
        (("--collective", "allreduc"), "did you mean 'all_reduce'?"),
    ],
)
def test_impossible_assumptions_are_refused(
    stepgauge: Stepgauge, tmp_path: Path, arguments: tuple[object, ...], text: str
) -> None:
    ran = stepgauge("import", SAMPLES / "osu.txt", *arguments, "--db", tmp_path / "store.sqlite")
    assert ran.code == 2
    assert text in ran.err


def test_names_of_hosts_are_kept_under_one_key_outside_the_store(stepgauge: Stepgauge, tmp_path: Path) -> None:
    db = tmp_path / "store.sqlite"
    stepgauge("import", SAMPLES / "nccl_tests.txt", "--db", db)
    key = tmp_path / "data" / "stepgauge" / "host-key"
    first = key.read_bytes()
    assert len(first) == 32
    assert key.stat().st_mode & 0o077 == 0
    stepgauge("import", SAMPLES / "osu.txt", "--db", db)
    assert key.read_bytes() == first
