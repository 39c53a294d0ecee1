"""What a run has to measure, kept with the run, so that whoever resumes it needs nothing else.

The plan of a run (its cases with their weights, its anchors, what was asked) is stored in the transaction that begins
the run; every session that works on it, and every case that the device cannot run, is a fact of the run as well. A
resumed run takes its cases from there, and what it has already measured from its measurements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from db.store import Store
from oracle.errors import BadInput
from oracle.execution import Execution
from profiler.anchors import ANCHOR
from profiler.backends.base import Backend
from profiler.case import Case, call_from_case
from profiler.importers.base import Fact
from profiler.measurement import Environment, Measurement
from profiler.run import Planned, Unmeasured, describe
from profiler.steps.canaries import CANARY, Canary
from profiler.visit import now
from service.measuring_requests import CalibrateRequest, MeasureRequest

PLAN, SESSION, REFUSED = "plan", "session", "refused"
"""The kinds of facts of a run that measures."""


@dataclass(frozen=True)
class Agenda:
    """What is left to do for a run.

    Args:
        run_id: the run.
        name: what its calibration is to be called, if anybody said so.
        cases: all its cases, with their visits so far.
        anchors: its anchors; canaries: its canary steps.
        execution: how the cases are run.
        seed: of the order.
        budget_s: seconds that are left; none or less where they are spent.
    """

    run_id: str
    name: str | None
    cases: tuple[Planned, ...]
    anchors: tuple[Case, ...]
    canaries: tuple[Canary, ...]
    execution: Execution
    seed: int
    budget_s: float


@dataclass(frozen=True)
class Design:
    """What a new run has to measure, the anchors and canary steps beside it, and its budget in seconds."""

    cases: Sequence[Planned]
    anchors: Sequence[Case]
    canaries: Sequence[Canary]
    budget_s: float


def plan_fact(request: MeasureRequest, design: Design, environment: Environment) -> Fact:
    """What a run is asked and where, as a fact of the run."""
    values = {
        "validity_key": environment.validity_key,
        "asked": _asked(request),
        "name": request.name if isinstance(request, CalibrateRequest) else None,
        "execution": asdict(request.execution),
        "seed": request.seed,
        "budget_s": design.budget_s,
        "cases": [_case_values(planned.case) | {"weight": planned.weight} for planned in design.cases],
        "anchors": [_case_values(case) for case in design.anchors],
        "canaries": [asdict(canary) for canary in design.canaries],
    }
    return Fact(PLAN, f"{len(design.cases)} cases", values)


def session_fact(labels: Sequence[str] = ()) -> Fact:
    """That a process begins to work on a run now, and under which conditions (`service.checking.labels_for`)."""
    return Fact(SESSION, now(), {"labels": list(labels)})


def run_labels(facts: Iterable[Fact]) -> tuple[str, ...]:
    """The conditions of all sessions of a run, each once."""
    sessions = (fact.values for fact in facts if fact.kind == SESSION)
    return tuple(dict.fromkeys(str(label) for values in sessions for label in values.get("labels", ())))


def refused_fact(item: Unmeasured) -> Fact:
    """That the device cannot run a case, and why."""
    case = item.case
    return Fact(REFUSED, describe(case), {"key": case.key, "reason": item.reason, **_case_values(case)})


def find_agenda(store: Store, request: MeasureRequest, backend: Backend) -> Agenda | None:
    """What is left of the run that a request wants to go on with.

    The newest run that has not finished, of the same device in the same environment and of the same execution; where
    the request says what is to be measured, of a run that was asked the same.

    Returns:
        None where there is no such run and the request names none.

    Raises:
        BadInput: the run that the request names cannot go on here; UnknownName: there is none.
    """
    key = backend.environment().validity_key
    if request.run_id is not None:
        return _named_agenda(store, request, backend, key)
    for run in reversed(store.runs()):
        if run.status == "finished" or run.device != backend.device:
            continue
        facts = store.facts(run.id)
        plan = _plan_of(facts)
        if plan is not None and _fits(plan, request) and plan["validity_key"] == key:
            return _agenda(store, run.id, facts, plan, request.budget_s)
    return None


def _named_agenda(store: Store, request: MeasureRequest, backend: Backend, key: str) -> Agenda:
    run_id = request.run_id or ""
    facts = store.facts(run_id)
    device = {run.id: run.device for run in store.runs()}.get(run_id, backend.device)
    plan = _needed_plan(store, run_id, facts)
    if device != backend.device or plan["validity_key"] != key:
        raise BadInput(f"run {run_id} cannot go on here: it is of {device} in another environment")
    return _agenda(store, run_id, facts, plan, request.budget_s)


def load_agenda(store: Store, run_id: str, budget_s: float) -> Agenda:
    """What is left of a run now, with so many seconds for it.

    Raises:
        BadInput: the run has no plan; UnknownName: there is no such run.
    """
    facts = store.facts(run_id)
    return _agenda(store, run_id, facts, _needed_plan(store, run_id, facts), budget_s)


def _needed_plan(store: Store, run_id: str, facts: Iterable[Fact]) -> Mapping[str, Any]:
    plan = _plan_of(facts)
    if plan is None:
        store.measurements(run_id)  # says that there is no such run, where that is so
        raise BadInput(f"run {run_id} has no plan: it was imported, or did not measure kernels")
    return plan


def _plan_of(facts: Iterable[Fact]) -> Mapping[str, Any] | None:
    return next((fact.values for fact in facts if fact.kind == PLAN), None)


def _fits(plan: Mapping[str, Any], request: MeasureRequest) -> bool:
    asked = _asked(request)
    same_question = asked == plan["asked"] or asked == _asked(MeasureRequest())
    return bool(plan["execution"] == asdict(request.execution)) and same_question


def _asked(request: MeasureRequest) -> dict[str, Any]:
    """What decides which cases are measured, as JSON values."""
    questions = request.questions
    values = None if questions is None else {key: _plain(value) for key, value in asdict(questions).items()}
    return {"quick": request.quick, "questions": values}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _agenda(
    store: Store, run_id: str, facts: Sequence[Fact], plan: Mapping[str, Any], budget_s: float | None
) -> Agenda:
    measurements = store.measurements(run_id)
    execution = Execution(**plan["execution"])
    visits = defaultdict(list)
    for measurement in measurements:
        if ANCHOR not in measurement.flags and measurement.micro != CANARY:
            visits[measurement.case_key].append(measurement)
    refused = {fact.values["key"]: fact.values["reason"] for fact in facts if fact.kind == REFUSED}
    cases = []
    for values in plan["cases"]:
        case = Case(call_from_case(values, values["phase"]), execution)
        key = case.key
        cases.append(Planned(case, values["weight"], tuple(visits[key]), refused.get(key, "")))
    left_s = plan["budget_s"] - spent_s([fact.subject for fact in facts if fact.kind == SESSION], measurements)
    return Agenda(
        run_id=run_id,
        name=plan["name"],
        cases=tuple(cases),
        anchors=tuple(Case(call_from_case(values, values["phase"]), execution) for values in plan["anchors"]),
        canaries=tuple(Canary(**values) for values in plan.get("canaries", ())),
        execution=execution,
        seed=plan["seed"],
        budget_s=left_s if budget_s is None else budget_s,
    )


def spent_s(sessions: Sequence[str], measurements: Iterable[Measurement]) -> float:
    """Seconds that a run's sessions have measured: each from its start to its last measurement.

    Args:
        sessions: when each began, in order; UTC, ISO 8601.
        measurements: of the run.
    """
    starts = [datetime.fromisoformat(text) for text in sessions]
    taken = [datetime.fromisoformat(measurement.taken_at) for measurement in measurements]
    total_s = 0.0
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        own = [moment for moment in taken if moment >= start and (end is None or moment < end)]
        total_s += max(((moment - start).total_seconds() for moment in own), default=0.0)
    return total_s


def with_name(agenda: Agenda, request: MeasureRequest) -> Agenda:
    """The agenda under the name that the request gives, where it gives one."""
    name = request.name if isinstance(request, CalibrateRequest) else None
    return agenda if name is None else replace(agenda, name=name)


def _case_values(case: Case) -> dict[str, Any]:
    return {**case.to_dict(), "phase": case.call.phase.value}
