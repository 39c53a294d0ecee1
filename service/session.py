"""One process's work on a run: measure what is left of it, here or in a fresh process.

A fresh process is one of its own: where its memory lies and what its allocator keeps differ from those of every other
process, and are the same for all that it measures. It makes one round of visits and ends. It ends as well when the
process that asked for it has, so that a run that was killed is nobody's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection

from db.store import Store
from oracle.errors import StepgaugeError
from profiler.backends.base import Backend, open_backend
from profiler.run import RunSettings, RunSummary, Unmeasured, measure
from profiler.steps.canaries import visit_canaries
from profiler.stopping import StoppingRule
from service.agenda import Agenda, load_agenda, refused_fact
from service.measuring_requests import Progress

TARGET = 0.03
"""Half-width of a median's 95 % interval at which a visit ends: less than what the machine drifts between visits."""

VISIT_S = 0.15
"""Sampling time of one visit: several short visits show the drift between them, which one long visit hides."""

SHORTEST_VISIT_S = 0.02
"""Sampling time of one visit where the budget is short: rather all cases roughly than half of them well."""

LEAST_FOR_CANARIES_S = 20.0
"""A session with less time leaves the canaries to the run's others: they take about five seconds."""

SPENT_S = 1e-3
"""What a budget is that has been spent: a run measures nothing in it."""

ANCHOR_EVERY_S = (3.0, 10.0)
"""The least and the most time between two visits of the anchors."""


def measure_here(
    store: Store, backend: Backend, agenda: Agenda, progress: Progress, max_rounds: int | None = None
) -> RunSummary:
    """Measure what an agenda has left, within its budget, and store every visit at once; its canary steps first.

    Args:
        store: where to.
        backend: the device.
        agenda: what is left; its budget is for measuring alone.
        progress: told of every visit.
        max_rounds: passes over the cases after which to stop.
    """
    if agenda.canaries and agenda.budget_s >= LEAST_FOR_CANARIES_S:
        agenda = _after_canaries(store, backend, agenda, progress)
    settings = RunSettings(
        run_id=agenda.run_id,
        budget_s=agenda.budget_s,
        seed=agenda.seed,
        rule=StoppingRule(target=TARGET, max_s=_visit_s(agenda.budget_s, len(agenda.cases))),
        anchors=agenda.anchors,
        anchor_every_s=_anchor_every_s(agenda.budget_s),
        max_rounds=max_rounds,
    )

    def refuse(item: Unmeasured) -> None:
        store.add_fact(agenda.run_id, refused_fact(item))

    return measure(agenda.cases, backend, store.add_measurement, settings, progress, refuse)


def _after_canaries(store: Store, backend: Backend, agenda: Agenda, progress: Progress) -> Agenda:
    """Train the canaries for a moment; returns the agenda with the time that is left."""
    begun_s = time.monotonic()
    progress(0, len(agenda.cases), "canary steps")
    visit_canaries(agenda.canaries, backend, agenda.execution, agenda.run_id, store.add_measurement)
    return replace(agenda, budget_s=max(agenda.budget_s - (time.monotonic() - begun_s), SPENT_S))


def _visit_s(budget_s: float, cases: int) -> float:
    """Sampling time of one visit: a first round should take no more than half of the budget."""
    return min(VISIT_S, max(SHORTEST_VISIT_S, budget_s / (4 * max(cases, 1))))


def _anchor_every_s(budget_s: float) -> float:
    """Seconds between visits of the anchors, which take about 0.3 s: enough of them to see a drift in a short run."""
    return min(ANCHOR_EVERY_S[1], max(ANCHOR_EVERY_S[0], budget_s / 15))


@dataclass(frozen=True)
class Round:
    """One round of a run, for a process of its own.

    Args:
        address: of the store, as it was opened.
        device: the kind of device.
        run_id: the run.
        budget_s: seconds that the round may measure.
    """

    address: str
    device: str
    run_id: str
    budget_s: float


def in_fresh_process(task: Round, progress: Progress) -> None:
    """Make one round of a run in a process of its own, and wait for it.

    Raises:
        StepgaugeError: the process ended by an error or by a signal.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_make_round, args=(task, theirs, os.getpid()))
    process.start()
    theirs.close()
    try:
        failed = _listen(ours, progress)
        process.join()
    finally:
        process.kill()  # no harm where it has ended; an interruption takes it along
        process.join()
    if failed or process.exitcode:
        raise StepgaugeError(failed or f"a process that measured ended by signal or error {process.exitcode}")


def _listen(connection: Connection, progress: Progress) -> str:
    """Pass progress on until the other end is closed; returns what went wrong there."""
    failed = ""
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return failed
        if isinstance(message, str):
            failed = message
        else:
            progress(*message)


def _make_round(task: Round, connection: Connection, parent: int) -> None:
    """What the fresh process runs."""
    try:
        with Store.open(task.address) as store:
            agenda = load_agenda(store, task.run_id, task.budget_s)
            measure_here(store, open_backend(task.device), agenda, _telling(connection, parent), max_rounds=1)
    except StepgaugeError as error:
        connection.send(str(error))
    except KeyboardInterrupt:
        pass  # the parent is interrupted as well, and says so
    finally:
        connection.close()


def _telling(connection: Connection, parent: int) -> Callable[[int, int, str], None]:
    def progress(done: int, total: int, text: str) -> None:
        if os.getppid() != parent:
            raise KeyboardInterrupt
        connection.send((done, total, text))

    return progress
