"""Collectives through the command line, between real processes; few, short, on Gloo."""

from __future__ import annotations

import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiler.collectives.collected import collect
from profiler.collectives.records import RankFile, environment_values, measurement_values, rank_files, rank_path
from profiler.measurement import Measurement
from service.hosts import host_key, names_path, remember_hosts

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0
SHORT = ("--collectives", "--only", "all_reduce", "--largest", "512B", "--budget", "200s")
MakeMeasurement = Callable[..., Measurement]


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def _measured(db: Path) -> int:
    connection = sqlite3.connect(db)
    (count,) = connection.execute("SELECT count(*) FROM measurement").fetchone()
    connection.close()
    return int(count)


def _everything(folder: Path) -> str:
    """All text of all files below a folder, but for the user's own key and table of names."""
    own = ("host-key", "host-names.jsonl")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in own]
    return "".join(path.read_bytes().decode("latin-1") for path in files)


def test_calibrate_measures_fits_and_stores_a_network(
    stepgauge: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-token")
    db = tmp_path / "data" / "store.sqlite"
    db.parent.mkdir()
    ran = stepgauge("calibrate", *SHORT, "--name", "gloo", "--json", "--db", db)
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    (row,) = told["rows"]
    # 32, 64, 128, 256 and 512 bytes; one fit left each but the ends out once.
    assert (row["collective"], row["ranks"], row["nodes"], row["sizes"]) == ("all_reduce", 2, 1, 5)
    assert row["held_out_error"] is not None
    assert row["latency_s"] > 0
    assert _measured(db) == told["visits"]
    # The network prices a plan without being told which environment is meant.
    assert stepgauge("show", "gloo", "--db", db).code == 0
    # Files of a run that is stored give its name back to the next one, which a taken calibration still refuses.
    assert Path(told["folder"]).name == told["run"]
    assert "choose another --name" in stepgauge("calibrate", *SHORT, "--name", "gloo", "--db", db).err
    # No variable that nobody listed and no host name is stored; the user's own table still knows the name.
    text = _everything(tmp_path)
    assert "hunter2-token" not in text
    host = json.loads(names_path().read_text().splitlines()[0])
    assert host["name"] == platform.node()
    assert host["host"] in text
    if len(platform.node()) > 6:
        assert platform.node() not in text
    # The files of its ranks are known already.
    again = json.loads(stepgauge("collect", told["folder"], "--json", "--db", db).out)
    assert [run["added"] for run in again["runs"]] == [0]
    assert _measured(db) == told["visits"]


def _ranks_of(parent: int) -> dict[int, int]:
    """The process of each rank that `parent` started."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            arguments = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(fields[1]) == parent and b"profiler.collectives.rank" in arguments:
            found[json.loads(arguments[4])["rank"]] = int(path.name)
    return found


def _kill_when_measuring(folder: Path, rank: int, killed: list[int]) -> threading.Thread:
    def run() -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_s:
            files = rank_files(folder)
            if len(files) == 2 and all(b'{"measurement"' in path.read_bytes() for path in files):
                killed.append(_ranks_of(os.getpid())[rank])
                os.kill(killed[0], signal.SIGKILL)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_killed_rank_is_named_and_resume_finishes_the_run(stepgauge: Callable[..., Any], tmp_path: Path) -> None:
    db, folder = tmp_path / "store.sqlite", tmp_path / "files"
    measure = (
        "measure",
        "--collectives",
        "--only",
        "all_reduce,p2p,broadcast",
        "--largest",
        "512B",
        "--folder",
        folder,
    )
    killed: list[int] = []
    thread = _kill_when_measuring(folder, 1, killed)
    ran = stepgauge(*measure, "--budget", "200s", "--db", db)
    thread.join()
    assert ran.code == 2
    assert "rank 1 was killed by SIGKILL" in ran.err
    assert "--resume" in ran.err
    assert ran.err.count("error:") == 1
    assert not Path(f"/proc/{killed[0]}").exists()
    kept = len(collect(rank_files(folder)).measurements)
    assert kept
    # What is there is not overwritten by chance.
    assert "holds measurements" in stepgauge(*measure, "--db", db).err
    ran = stepgauge(*measure, "--budget", "200s", "--resume", "--json", "--db", db)
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["visits"] > kept
    assert _measured(db) == told["visits"]
    # One run: the resumed half has the name of the first.
    assert {m.run_id for m in collect(rank_files(folder)).measurements} == {told["run"]}


def test_a_full_disk_and_a_second_start_are_refused_with_their_cause(
    stepgauge: Callable[..., Any], tmp_path: Path
) -> None:
    db, full, busy = tmp_path / "store.sqlite", tmp_path / "full", tmp_path / "busy"
    full.mkdir()
    rank_path(full, 1).symlink_to("/dev/full")
    ran = stepgauge("measure", *SHORT, "--folder", full, "--db", db)
    assert ran.code == 2
    assert "rank 1 cannot write" in ran.err
    assert "No space left" in ran.err
    running = RankFile(rank_path(busy, 0), resume=False)
    ran = stepgauge("calibrate", *SHORT, "--folder", busy, "--resume", "--db", db)
    running.close()
    assert ran.code == 2
    assert "another run is writing" in ran.err


def test_under_torchrun_ranks_write_files_and_collect_brings_them_in(
    stepgauge: Callable[..., Any], tmp_path: Path
) -> None:
    db, folder = tmp_path / "store.sqlite", tmp_path / "files"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "cli.py"]
    arguments = ["measure", *SHORT, "--groups", "all,node", "--folder", str(folder), "--db", str(db)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *arguments], check=False, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert not db.exists()
    assert done.stdout.count("stepgauge collect") == 1  # rank 0 alone speaks
    ran = stepgauge("collect", folder, "--name", "cluster", "--json", "--db", db)
    assert ran.code == 0, ran.err
    (run,) = json.loads(ran.out)["runs"]
    assert (run["ranks"], run["nodes"]) == (2, 1)
    assert run["added"] == run["visits"] == _measured(db)
    assert "cluster" in stepgauge("list", "--db", db).out


def _visits(
    make_measurement: MakeMeasurement, run: str, ranks: Iterable[int], world: int = 2, **identity: str
) -> list[Measurement]:
    """What some ranks of a run have in their files: five sizes of one collective."""
    made = []
    for rank in ranks:
        for step in range(5):
            case = {"collective": "broadcast", "bytes": 64 << step, "ranks": world, "nodes": 1, "dtype": "fp32"}
            times = (1e-5 * (1 + step),) * 6
            seconds = {"device_s": times, "host_s": times, "taken_at": f"2026-01-02T03:04:{step:02d}+00:00"}
            one = make_measurement(run, micro="collective", phase="broadcast", case={**case, "rank": rank}, **seconds)
            known = {"backend": "gloo", "world_ranks": str(world), "nodes": "1", **identity}
            made.append(replace(one, environment=replace(one.environment, identity=known)))
    return made


def _write(folder: Path, measurements: list[Measurement]) -> None:
    for rank in {m.case["rank"] for m in measurements}:
        own = [m for m in measurements if m.case["rank"] == rank]
        file = RankFile(rank_path(folder, rank), resume=True)
        file.write("environment", environment_values(own[0].environment))
        for measurement in own:
            file.write("measurement", measurement_values(measurement))
        file.close()


def _collect(stepgauge: Callable[..., Any], db: Path, *folders: Path) -> Any:
    ran = stepgauge("collect", *folders, "--json", "--db", db)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_collect_adds_a_run_once_and_what_grew_of_it(
    stepgauge: Callable[..., Any], make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    db, one, other = tmp_path / "store.sqlite", tmp_path / "one", tmp_path / "other"
    visits = _visits(make_measurement, "r", (0, 1))
    _write(one, [m for m in visits if m.case["bytes"] < 256])
    assert [run["added"] for run in _collect(stepgauge, db, one)["runs"]] == [2]
    assert [run["added"] for run in _collect(stepgauge, db, one, one)["runs"]] == [0]
    # Ranks of nodes that share no disk lie in different folders; a file of the first half is there as well.
    _write(other, [m for m in visits if m.case["rank"] == 1])
    _write(one, [m for m in visits if m.case["rank"] == 0])
    assert [run["added"] for run in _collect(stepgauge, db, one, other)["runs"]] == [3]
    assert _measured(db) == 5


def test_a_second_calibration_from_collected_files_shows_its_drift(
    stepgauge: Callable[..., Any], make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    db, monday, friday = tmp_path / "store.sqlite", tmp_path / "monday", tmp_path / "friday"
    _write(monday, _visits(make_measurement, "first", (0, 1)))
    slower = [
        replace(item, device_s=tuple(2 * s for s in item.device_s), host_s=tuple(2 * s for s in item.host_s))
        for item in _visits(make_measurement, "second", (0, 1))
    ]
    _write(friday, slower)
    ran = stepgauge("collect", monday, "--name", "monday", "--json", "--db", db)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["drift"] is None
    ran = stepgauge("collect", friday, "--name", "friday", "--json", "--db", db)
    assert ran.code == 0, ran.err
    drift = json.loads(ran.out)["drift"]
    # Every one of the five sizes takes twice as long.
    assert (drift["first"], drift["second"]) == ("monday", "friday")
    assert [(item["sizes"], round(item["ratio"], 6)) for item in drift["times"]] == [(5, 2.0)]
    ran = stepgauge("collect", friday, "--name", "sunday", "--db", db)
    assert "drift against '" in ran.out
    # Without a name nothing is fitted, so nothing drifts.
    assert _collect(stepgauge, db, friday)["drift"] is None


def test_collect_names_what_is_missing_cut_short_or_of_another_run(
    stepgauge: Callable[..., Any], make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    db, folder = tmp_path / "store.sqlite", tmp_path / "files"
    _write(folder, _visits(make_measurement, "whole", (0, 1)))
    _write(folder, _visits(make_measurement, "lonely", (0,)))
    _write(folder, _visits(make_measurement, "wide", (0, 1), world=3))
    path = rank_path(folder, 1)
    path.write_bytes(path.read_bytes()[:-20])
    said = "\n".join(_collect(stepgauge, db, folder)["problems"])
    assert "rank-00001.jsonl, line 12: cut short" in said
    assert "run lonely, 5 visits left out: the file of rank 1 is of another run (whole, wide)" in said
    assert "the file of rank 2 is not here" in said
    assert _measured(db) == 5
    path.unlink()
    ran = stepgauge("collect", folder, "--db", db)
    assert ran.code == 2
    assert "no visit was finished by all of its ranks" in ran.err
    assert "holds no files of ranks" in stepgauge("collect", tmp_path, "--db", db).err


def test_collect_never_mixes_environments(
    stepgauge: Callable[..., Any], make_measurement: MakeMeasurement, tmp_path: Path
) -> None:
    db, folder = tmp_path / "store.sqlite", tmp_path / "files"
    mixed = [*_visits(make_measurement, "r", (0,), nccl="2.21.5"), *_visits(make_measurement, "r", (1,), nccl="2.20.3")]
    later = [replace(m, taken_at=m.taken_at.replace("03:", "04:")) for m in _visits(make_measurement, "r", (0, 1))]
    _write(folder, mixed)
    _write(folder, later)
    told = _collect(stepgauge, db, folder)
    said = "\n".join(told["problems"])
    assert "its ranks differ in nccl (2.20.3 | 2.21.5)" in said
    assert "several environments, kept apart; they differ in nccl (2.20.3 | 2.21.5 | none)" in said
    assert [row["environment"] for row in told["rows"]] == ["", "nccl=2.20.3 | 2.21.5"]


def test_collect_does_not_add_to_a_run_of_another_kind(
    stepgauge: Callable[..., Any], make_measurement: MakeMeasurement, store: Path, tmp_path: Path
) -> None:
    connection = sqlite3.connect(store)
    (run,) = connection.execute("SELECT id FROM run").fetchone()
    connection.close()
    _write(tmp_path / "files", _visits(make_measurement, run, (0, 1)))
    ran = stepgauge("collect", tmp_path / "files", "--db", store)
    assert ran.code == 2
    assert "here, not of 'measure --collectives'" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("calibrate", "--ranks", 4), "--ranks goes with --collectives"),
        (("measure", "--collectives", "--batch", 8), "--batch goes without --collectives"),
        (("measure", "--collectives", "--ranks", 1), "at least 2 ranks"),
        (("measure", "--collectives", "--only", "all_reduc"), "did you mean 'all_reduce'"),
        (("measure", "--collectives", "--dtypes", "fp8"), "unknown data type"),
        (("measure", "--collectives", "--groups", "rack"), "unknown group"),
        (("measure", "--collectives", "--device", "tpu"), "unknown device"),
        (("measure", "--collectives", "--largest", "1B"), "sizes go from"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    stepgauge: Callable[..., Any], tmp_path: Path, arguments: tuple[object, ...], said: str
) -> None:
    ran = stepgauge(*arguments, "--db", tmp_path / "store.sqlite")
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.parametrize(
    ("options", "said"), [((), "--folder"), (("--ranks", "2", "--folder", "files"), "leave --ranks out")]
)
def test_a_launcher_needs_a_folder_and_has_its_own_ranks(
    stepgauge: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    said: str,
) -> None:
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "n",
        "MASTER_PORT": "9",
    }.items():
        monkeypatch.setenv(name, value)
    ran = stepgauge("measure", "--collectives", *options, "--db", tmp_path / "store.sqlite")
    assert ran.code == 2
    assert said in ran.err
    assert not (tmp_path / "store.sqlite").exists()


def test_names_of_hosts_are_kept_once_for_this_user_alone() -> None:
    key = host_key()
    assert host_key() == key
    for _ in range(2):
        remember_hosts({"d1": "node1", "d2": "node2"})
    assert [json.loads(line)["name"] for line in names_path().read_text().splitlines()] == ["node1", "node2"]
    assert names_path().stat().st_mode & 0o077 == 0
