"""Collectives between real processes: few and short, on Gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oracle.errors import BadInput, RankLost, StepgaugeError
from profiler.collectives.collected import collect, rank_medians
from profiler.collectives.measure import measure_collectives
from profiler.collectives.records import (
    RankFile,
    environment_values,
    measurement_values,
    rank_files,
    rank_path,
)
from profiler.collectives.settings import PLACES, CollectiveSettings, cases
from profiler.measurement import Measurement
from profiler.stopping import StoppingRule

ROOT = Path(__file__).resolve().parents[2]
QUICK = StoppingRule(target=0.5, max_samples=6, max_s=0.05)
LONG = StoppingRule(target=1e-9, max_samples=100, max_s=30.0)

MakeMeasurement = Callable[..., Measurement]


def _settings(folder: Path, **fields: object) -> CollectiveSettings:
    values: dict[str, object] = {
        "folder": folder,
        "run_id": "test",
        "budget_s": 60.0,
        "largest_bytes": 4096,
        "size_factor": 128.0,
        "rounds": 1,
        "rule": QUICK,
    }
    return CollectiveSettings(**{**values, **fields})  # type: ignore[arg-type]


def _children(parent: int) -> list[int]:
    """Processes whose parent is `parent`, in the order in which they started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return sorted(found)


def _ranks_of(parent: int) -> list[int]:
    """The children of `parent` that are ranks, by rank."""
    found = {}
    for child in _children(parent):
        try:
            arguments = (Path("/proc") / str(child) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"profiler.collectives.rank" in arguments:
            found[json.loads(arguments[4])["rank"]] = child
    return [found[rank] for rank in sorted(found)]


def _when_measuring(folder: Path, act: Callable[[list[int]], None]) -> threading.Thread:
    """Do something to the ranks once each has written a measurement."""

    def wait() -> None:
        give_up_s = time.monotonic() + 60
        while time.monotonic() < give_up_s:
            texts = [path.read_bytes() for path in rank_files(folder)]
            if len(texts) > 1 and all(b'{"measurement"' in text for text in texts):
                act(_ranks_of(os.getpid()))
                return
            time.sleep(0.05)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_two_ranks_measure_every_collective_then_resume_adds_nothing(tmp_path: Path) -> None:
    found: list[Measurement] = []
    settings = _settings(tmp_path)
    summary = measure_collectives(settings, found.append)
    asked = list(cases(settings, "all", 2, False))
    assert summary.cases + len(summary.unavailable) == len(asked)
    assert {m.case["collective"] for m in found} <= set(PLACES)
    assert {"all_reduce", "broadcast", "p2p"} <= {m.case["collective"] for m in found}
    assert {m.case["pattern"] for m in found if m.case["collective"] == "p2p"} == {"one_way", "exchange"}
    assert all(m.case["ranks"] == 2 and m.case["nodes"] == 1 and "rank" not in m.case for m in found)
    # The last rank ends a collective: no sample is below that of any rank.
    collected = collect(rank_files(tmp_path))
    assert len(collected.of_ranks) == 2 * len(found)
    medians = rank_medians(collected.of_ranks)
    assert all(m.median_s >= max(medians[m.case_key].values()) for m in found)
    with pytest.raises(BadInput, match="holds measurements"):
        measure_collectives(settings, found.append)
    before = [path.read_bytes().count(b'{"measurement"') for path in rank_files(tmp_path)]
    again = measure_collectives(_settings(tmp_path, resume=True), lambda measurement: None)
    assert [path.read_bytes().count(b'{"measurement"') for path in rank_files(tmp_path)] == before
    assert again.visits == summary.visits


@pytest.mark.parametrize(("number", "said"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "no sign of life")])
def test_a_lost_rank_is_named_and_nothing_outlives_it(tmp_path: Path, number: signal.Signals, said: str) -> None:
    ranks: list[int] = []

    def act(found: list[int]) -> None:
        ranks.extend(found)
        os.kill(found[1], number)

    begun_s = time.monotonic()
    thread = _when_measuring(tmp_path, act)
    with pytest.raises(RankLost, match=rf"rank 1 .*{said}.*kept in"):
        measure_collectives(_settings(tmp_path, silence_s=4.0, rounds=1000), lambda measurement: None)
    thread.join()
    assert time.monotonic() - begun_s < 120  # 60 s from the loss, after a start that may be slow
    assert len(ranks) == 2
    assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]
    assert collect(rank_files(tmp_path)).measurements


def test_a_full_disk_on_one_rank_ends_the_run_with_its_name(tmp_path: Path) -> None:
    rank_path(tmp_path, 1).symlink_to("/dev/full")
    with pytest.raises(RankLost, match=r"rank 1 cannot write .*No space left"):
        measure_collectives(_settings(tmp_path), lambda measurement: None)


