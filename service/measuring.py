"""Measure a device and store what was measured; interrupted at any point, go on.

Every measurement is stored as soon as it is taken, in a transaction of its own, beside the plan of its run
(`service.agenda`). So a run that was interrupted or killed has lost at most the visit that it was in, and a resumed one
knows what is left.

A budget is for all of a command, from its first line to its last: what is set aside for fitting is not measured in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from calibration.design import Step, model_calls, plan_calls, planned_cases
from db.store import Store
from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.machine import Cluster, Link
from oracle.model import ModelGraph
from oracle.plan import Job, Strategy
from oracle.search import variants
from oracle.strategies import STRATEGIES
from oracle.strategies.choices import parse_strategy
from profiler.anchors import choose_anchors
from profiler.backends.base import Backend, open_backend
from profiler.run import RunSettings, RunSummary, Unmeasured, describe, measure
from profiler.stopping import StoppingRule
from service.agenda import Agenda, Design, find_agenda, plan_fact, refused_fact, run_labels, session_fact, with_name
from service.checking import labels_for
from service.claims import claimed
from service.models import find_model
from service.requests import MeasureRequest, Progress, Questions, silent

QUICK_BUDGET_S = 300.0
"""Enough for two visits of most quick cases on two cores."""

FULL_BUDGET_S = 900.0

TARGET = 0.03
"""Half-width of a median's 95 % interval at which a visit ends: less than what the machine drifts between visits."""

VISIT_S = 0.15
"""Sampling time of one visit: several short visits show the drift between them, which one long visit hides."""

SHORTEST_VISIT_S = 0.02
"""Sampling time of one visit where the budget is short: rather all cases roughly than half of them well."""

FIT_S = 3.0
FIT_PER_CASE_S = 0.01
"""What is set aside of a budget for a fit: once, and for every case. On two cores of a server it takes 1.6 s to load
scikit-learn, and 2.3 s to fit and to store 426 cases."""

MODELS = (("resnet50", 8), ("alexnet", 32))
"""The models whose own shapes are measured where nobody asks for others, with the samples of one step."""

NAMED = 3
"""Unmeasured cases that a note names; the others are counted."""


@dataclass(frozen=True)
class MeasureResult:
    """What was measured.

    Args:
        device: the device's name.
        run: what the run did.
        notes: what has to be said of it.
        elapsed_s: wall time of this session.
        store: where it was stored.
        resumed: whether an earlier session had begun the run.
    """

    device: str
    run: RunSummary
    notes: tuple[str, ...]
    elapsed_s: float
    store: str
    resumed: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "run": self.run.run_id,
            "device": self.device,
            "store": self.store,
            "elapsed_s": self.elapsed_s,
            "resumed": self.resumed,
            "measured": self.run.measured,
            "converged": self.run.converged,
            "visits": self.run.visits,
            "unmeasured": unmeasured_values(self.run.unmeasured),
            "notes": list(self.notes),
        }


def unmeasured_values(items: Sequence[Unmeasured]) -> list[dict[str, Any]]:
    """Unmeasured cases as plain JSON values."""
    return [{"case": item.case.to_dict(), "reason": item.reason, "refused": item.refused} for item in items]


def measure_device(store: Store, request: MeasureRequest, progress: Progress = silent) -> MeasureResult:
    """Measure the cases of a device within a budget and store them; `stepgauge fit --from RUN` fits them.

    Raises:
        UnknownName: no such kind of device, model, strategy or run.
        BadInput: the run cannot go on here, or another process is measuring it.
        MissingDependency: torch is not installed.
    """
    started_s = time.monotonic()
    labels = labels_for(request.device, request.force)
    backend = open_backend(request.device)
    with working_on(store, request, backend, labels) as session:
        run = session.measure(started_s, 0.0, progress)
        store.finish_run(run.run_id)
    notes = (*run_labels(store.facts(run.run_id)), *unmeasured_notes(run))
    elapsed_s = time.monotonic() - started_s
    return MeasureResult(backend.device, run, notes, elapsed_s, store.location, session.resumed)


@dataclass(frozen=True)
class Session:
    """One process's work on a run."""

    store: Store
    backend: Backend
    agenda: Agenda
    resumed: bool

    def measure(self, started_s: float, set_aside_s: float, progress: Progress) -> RunSummary:
        """Measure what is left of the run.

        Args:
            started_s: `time.monotonic()` when the budget began.
            set_aside_s: of the budget, for what follows.
            progress: told of every visit.
        """
        agenda = self.agenda
        # At least a little is measured: a calibration without measurements is worth nothing.
        left_s = agenda.budget_s - set_aside_s - (time.monotonic() - started_s)
        settings = RunSettings(
            run_id=agenda.run_id,
            budget_s=max(left_s, 1e-3 if self.resumed else 1.0),
            seed=agenda.seed,
            rule=StoppingRule(target=TARGET, max_s=_visit_s(left_s, len(agenda.cases))),
            anchors=agenda.anchors,
        )

        def refuse(item: Unmeasured) -> None:
            self.store.add_fact(agenda.run_id, refused_fact(item))

        return measure(agenda.cases, self.backend, self.store.add_measurement, settings, progress, refuse)


