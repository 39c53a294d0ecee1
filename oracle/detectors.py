"""The rows of ParaDL's Table V: how large each limit or bottleneck is, why, and what might change it.

Why a transfer takes its time: it is priced again with next to no bytes. What remains is startup, so the transfer is
latency-bound where that is more than half, else bandwidth-bound. Congestion: the step is priced again without
oversubscription and with a network card for every device. Redundant compute: forward and backward are priced again on
one device, and its share of that is what they would take if nothing ran twice and shards were as fast as the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from oracle import whatif
from oracle.case import Case
from oracle.layer import Phase
from oracle.memory import MemoryKind
from oracle.plan import Microbatched, StepPart
from oracle.projection import FORWARD_BACKWARD, total_of
from oracle.strategies.serial import Serial
from oracle.units import format_bytes, format_seconds
from oracle.whatif import WhatIf

SMALLEST = 0.02
"""What takes less than this share is no bottleneck."""

THE_STEP = "the step"
"""What the shares of limits and bottlenecks of time are of."""

_STATES = (MemoryKind.WEIGHTS, MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER)
_TENSORS = (MemoryKind.ACTIVATIONS, MemoryKind.TRANSIENT, MemoryKind.INPUT)
_EXCHANGED = (StepPart.GRADIENT_EXCHANGE, StepPart.UPDATE)


@dataclass(frozen=True)
class Detector:
    """One row of the table.

    Args:
        name, category, kind, phase: as in ParaDL's Table V.
        share: how large it is in a case.
        why: why it is so large, in words; asked only where it is.
        changes: what might make it smaller.
        of: what the share is of.
        smallest: below this share it is nothing.
    """

    name: str
    category: str
    kind: str
    phase: str
    share: Callable[[Case], float]
    why: Callable[[Case], str]
    changes: tuple[WhatIf, ...]
    of: str = THE_STEP
    smallest: float = SMALLEST


# --- communication


def _gradient_exchange(case: Case) -> float:
    return case.communication_s(_EXCHANGED) / case.step_s


def _waits_in_passes(case: Case, *, neighbours: bool) -> float:
    """The share of the step that forward and backward wait for point-to-point transfers, or for all others."""
    moves = [move for move in case.moves if move.exchange.part in FORWARD_BACKWARD]
    total = sum(move.seconds for move in moves)
    if not total:
        return 0.0
    own = sum(move.seconds for move in moves if (move.exchange.transfer.collective == "p2p") is neighbours)
    return own / total * case.communication_s(FORWARD_BACKWARD) / case.step_s


def _congestion(case: Case) -> float:
    tiers = [case.job.cluster.tiers[move.exchange.transfer.tier] for move in case.moves]
    if not any(move.alone_s < move.seconds for move in case.moves) and all(t.oversubscription == 1 for t in tiers):
        return 0.0
    free = case.changed(whatif.no_congestion)
    return 0.0 if free is None else max(0.0, 1 - free[1].step_s / case.step_s)


def _why_moves(parts: Iterable[StepPart], *, neighbours: bool | None = None) -> Callable[[Case], str]:
    wanted = frozenset(parts)

    def why(case: Case) -> str:
        moves = [
            move
            for move in case.moves
            if move.exchange.part in wanted
            and (neighbours is None or (move.exchange.transfer.collective == "p2p") is neighbours)
        ]
        latency = sum(move.latency_s for move in moves) / sum(move.seconds for move in moves)
        largest = max(moves, key=lambda move: move.seconds)
        count = sum(move.count for move in moves)
        sent_bytes = sum(move.count * move.exchange.transfer.bytes for move in moves)
        transfer = largest.exchange.transfer
        tiers = case.job.cluster.tiers
        where = f" ('{tiers[transfer.tier].name}' links)" if len(tiers) > 1 else ""
        bound = f"latency-bound ({latency:.0%} is startup)" if latency > 0.5 else "bandwidth-bound"
        sent = format_bytes(sent_bytes)
        what = f"{transfer.collective} of {sent}"
        if count > 1:
            what = f"{count} transfers, mostly {transfer.collective}, {sent} together"
        hidden = f", {case.projection.hidden.middle / case.step_s:.0%} more is hidden" if _hides(case) else ""
        return f"{bound}: {what} over {transfer.group} devices{where}{hidden}"

    return why


def _hides(case: Case) -> bool:
    return case.projection.hidden.middle > SMALLEST * case.step_s


def _why_congestion(case: Case) -> str:
    shared = [move for move in case.moves if move.alone_s < move.seconds]
    names = {case.job.cluster.tiers[move.exchange.transfer.tier].name for move in case.moves}
    over = [t for t in case.job.cluster.tiers if t.name in names and t.oversubscription > 1]
    reasons = [f"'{tier.name}' is oversubscribed {tier.oversubscription:g} times" for tier in over]
    if shared:
        transfer = max(shared, key=lambda move: move.seconds).exchange.transfer
        cards = case.job.cluster.tiers[transfer.tier].nics_per_node
        reasons.append(f"{transfer.concurrent} groups share {cards} network card{'s' if cards > 1 else ''} of a node")
    return " and ".join(reasons)


# --- compute


def _whole_share_s(case: Case) -> float:
    """Seconds of forward and backward if the group shared the work of one device out without loss."""
    group = case.job.devices / case.plan.groups
    alone = replace(case.job, devices=1, global_batch=max(1, case.plan.samples))
    serial = case.predictor.project(alone, Serial())
    return total_of(serial.compute, FORWARD_BACKWARD).middle / group


def _redundant(case: Case) -> float:
    sharded = case.job.devices > case.plan.groups or len(case.plan.stages) > 1
    if isinstance(case.plan.schedule, Microbatched) or not sharded:
        return 0.0
    compute_s = total_of(case.projection.compute, FORWARD_BACKWARD).middle
    return max(0.0, compute_s - _whole_share_s(case)) / case.step_s


def _why_redundant(case: Case) -> str:
    whole = {node.name: node.layer for node in case.job.model.nodes}
    own = [item for item in case.kernels if item.part in FORWARD_BACKWARD]
    replicated = sum(i.seconds for i in own if i.call.layer == whole.get(i.layer))
    group = case.job.devices / case.plan.groups
    repeated = replicated * (1 - 1 / group) / case.step_s if group > 1 else 0.0
    rest = max(0.0, _redundant(case) - repeated)
    if repeated >= rest:
        return f"layers that every device of a group repeats ({repeated:.0%} of the step) do not get faster with it"
    return f"kernels of a share of a layer are slower than their share of its time ({rest:.0%} of the step)"


def _update(case: Case) -> float:
    return total_of(case.projection.compute, (StepPart.UPDATE,)).middle / case.step_s


def _why_update(case: Case) -> str:
    optimizer = case.job.execution.optimizer
    moved = case.job.execution.optimizer_cost.words_moved
    return f"{optimizer} reads and writes {moved} numbers per weight on every device, however few samples it has"


def _imbalance(case: Case) -> float:
    return case.projection.bubble.middle / case.step_s


def _why_imbalance(case: Case) -> str:
    busy: dict[int, float] = defaultdict(float)
    for item in case.kernels:
        if item.part in FORWARD_BACKWARD:
            busy[item.stage] += item.seconds
    mean, slowest = sum(busy.values()) / len(case.plan.stages), max(busy.values())
    schedule = case.plan.schedule
    segments = schedule.segments if isinstance(schedule, Microbatched) else 1
    stages = len(case.plan.stages)
    fill = (stages - 1) / (segments + stages - 1)
    return (
        f"{stages} stages fill and drain with {segments} segments ({fill:.0%} of their time), "
        f"and the slowest stage has {slowest / mean:.2f} times the mean"
    )


def _fixed(case: Case) -> float:
    """The share of kernels' time that is left when samples go: t(n) = a + b n through n and 2 n samples."""
    items = [item for item in case.kernels if item.call.phase is not Phase.UPDATE]
    if isinstance(case.plan.schedule, Microbatched) or not items:
        return 0.0
    calls = list(dict.fromkeys(item.call for item in items))
    once = case.predictor.layers.price(calls)
    twice = case.predictor.layers.price([replace(call, samples=2 * call.samples) for call in calls])
    fixed = dict(zip(calls, 2 * once.middle_s - twice.middle_s, strict=True))
    counted = sum(item.count * min(max(0.0, float(fixed[item.call])), item.seconds / item.count) for item in items)
    return counted / case.step_s


