"""Which steps a user's questions are about: every model, batch, number of devices and strategy, as calls of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calibration.design import Step, model_calls, plan_calls
from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.machine import Cluster, Link
from oracle.model import ModelGraph
from oracle.plan import Job, Strategy
from oracle.search import variants
from oracle.strategies import STRATEGIES
from oracle.strategies.choices import parse_strategy
from service.measuring_requests import Questions
from service.models import find_model

MODELS = (("resnet50", 8), ("alexnet", 32))
"""The models whose own shapes are measured where nobody asks for others, with the samples of one step."""


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