def _visit_s(budget_s: float, cases: int) -> float:
    """Sampling time of one visit: a first round should take no more than half of the budget."""
    return min(VISIT_S, max(SHORTEST_VISIT_S, budget_s / (4 * max(cases, 1))))


def fit_reserve_s(cases: int) -> float:
    """Seconds to set aside for fitting and storing so many cases."""
    return FIT_S + FIT_PER_CASE_S * cases


@contextmanager
def working_on(
    store: Store, request: MeasureRequest, backend: Backend, labels: Sequence[str] = ()
) -> Iterator[Session]:
    """Begin a run, or go on with one; how it ends is noted where an error ends it, else it is for the caller to note.

    Args:
        store: where it is.
        request: what is asked.
        backend: the device.
        labels: the conditions under which it is measured now.

    Raises:
        BadInput: the run cannot go on here, or another process is measuring it.
    """
    found = find_agenda(store, request, backend) if request.resume or request.run_id else None
    agenda = with_name(found, request) if found else _begin(store, request, backend)
    with claimed(agenda.run_id):
        store.resume_run(agenda.run_id, session_fact(labels))
        status = "failed"
        try:
            yield Session(store, backend, agenda, resumed=found is not None)
            status = ""
        except (KeyboardInterrupt, GeneratorExit):
            status = "interrupted"
            raise
        finally:
            if status:
                store.finish_run(agenda.run_id, status)


def _begin(store: Store, request: MeasureRequest, backend: Backend) -> Agenda:
    cases = planned_cases(
        asked_steps(request.questions, request.execution),
        request.execution,
        quick=request.quick or request.questions is not None,
        asked_first=request.questions is not None,
    )
    budget_s = request.budget_s or (QUICK_BUDGET_S if request.quick else FULL_BUDGET_S)
    design = Design(cases, choose_anchors(backend, request.execution), budget_s)
    environment = backend.environment()
    plan = plan_fact(request, design, environment)
    run_id = store.begin_run(_command(request), backend.device, environment, [plan])
    anchors = tuple(design.anchors)
    return with_name(Agenda(run_id, None, tuple(cases), anchors, request.execution, request.seed, budget_s), request)


def _command(request: MeasureRequest) -> str:
    """What was asked, in a few words."""
    questions = request.questions
    models = [] if questions is None else [model if n is None else f"{model}:{n}" for model, n in questions.models]
    words = ["measure", request.device, request.execution.kernel_key, request.execution.optimizer]
    return " ".join([*words, *(["quick"] if request.quick else []), *models])


def asked_steps(questions: Questions | None, execution: Execution) -> list[Step]:
    """The steps whose calls are to be measured.

    Of a strategy without choices of its own all variants count that a search would try; what a strategy cannot do is
    left out.

    Raises:
        UnknownName: no such model or strategy.
        BadInput: none of the strategies can be used for any model and number of devices.
    """
    if questions is None:
        return [model_calls(find_model(name), samples) for name, samples in MODELS]
    steps, reasons = [], []
    for model, samples in questions.models:
        graph = find_model(model)
        for devices in questions.devices:
            job = _job(graph, questions.global_batch(samples, devices), devices, execution)
            for how in _strategies(questions.strategies, job):
                refusal = how.limit(job).refusal(how.name, job)
                if refusal is None:
                    steps.append(plan_calls(how.plan(job)))
                else:
                    reasons.append(refusal)
    if not steps:
        raise BadInput(f"nothing of this can be done: {'; '.join(dict.fromkeys(reasons))}")
    unique = {frozenset(step.items()): step for step in steps}
    return list(unique.values())


def _job(graph: ModelGraph, global_batch: int, devices: int, execution: Execution) -> Job:
    # Kernels do not depend on the network; any link will do.
    return Job(graph, global_batch, devices, Cluster.of_link("any", Link(1e-6, 1e10)), execution)


def _strategies(names: Sequence[str], job: Job) -> Iterator[Strategy]:
    if not names:
        yield STRATEGIES["serial" if job.devices == 1 else "data"]
    for name in names:
        if name in STRATEGIES:
            yield from variants(job, STRATEGIES[name])
        else:
            yield parse_strategy(name)


def unmeasured_notes(run: RunSummary) -> tuple[str, ...]:
    """What has to be said of the cases that were not measured."""
    cases = run.measured + len(run.unmeasured)
    refused = [item for item in run.unmeasured if item.refused]
    late = len(run.unmeasured) - len(refused)
    notes = [f"the device cannot run {describe(item.case)}: {item.reason}" for item in refused[:NAMED]]
    if len(refused) > NAMED:
        notes.append(f"nor {len(refused) - NAMED} other cases; the run's facts name them ({run.run_id})")
    if late:
        notes.append(f"{late} of {cases} cases were not measured within the budget: give a longer --budget")
    return tuple(notes)
