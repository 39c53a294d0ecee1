"""One plan, priced layer by layer and transfer by transfer: where the seconds of a step are.

An optimizer updates all layers of a device in one call, of which each is given its share.

Seconds are middles, over all passes of a step. They are busy seconds: what hides behind something else is in here and
not in the step. A pipeline's stages run on devices of their own, so there they add up to more than one device's step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from oracle.enqueueing import host_of_calls
from oracle.layer import Layer, Phase
from oracle.plan import Exchange, Place, Plan, Stage, StepPart, Task, tasks_of
from oracle.pricing import LayerCall, LayerTimer, Method, Transfer, TransferTimer
from oracle.questions import passes_of, updates_of
from oracle.updates import together

SHARED_UPDATE = "(all layers)"
"""What a kernel is listed under that belongs to no single layer: the update of a share of all weights."""


@dataclass(frozen=True)
class KernelItem:
    """The kernels of one layer in one part of a step.

    Args:
        stage: index of its stage.
        layer: its name.
        part: when it runs.
        call: what runs, once.
        count: how often per step; a share of shared calls.
        seconds: all of them together; of an update, the layer's share of the device's.
        method: how the price is known.
        host_s: what the host needs to enqueue them, all together; None where that is not known.
    """

    stage: int
    layer: str
    part: StepPart
    call: LayerCall
    count: float
    seconds: float
    method: Method
    host_s: float | None = None


@dataclass(frozen=True)
class MoveItem:
    """One exchange over a step.

    Args:
        exchange: what moves, and when.
        count: how often per step.
        seconds: all of them together.
        latency_s: what remains of them when next to nothing is sent.
        alone_s: what they would take if no other group used the links.
        method: how the price is known.
    """

    stage: int
    exchange: Exchange
    count: int
    seconds: float
    latency_s: float
    alone_s: float
    method: Method


def kernels_of(plan: Plan, timer: LayerTimer) -> tuple[KernelItem, ...]:
    """The kernels of a plan by stage, layer and part.

    Raises:
        NotCalibrated: the timer knows nothing of a layer.
    """
    return (*_passes(plan, timer), *_updates(plan, timer))


def _passes(plan: Plan, timer: LayerTimer) -> Iterator[KernelItem]:
    """Forward and backward."""
    named = [(i, *each) for i, stage in enumerate(plan.stages) for each in _named_tasks(plan, stage)]
    calls = list(dict.fromkeys(task.call for _, _, task, _ in named))
    prices = timer.price(calls)
    host = host_of_calls(timer, calls, plan.job.execution)
    place = {call: index for index, call in enumerate(calls)}
    for stage, name, task, runs in named:
        index, count = place[task.call], runs * passes_of(plan, (stage, task.part, Place.INSIDE))
        seconds = count * float(prices.middle_s[index])
        host_s = None if host is None else count * float(host[index, 0])
        yield KernelItem(stage, name, task.part, task.call, count, seconds, prices.methods[index], host_s)


def _updates(plan: Plan, timer: LayerTimer) -> Iterator[KernelItem]:
    """The update of every device, shared out over the layers whose tensors it updates."""
    found = updates_of(plan)
    calls = [task.call for task, _ in found]
    prices, host = timer.price(calls), host_of_calls(timer, calls, plan.job.execution)
    for index, (task, stages) in enumerate(found):
        owners = [(i, n) for i in stages for n in plan.stages[i].nodes if Phase.UPDATE in n.layer.phases]
        layers = [node.layer for _, node in owners]
        parts = [(stages[0], SHARED_UPDATE, task.call.layer, 1.0, 1.0)]
        if layers and together(layers) == task.call.layer:
            shares, tensors = _shares(layers, task.call, timer)
            parts = [
                (i, node.name, node.layer, share, asked)
                for (i, node), share, asked in zip(owners, shares, tensors, strict=True)
            ]
        seconds, method = task.count * float(prices.middle_s[index]), prices.methods[index]
        host_s = None if host is None else task.count * float(host[index, 0])
        for stage, name, layer, share, asked in parts:
            call = replace(task.call, layer=layer)
            own_host_s = None if host_s is None else asked * host_s
            yield KernelItem(stage, name, task.part, call, task.count, share * seconds, method, own_host_s)


def _shares(layers: Sequence[Layer], call: LayerCall, timer: LayerTimer) -> tuple[list[float], list[float]]:
    """The shares of layers in their common update: of the device's seconds, and of the tensors, which the host names.

    The device's are as the updates of as many layers like each of them would be to one another: a single layer's own
    would hold all that a call costs.
    """
    own = [together([layer]) for layer in layers]
    alike_s = timer.price([replace(call, layer=tensors.times(len(own))) for tensors in own]).middle_s
    if not alike_s.any():
        alike_s = np.ones(len(own))
    counts = np.array([len(layer.param_shapes) for layer in layers])
    return (alike_s / alike_s.sum()).tolist(), (counts / counts.sum()).tolist()


def moves_of(plan: Plan, timer: TransferTimer) -> tuple[MoveItem, ...]:
    """The exchanges of a plan between more than one device, in their order."""
    found = [(i, e) for i, stage in enumerate(plan.stages) for e in stage.exchanges if e.transfer.group > 1]
    transfers = [exchange.transfer for _, exchange in found]
    whole, empty, alone = (timer.price(list(variant)) for variant in _variants(transfers))
    items = []
    for index, (stage, exchange) in enumerate(found):
        count = passes_of(plan, (stage, exchange.part, exchange.place))
        seconds, latency_s, alone_s = (count * float(prices.middle_s[index]) for prices in (whole, empty, alone))
        items.append(MoveItem(stage, exchange, count, seconds, latency_s, alone_s, whole.methods[index]))
    return tuple(items)


def _variants(transfers: Sequence[Transfer]) -> tuple[Sequence[Transfer], ...]:
    """As they are, without their bytes, and alone."""
    return (
        transfers,
        [replace(transfer, bytes=1.0) for transfer in transfers],
        [replace(transfer, concurrent=1) for transfer in transfers],
    )


def _named_tasks(plan: Plan, stage: Stage) -> list[tuple[str, Task, float]]:
    """Forward and backward of a stage under the names of their layers, with how often each runs.

    Equal calls share what is run.
    """
    model, recompute = plan.job.model, plan.job.execution.recomputed_segments > 0
    own = [
        (n.name, t)
        for n in stage.nodes
        for t in tasks_of(model, (n,), stage.samples, recompute=recompute)
        if t.part is not StepPart.UPDATE
    ]
    runs = Counter[tuple[LayerCall, StepPart]]()
    for task in stage.tasks:
        runs[task.call, task.part] += task.count
    asked = Counter[tuple[LayerCall, StepPart]]()
    for _, task in own:
        asked[task.call, task.part] += task.count
    return [
        (name, task, task.count * runs[task.call, task.part] / asked[task.call, task.part])
        for name, task in own
        if runs[task.call, task.part]
    ]


@dataclass(frozen=True)
class Rates:
    """The best rates that kernels of a step reach: a roofline that the step itself draws.

    Args:
        flop_per_s, bytes_per_s: of the kernels that reach most.
    """

    flop_per_s: float
    bytes_per_s: float

    def of(self, item: KernelItem) -> str:
        """What bounds a kernel: `compute` or `memory` where it comes near one of the best rates, else its `size`.

        A kernel that reaches less than a quarter of both is too small or too oddly shaped to fill the device.
        """
        flop, moved = _achieved(item)
        compute, memory = flop / self.flop_per_s, moved / self.bytes_per_s
        if max(compute, memory) < ENOUGH:
            return "size"
        return "compute" if compute >= memory else "memory"


ENOUGH = 0.25
"""The share of the best rate from which a kernel counts as bound by it."""


def rates_of(items: Sequence[KernelItem]) -> Rates:
    """The best rates among the kernels of a step."""
    achieved = [_achieved(item) for item in items] or [(0.0, 0.0)]
    return Rates(max(1.0, *(flop for flop, _ in achieved)), max(1.0, *(moved for _, moved in achieved)))


def _achieved(item: KernelItem) -> tuple[float, float]:
    """FLOP/s and bytes/s, the latter of the traffic that cannot be avoided."""
    work = item.call.layer.work(item.call.phase, item.call.samples)
    each_s = item.seconds / item.count if item.seconds else float("inf")
    return work.flop / each_s, work.bytes / each_s