def test_the_same_run_started_twice_is_refused(tmp_path: Path) -> None:
    file = RankFile(rank_path(tmp_path, 1), resume=False)
    with pytest.raises(BadInput, match="another run is writing"):
        measure_collectives(_settings(tmp_path, resume=True), lambda measurement: None)
    file.close()


def test_under_torchrun_each_process_is_the_rank_it_was_given(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from profiler.stopping import StoppingRule\n"
        "from profiler.collectives.measure import measure_collectives\n"
        "from profiler.collectives.settings import CollectiveSettings\n"
        "settings = CollectiveSettings(Path(sys.argv[1]), 'r', 60.0, collectives=('all_reduce',), largest_bytes=64,"
        " rounds=1, groups=('all', 'across'), rule=StoppingRule(0.5, 6, 6, 0.05))\n"
        "print(measure_collectives(settings, print).place.rank)\n"
    )
    script = tmp_path / "measure.py"
    script.write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "out")], check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = collect(rank_files(tmp_path / "out"))
    assert [m.case["bytes"] for m in found.measurements] in ([32, 64], [64, 32])
    # One machine has no second node to reach across to.
    assert [entry.what for entry in found.unavailable] == ["group across"]


def _visit(make_measurement: MakeMeasurement, rank: int, seconds: tuple[float, ...]) -> Measurement:
    case = {"collective": "broadcast", "bytes": 64, "ranks": 2, "nodes": 1, "dtype": "fp32", "rank": rank}
    return make_measurement("r", micro="collective", case=case, phase="broadcast", device_s=seconds, host_s=seconds)


def _write(path: Path, measurement: Measurement) -> None:
    file = RankFile(path, resume=True)
    file.write("environment", environment_values(measurement.environment))
    file.write("measurement", measurement_values(measurement))
    file.close()


def test_collect_takes_the_slowest_rank_and_names_a_straggler(
    tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    for rank, seconds in enumerate([(1.0, 1.0, 4.0), (2.0, 2.0, 2.0)]):
        _write(rank_path(tmp_path, rank), _visit(make_measurement, rank, seconds))
    (merged,) = collect(rank_files(tmp_path)).measurements
    assert merged.device_s == (2.0, 2.0, 4.0)
    assert "straggler: rank 1 x2.00" in merged.flags


def test_collect_reports_a_line_that_was_cut_short(tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    for rank in (0, 1):
        _write(rank_path(tmp_path, rank), _visit(make_measurement, rank, (1.0, 1.0)))
    path = rank_path(tmp_path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    found = collect(rank_files(tmp_path))
    assert not found.measurements
    assert found.problems[0] == "rank-00001.jsonl, line 2: cut short, left out"
    assert "1 of 2 ranks finished them" in found.problems[1]
    # Resuming cuts the remains off, so that the next line is whole.
    _write(path, _visit(make_measurement, 1, (1.0, 1.0)))
    assert len(collect(rank_files(tmp_path)).measurements) == 1


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"measurement": {}}', b'{"x": {}}', b"\xff\xfe", b"[" * 100_000])
def test_collect_survives_lines_that_are_none(tmp_path: Path, make_measurement: MakeMeasurement, line: bytes) -> None:
    for rank in (0, 1):
        _write(rank_path(tmp_path, rank), _visit(make_measurement, rank, (1.0, 1.0)))
    path = rank_path(tmp_path, 0)
    path.write_bytes(path.read_bytes() + line + b"\n")
    found = collect(rank_files(tmp_path))
    assert len(found.measurements) == 1
    assert len(found.problems) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"ranks": 1},
        {"collectives": ("all_reduc",)},
        {"collectives": ()},
        {"dtypes": ("fp8",)},
        {"largest_bytes": 8},
        {"groups": ("nodes",)},
        {"groups": ("first:x",)},
        {"budget_s": float("nan")},
        {"size_factor": 1.0},
    ],
)
def test_settings_refuse_what_cannot_be_measured(tmp_path: Path, fields: dict[str, object]) -> None:
    with pytest.raises(StepgaugeError):
        _settings(tmp_path, **fields)


def test_settings_survive_the_way_to_another_process(tmp_path: Path) -> None:
    settings = _settings(tmp_path, dtypes=("bf16", "fp32"), groups=("all", "first:2"), host_key=b"\x00k")
    assert CollectiveSettings.from_json(settings.to_json()) == settings


def test_sizes_are_whole_shares_of_every_rank() -> None:
    # 6 ranks of fp32: a share is a whole number of items, so 32 bytes become 48 and 64 become 72.
    settings = _settings(Path(), collectives=("all_gather",), largest_bytes=64, size_factor=2.0)
    assert [case.bytes for case in cases(settings, "all", 6, False) if not case.in_place] == [48, 72]