def _host(case: Case) -> float:
    return total_of(case.projection.host_wait).middle / case.step_s


def _why_host(case: Case) -> str:
    host, kernels = total_of(case.projection.host).middle, case.projection.compute_total.middle
    parts = case.projection.host_wait
    most = max(parts, key=lambda part: parts[part].middle).replace("_", " ")
    return (
        f"the host needs {format_seconds(host)} to enqueue what the device computes in {format_seconds(kernels)}, "
        f"and lags most in {most}"
    )


def _stragglers(case: Case) -> float:
    return case.projection.stragglers.middle / case.step_s


# --- memory


def _held(case: Case, kinds: Iterable[MemoryKind]) -> float:
    memory = case.projection.memory
    return sum(memory.by_kind_bytes.get(kind, 0.0) for kind in kinds) if memory is not None else 0.0


def _redundancy(case: Case) -> float:
    memory = case.projection.memory
    if memory is None or case.job.devices == 1:
        return 0.0
    group, held = case.job.devices / case.plan.groups, case.plan.held
    copies = 1 - 1 / case.plan.groups
    whole = {node.name: node.layer for node in case.job.model.nodes}
    repeated = group > 1 and not isinstance(case.plan.schedule, Microbatched)
    params = sum(stage.params for stage in case.plan.stages)
    replicas = copies if held.weights == 1.0 else 0.0
    if repeated and params == case.job.model.params:
        replicas = 1 - 1 / case.job.devices  # a group that splits no weights holds as many copies as it has devices
    tensors = 0.0
    if repeated:
        same = [n for s in case.plan.stages for n in s.nodes if n.layer.input_shapes == whole[n.name].input_shapes]
        items = sum(node.layer.input_items for node in case.job.model.nodes)
        tensors = sum(node.layer.input_items for node in same) / items * (1 - 1 / group)
    return (replicas * _held(case, _STATES) + tensors * _held(case, _TENSORS)) / memory.total_bytes


