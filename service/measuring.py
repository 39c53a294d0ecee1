"""Measure a device and store what was measured; interrupted at any point, go on.

Every measurement is stored as soon as it is taken, in a transaction of its own, beside the plan of its run
(`service.agenda`). So a run that was interrupted or killed has lost at most the visit that it was in, and a resumed one
knows what is left.

A budget is for all of a command, from its first line to its last: what is set aside for fitting is not measured in.

Where the budget has time for it, the first rounds are made by processes of their own, one after the other
(`service.session`): where memory lies and what the allocator has kept differ from one process to the next and not
inside one, and move some kernels by more than all of their samples show.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from calibration.design import model_calls, planned_cases
from db.store import Store
from profiler.anchors import choose_anchors
from profiler.backends.base import Backend, open_backend
from profiler.flags import flag_notes
from profiler.run import RunSummary, Unmeasured, describe
from profiler.steps.canaries import choose_canaries
from service.agenda import Agenda, Design, find_agenda, load_agenda, plan_fact, run_labels, session_fact, with_name
from service.asking import asked_steps
from service.checking import labels_for
from service.claims import claimed
from service.measuring_requests import MeasureRequest, Progress, silent
from service.session import SPENT_S, Round, in_fresh_process, measure_here

QUICK_BUDGET_S = 300.0
"""Enough for two visits of most quick cases on two cores."""

FULL_BUDGET_S = 900.0

MOST_STRETCHED = 4.0
"""Beyond this a budget cannot be kept, and is not worth keeping."""

FIT_S = 3.0
FIT_PER_CASE_S = 0.01
"""What is set aside of a budget for a fit: once, and for every case. On two cores of a server it takes 1.6 s to load
scikit-learn, and 2.3 s to fit and to store 426 cases."""

MANY, MANY_FROM_S = 3, 240.0
"""How many processes measure where nobody says so, and the budget in seconds from which they do: each costs some
seconds to start, and three are the fewest that show a spread."""

CANARIES_FROM_S = 120.0
"""The least budget in seconds of which canary steps and their kernels take a share that is worth it: about 40 s."""

LEAST_S = 1.0
"""What a run without measurements measures in any case, in seconds."""

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
    clock = Clock.started()
    labels = labels_for(request.device, request.force)
    backend = open_backend(request.device)
    with working_on(store, request, backend, labels) as session:
        run = session.measure(clock, 0.0, progress)
        store.finish_run(run.run_id)
    flagged = flag_notes(store.measurements(run.run_id))
    notes = (*run_labels(store.facts(run.run_id)), *unmeasured_notes(run), *flagged)
    return MeasureResult(backend.device, run, notes, clock.elapsed_s, store.location, session.resumed)


@dataclass(frozen=True)
class Session:
    """A command's work on a run.

    Args:
        store: where the run is.
        backend: the device.
        agenda: what was left of the run when the command began.
        request: what the command was asked.
        resumed: whether an earlier command had begun the run.
    """

    store: Store
    backend: Backend
    agenda: Agenda
    request: MeasureRequest
    resumed: bool

    def measure(self, clock: Clock, set_aside_s: float, progress: Progress) -> RunSummary:
        """Measure what is left of the run.

        Args:
            clock: when the budget began.
            set_aside_s: of the budget, for what follows; at most half of it is.
            progress: told of every visit.
        """
        budget_s = self.agenda.budget_s
        deadline_s = clock.started_s + budget_s - min(set_aside_s, budget_s / 2)
        agenda = self.agenda
        for number in range(1, self.processes):
            left_s = deadline_s - time.monotonic()
            if left_s > 0:
                task = Round(self.store.address, self.request.device, agenda.run_id, left_s)
                in_fresh_process(task, _named(progress, number))
                agenda = load_agenda(self.store, agenda.run_id, left_s)
        # Something is measured in any case: a run without measurements is worth nothing.
        measured = any(planned.visits for planned in agenda.cases)
        budget_s = max(deadline_s - time.monotonic(), SPENT_S if measured else LEAST_S)
        return measure_here(self.store, self.backend, replace(agenda, budget_s=budget_s), progress)

    @property
    def processes(self) -> int:
        """How many processes measure, this one with them."""
        if self.request.processes is not None:
            return self.request.processes
        return MANY if self.request.device != "simulated" and self.agenda.budget_s >= MANY_FROM_S else 1


def _named(progress: Progress, number: int) -> Progress:
    return lambda done, total, text: progress(done, total, f"process {number}, {text}")


@dataclass(frozen=True)
class Clock:
    """When a command began, on the clock and in the processor's time of this process."""

    started_s: float
    processor_s: float

    @classmethod
    def started(cls) -> Clock:
        """A clock that starts now."""
        return cls(time.monotonic(), time.process_time())

    @property
    def elapsed_s(self) -> float:
        """Wall time since then."""
        return time.monotonic() - self.started_s

    def reserve_s(self, cases: int) -> float:
        """Seconds to set aside for fitting and storing so many cases.

        Other processes and a slow disk will stretch the fit as they have stretched what ran so far (imports, mostly).
        """
        given_s = max(time.process_time() - self.processor_s, 1e-3)
        stretched = min(max(self.elapsed_s / given_s, 1.0), MOST_STRETCHED)
        return (FIT_S + FIT_PER_CASE_S * cases) * stretched


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
            yield Session(store, backend, agenda, request, resumed=found is not None)
            status = ""
        except (KeyboardInterrupt, GeneratorExit):
            status = "interrupted"
            raise
        finally:
            if status:
                store.finish_run(agenda.run_id, status)


def _begin(store: Store, request: MeasureRequest, backend: Backend) -> Agenda:
    budget_s = request.budget_s or (QUICK_BUDGET_S if request.quick else FULL_BUDGET_S)
    canaries = choose_canaries(backend, request.execution) if budget_s >= CANARIES_FROM_S else ()
    cases = planned_cases(
        asked_steps(request.questions, request.execution),
        request.execution,
        quick=request.quick,
        asked_first=request.questions is not None,
        canaries=[model_calls(canary.graph, canary.samples) for canary in canaries],
    )
    design = Design(cases, choose_anchors(backend, request.execution), canaries, budget_s)
    environment = backend.environment()
    plan = plan_fact(request, design, environment)
    run_id = store.begin_run(_command(request), backend.device, environment, [plan])
    agenda = Agenda(
        run_id=run_id,
        name=None,
        cases=tuple(cases),
        anchors=tuple(design.anchors),
        canaries=canaries,
        execution=request.execution,
        seed=request.seed,
        budget_s=budget_s,
    )
    return with_name(agenda, request)


def _command(request: MeasureRequest) -> str:
    """What was asked, in a few words."""
    questions = request.questions
    models = [] if questions is None else [model if n is None else f"{model}:{n}" for model, n in questions.models]
    words = ["measure", request.device, request.execution.kernel_key, request.execution.optimizer]
    return " ".join([*words, *(["quick"] if request.quick else []), *models])


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
