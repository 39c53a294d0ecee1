"""A run that is killed at any moment is resumed: nothing is lost, measured twice, or half written."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from db.store import Store
from oracle.errors import BadInput, StepgaugeError, UnknownName
from oracle.execution import Execution
from profiler.anchors import ANCHOR
from profiler.backends.simulated import SimulatedDevice
from profiler.measurement import Measurement
from profiler.run import RunSettings
from service.agenda import PLAN, REFUSED, SESSION, find_agenda, spent_s
from service.calibrating import calibrate
from service.claims import claimed
from service.measuring import Clock, measure_device
from service.measuring_requests import CalibrateRequest, MeasureRequest, Questions, silent
from service.session import Round, in_fresh_process

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
KILLS = 10

TELLING = """
import json, sys
import cli, db.store

class Telling(db.store.Store):
    def add_measurement(self, measurement):
        super().add_measurement(measurement)
        print(json.dumps([measurement.case_key, measurement.taken_at, measurement.device_s]), flush=True)

    def add_calibration(self, *what, **how):
        print('"storing"', flush=True)
        super().add_calibration(*what, **how)

db.store.Store = Telling
sys.argv = ["stepgauge", *sys.argv[1:]]
cli.main()
"""
"""The command line, with a store that says what it has stored, after it has."""


@dataclass
class Told:
    """What all processes have said so far: one line for every stored measurement."""

    path: Path

    def lines(self) -> list[Any]:
        if not self.path.exists():
            return []
        whole = [line for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in whole if line[0] in '["']

    def measurements(self) -> list[tuple[str, str, tuple[float, ...]]]:
        return [(line[0], line[1], tuple(line[2])) for line in self.lines() if line != "storing"]


def start(arguments: Sequence[str], told: Told) -> subprocess.Popen[bytes]:
    with told.path.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-c", TELLING, *arguments], cwd=ROOT, stdout=out, stderr=out, start_new_session=True
        )


def kill_when(process: subprocess.Popen[bytes], ready: Callable[[], bool], then_s: float = 0.0) -> bool:
    """Wait until something is so, and a little longer, then kill; says whether the process was still alive."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not ready() and process.poll() is None and time.monotonic() < give_up_s:
        time.sleep(0.002)
    time.sleep(then_s)
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def tiny_model(tmp_path: Path) -> Path:
    """A model of the documents with few calls of its own."""
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    path = tmp_path / "tiny.json"
    path.write_text(text.split("```json\n")[1].split("```")[0])
    return path


def test_ten_kills_lose_nothing_double_nothing_and_leave_nothing_half_written(tmp_path: Path) -> None:
    db, told = tmp_path / "store.sqlite", Told(tmp_path / "told")
    model = f"{tiny_model(tmp_path)}:4"
    calibrate_it = ["calibrate", "--device", "simulated", "--for", model, "--name", "killed", "--resume"]
    calibrate_it += ["--budget", "10min", "--db", str(db)]
    draw = random.Random(53)  # three of its ten kills fall into the start
    killed = 0
    for _ in range(KILLS):
        more = draw.randrange(15)
        # Without a visit to wait for, at any moment of the start; else soon, so that no machine is done before.
        wanted, then_s = len(told.lines()) + more, draw.random() * (0.02 if more else 1.0)
        killed += kill_when(start(calibrate_it, told), lambda wanted=wanted: len(told.lines()) >= wanted, then_s)  # type: ignore[misc]
    killed += kill_when(start(calibrate_it, told), lambda: "storing" in told.lines())
    assert killed >= KILLS
    with Store.open(str(db)) as store:
        stored_in_time = store.has_calibration("killed")  # before the last kill came
    if not stored_in_time:
        end = start(calibrate_it, told)
        assert end.wait(PATIENCE_S) == 0, told.path.read_text()[-1000:]

    with Store.open(str(db)) as store:
        (run,) = store.runs()  # every session went on with the first one's run
        assert run.status == "finished"
        measurements, facts = store.measurements(run.id), store.facts(run.id)
        assert store.calibration_runs("killed") == [run.id]
        counts = [shape.count for shape in store.calibration("killed").shapes]
    # Lost: what a process has told is there, sample for sample; a kill may have cut off one report, and no more.
    stored = Counter((m.case_key, m.taken_at, m.device_s) for m in measurements)
    reported = Counter(told.measurements())
    assert not reported - stored
    assert (stored - reported).total() <= killed
    # Doubled: no measurement is there twice, and no case was visited more often than a run does.
    assert max(stored.values()) == 1
    visits = Counter(m.case_key for m in measurements if ANCHOR not in m.flags)
    assert max(visits.values()) <= RunSettings("", 1.0).max_visits
    # Half-written: every measurement has its samples, and the plan's cases are all there.
    assert all(len(m.device_s) == len(m.host_s) >= 5 for m in measurements)
    (plan,) = [fact for fact in facts if fact.kind == PLAN]
    assert len(visits) == len(plan.values["cases"])
    assert sum(fact.kind == SESSION for fact in facts) >= 2
    assert min(counts) >= 5
    connection = sqlite3.connect(db)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