def _why_redundancy(case: Case) -> str:
    states, tensors = format_bytes(_held(case, _STATES)), format_bytes(_held(case, _TENSORS))
    return f"every device holds what others hold too (of {states} weights and their states, {tensors} activations)"


def _capacity(case: Case) -> float:
    memory = case.projection.memory
    if memory is None or memory.capacity_bytes is None:
        return 0.0
    return memory.total_bytes / memory.capacity_bytes


def _why_capacity(case: Case) -> str:
    memory = case.projection.memory
    if memory is None or memory.capacity_bytes is None:
        return ""
    if memory.fits:
        return f"{format_bytes(memory.total_bytes)}: with a probability of {memory.risk:.0%} it does not fit after all"
    return f"{format_bytes(memory.total_bytes)} do not fit"


DETECTORS = (
    Detector(
        *("gradient exchange", "communication", "L", "GE", _gradient_exchange, _why_moves(_EXCHANGED)),
        changes=(
            whatif.buckets_during_backward,
            whatif.twice_the_batch,
            whatif.twice_the_bandwidth,
            whatif.half_the_latency,
        ),
    ),
    Detector(
        *("layer-wise collectives", "communication", "L", "FB"),
        share=lambda case: _waits_in_passes(case, neighbours=False),
        why=_why_moves(FORWARD_BACKWARD, neighbours=False),
        changes=(whatif.smaller_groups, whatif.data_parallelism, whatif.twice_the_bandwidth, whatif.half_the_latency),
    ),
    Detector(
        *("point-to-point transfers", "communication", "B", "FB"),
        share=lambda case: _waits_in_passes(case, neighbours=True),
        why=_why_moves(FORWARD_BACKWARD, neighbours=True),
        changes=(whatif.smaller_groups, whatif.twice_the_bandwidth, whatif.half_the_latency, whatif.twice_the_batch),
    ),
    Detector(
        *("congestion", "communication", "B", "FB, GE", _congestion, _why_congestion),
        changes=(whatif.no_congestion, whatif.buckets_during_backward, whatif.twice_the_batch),
    ),
    Detector(
        *("redundant or inefficient shard compute", "compute", "B", "FB", _redundant, _why_redundant),
        changes=(whatif.smaller_groups, whatif.data_parallelism),
    ),
    Detector(
        *("weight update", "compute", "L", "WU", _update, _why_update),
        changes=(whatif.twice_the_batch, whatif.sharded_states),
    ),
    Detector(
        *("load balance between stages", "compute", "L", "FB, WU", _imbalance, _why_imbalance),
        changes=(whatif.more_segments, whatif.smaller_groups, whatif.twice_the_batch),
    ),
    Detector(
        *("launches and other fixed cost of kernels", "compute", "B", "FB", _fixed),
        why=lambda case: "launch-bound: it is there however few samples a device has",
        changes=(whatif.twice_the_batch,),
        smallest=0.1,
    ),
    Detector(
        *("enqueueing by the host", "compute", "B", "FB, WU", _host, _why_host),
        changes=(whatif.twice_the_batch, whatif.cuda_graphs, whatif.fused_optimizer),
    ),
    Detector(
        *("stragglers", "compute", "B", "all", _stragglers),
        why=lambda case: f"a synchronous step waits for the slowest of {case.job.devices} devices",
        changes=(),
    ),
    Detector(
        *("redundancy", "memory", "B", "all", _redundancy, _why_redundancy),
        changes=(whatif.sharded_states, whatif.smaller_groups),
        of="a device's memory",
        smallest=0.1,
    ),
    Detector(
        *("capacity", "memory", "B", "all", _capacity, _why_capacity),
        changes=(whatif.recomputation, whatif.sharded_states, whatif.half_the_batch),
        of="a device's memory",
        smallest=0.9,
    ),
)
"""ParaDL's Table V, and the three lines beyond it."""
