"""Canary steps in a run: planned with it, measured before its kernels, and no case of its own."""

from __future__ import annotations

from pathlib import Path

from db.store import Store
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Linear
from oracle.pricing import LayerCall
from profiler.backends.base import open_backend
from profiler.case import Case
from profiler.run import Planned
from profiler.steps.canaries import CANARY, Canary
from service.agenda import Design, load_agenda, plan_fact, session_fact
from service.measuring_requests import MeasureRequest, silent
from service.session import LEAST_FOR_CANARIES_S, measure_here

CASE = Case(LayerCall(Linear(64, 32), Phase.FORWARD, 8), Execution())
CANARIES = (Canary("canary-plain", 1),)


def begun(store: Store) -> str:
    backend = open_backend("cpu")
    environment = backend.environment()
    plan = plan_fact(MeasureRequest(), Design([Planned(CASE)], (), CANARIES, 60.0), environment)
    run_id = store.begin_run("measure cpu", backend.device, environment, [plan])
    store.resume_run(run_id, session_fact())
    return run_id


def measured(store: Store, budget_s: float) -> list[str]:
    run_id = begun(store)
    agenda = load_agenda(store, run_id, budget_s)
    assert agenda.canaries == CANARIES
    measure_here(store, open_backend("cpu"), agenda, silent, max_rounds=1)
    again = load_agenda(store, run_id, budget_s)
    assert [len(planned.visits) for planned in again.cases] == [1]
    return [measurement.micro for measurement in store.measurements(run_id)]


def test_canaries_are_measured_before_the_kernels(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "store.sqlite")) as store:
        assert measured(store, 2 * LEAST_FOR_CANARIES_S) == [CANARY, CANARY, CANARY, "linear"]


def test_a_short_session_leaves_them_to_others(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "store.sqlite")) as store:
        assert measured(store, LEAST_FOR_CANARIES_S / 2) == ["linear"]