QUICK_SIMULATED = MeasureRequest(device="simulated", quick=True, budget_s=60.0)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "opened.sqlite")) as store:
        yield store


class Interrupting:
    """Progress that presses Ctrl-C before the visit of that number."""

    def __init__(self, visit: int) -> None:
        self.left = visit

    def __call__(self, done: int, total: int, text: str) -> None:
        self.left -= 1
        if self.left <= 0:
            raise KeyboardInterrupt


def interrupt(store: Store, request: MeasureRequest, visit: int = 30) -> str:
    """Interrupt a measurement; the run that it began, or nothing where it went on with another."""
    before = {run.id for run in store.runs()}
    with pytest.raises(KeyboardInterrupt):
        measure_device(store, request, Interrupting(visit))
    return "".join({run.id for run in store.runs()} - before)


def visits(store: Store, run_id: str) -> Counter[str]:
    return Counter(m.case_key for m in store.measurements(run_id) if ANCHOR not in m.flags)


def test_an_interrupted_run_goes_on_where_it_was(opened: Store, tmp_path: Path) -> None:
    request = replace(QUICK_SIMULATED, questions=Questions(((str(tiny_model(tmp_path)), 4),)))
    run_id = interrupt(opened, request)
    assert opened.runs()[-1].status == "interrupted"
    before = opened.measurements(run_id)
    result = measure_device(opened, MeasureRequest(device="simulated", resume=True))
    assert (result.resumed, result.run.run_id) == (True, run_id)
    assert result.run.unmeasured == ()
    assert opened.measurements(run_id)[: len(before)] == before
    assert max(visits(opened, run_id).values()) <= RunSettings("", 1.0).max_visits
    (run,) = opened.runs()
    assert run.status == "finished"


def test_a_finished_run_is_not_resumed_and_another_begins(opened: Store, tmp_path: Path) -> None:
    request = replace(QUICK_SIMULATED, resume=True, questions=Questions(((str(tiny_model(tmp_path)), 4),)))
    first, second = (measure_device(opened, request) for _ in range(2))
    assert (first.resumed, second.resumed) == (False, False)
    assert len(opened.runs()) == 2


def test_only_a_run_of_the_same_question_and_execution_is_resumed(opened: Store, tmp_path: Path) -> None:
    model = str(tiny_model(tmp_path))
    asked = replace(QUICK_SIMULATED, questions=Questions(((model, 4),)))
    run_id = interrupt(opened, asked)
    for other in (
        replace(asked, questions=Questions(((model, 8),)), resume=True),
        replace(asked, execution=Execution(precision="bf16"), resume=True),
    ):
        assert interrupt(opened, other)
    assert measure_device(opened, replace(asked, resume=True)).run.run_id == run_id


def test_a_run_is_resumed_by_its_name(opened: Store, tmp_path: Path) -> None:
    asked = replace(QUICK_SIMULATED, questions=Questions(((str(tiny_model(tmp_path)), 4),)))
    first, _ = interrupt(opened, asked), interrupt(opened, asked)
    assert measure_device(opened, replace(asked, run_id=first)).run.run_id == first
    with pytest.raises(UnknownName, match="unknown run 'nowhere'"):
        measure_device(opened, replace(asked, run_id="nowhere"))


def test_a_run_that_another_process_measures_is_refused(opened: Store, tmp_path: Path) -> None:
    asked = replace(QUICK_SIMULATED, questions=Questions(((str(tiny_model(tmp_path)), 4),)))
    run_id = interrupt(opened, asked)
    hold = (
        "import sys; from service.claims import claimed\nwith claimed(sys.argv[1]): print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, run_id], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BadInput, match=f"run {run_id} is being measured by another process"):
            measure_device(opened, replace(asked, resume=True))
        holder.kill()
    with claimed(run_id):  # the claim has ended with the process
        pass


def test_what_a_device_cannot_run_is_kept_shown_and_not_tried_again(
    opened: Store, tmp_path: Path, stepgauge: Callable[..., Any]
) -> None:
    small = SimulatedDevice(memory_bytes=1e6)
    asked = CalibrateRequest(device="simulated", name="small", budget_s=60.0)
    asked = replace(asked, questions=Questions(((str(tiny_model(tmp_path)), 64),)))
    result = calibrate(opened, asked, backend=small)
    refused = [fact for fact in opened.facts(result.run.run_id) if fact.kind == REFUSED]
    assert refused
    assert len(refused) == len(result.run.unmeasured)
    assert all("simulated device has 977 KiB" in fact.values["reason"] for fact in refused)
    assert result.to_dict()["unmeasured"][0]["refused"] is True
    shown = stepgauge("show", "small", "--db", tmp_path / "opened.sqlite")
    assert "the device cannot run" in shown.out
    assert "simulated device has 977 KiB" in shown.out
    # A second session takes the refusals from the store.
    agenda = find_agenda(opened, replace(asked, run_id=result.run.run_id), small)
    assert agenda is not None
    assert sum(bool(planned.refused) for planned in agenda.cases) == len(refused)


def test_rounds_of_fresh_processes_are_visits_of_the_same_run(opened: Store, tmp_path: Path) -> None:
    said: list[str] = []
    asked = replace(QUICK_SIMULATED, processes=3, questions=Questions(((str(tiny_model(tmp_path)), 4),)))
    result = measure_device(opened, asked, lambda done, total, text: said.append(text))
    (run,) = opened.runs()
    assert (run.id, run.status) == (result.run.run_id, "finished")
    # Each of the two others made one round before this process went on.
    for process in (1, 2):
        assert any(text.startswith(f"process {process}, round 1: ") for text in said)
        assert not any(text.startswith(f"process {process}, round 2: ") for text in said)
    assert result.run.unmeasured == ()
    assert max(visits(opened, run.id).values()) <= RunSettings("", 1.0).max_visits


def test_what_goes_wrong_in_a_fresh_process_is_said(opened: Store, tmp_path: Path) -> None:
    with pytest.raises(StepgaugeError, match="unknown run 'nowhere'"):
        in_fresh_process(Round(opened.address, "simulated", "nowhere", 10.0), silent)


def test_an_interruption_takes_the_fresh_process_along(opened: Store, tmp_path: Path) -> None:
    asked = replace(QUICK_SIMULATED, processes=3, questions=Questions(((str(tiny_model(tmp_path)), 4),)))
    run_id = interrupt(opened, asked, visit=5)
    before = opened.measurements(run_id)
    time.sleep(0.5)  # whatever went on would have measured some
    assert opened.measurements(run_id) == before


def test_what_is_left_of_a_budget_goes_on(make_measurement: Callable[..., Measurement]) -> None:
    # Two sessions: 10 s to its last measurement, then 5 s; the night between them does not count.
    taken = ["2026-01-01T00:00:04.000+00:00", "2026-01-01T00:00:10.000+00:00", "2026-01-02T00:00:05.000+00:00"]
    measurements = [make_measurement(taken_at=at) for at in taken]
    assert spent_s(["2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"], measurements) == 15.0


def test_a_resumed_run_keeps_its_name_for_the_calibration(opened: Store, tmp_path: Path) -> None:
    asked = CalibrateRequest(device="simulated", name="mine", budget_s=60.0)
    asked = replace(asked, questions=Questions(((str(tiny_model(tmp_path)), 4),)))
    with pytest.raises(KeyboardInterrupt):
        calibrate(opened, asked, Interrupting(30))
    assert calibrate(opened, CalibrateRequest(device="simulated", resume=True)).calibration.name == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategies", "data"), "say more of --for MODEL"),
        (("--for", "alexnet"), "alexnet:8, --batch or --batch-per-device"),
        (("--for", "alexnet:8", "--strategies", "dta"), "unknown strategy 'dta'"),
        (("--for", "nowhere:8"), "unknown model 'nowhere'"),
        (("--for", "alexnet:8", "--strategies", "filter", "--devices", "1000"), "nothing of this can be done"),
        (("--run", "nowhere"), "unknown run 'nowhere'"),
        (("--budget", "0s"), "a budget is a positive time"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(
    stepgauge: Callable[..., Any], tmp_path: Path, arguments: Sequence[str], said: str
) -> None:
    ran = stepgauge("measure", "--device", "simulated", "--db", tmp_path / "db.sqlite", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_a_fit_is_given_more_of_a_budget_where_everything_is_stretched() -> None:
    # 6 s on the clock for 3 s of the processor: a fit of 100 cases takes twice (3 + 1) s. Ten times is beyond saving.
    now_s, processor_s = time.monotonic(), time.process_time()
    assert Clock(now_s - 6.0, processor_s - 3.0).reserve_s(100) == pytest.approx(8.0, rel=0.2)
    assert Clock(now_s - 60.0, processor_s - 3.0).reserve_s(100) == 16.0


def test_shapes_of_a_question_are_those_that_predict_asks_for(
    opened: Store, tmp_path: Path, stepgauge: Callable[..., Any]
) -> None:
    model = tiny_model(tmp_path)
    asked = ("--for", f"{model}:4", "--strategies", "data,filter", "--devices", "1,2", "--budget", "60s")
    db = ("--db", tmp_path / "opened.sqlite")
    ran = stepgauge("calibrate", "--device", "simulated", "--name", "asked", *asked, *db)
    assert ran.code == 0, ran.err
    for strategy in ("data", "filter"):
        predict = ("predict", model, "--batch-per-device", 4, "--devices", "2", "--link", "9us,50GB/s", "--json", *db)
        (projection,) = json.loads(stepgauge(*predict, "--strategy", strategy).out)["projections"]
        assert {method for method, share in projection["methods"].items() if share} <= {"measured", "assumed"}
