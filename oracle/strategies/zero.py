"""ZeRO, or fully sharded data parallelism: data parallelism whose states are not replicated but shared out.

Stage 1 shares out the optimizer's states, stage 2 the gradients as well, stage 3 the weights as well (Rajbhandari et
al., SC20). Each device updates its share. In stages 1 and 2 a reduce_scatter of gradients and an all_gather of updated
weights move what data parallelism's all_reduce moves. In stage 3 weights are gathered before they are used, forward and
backward, and dropped again: 1.5 times the volume. Units of consecutive layers are gathered together (FSDP: Zhao et al.,
VLDB 2023); two of them are held at once, the one in use and the one that is on its way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from oracle.errors import OutOfRange
from oracle.estimate import Ints
from oracle.groups import Group
from oracle.layer import Phase
from oracle.plan import Exchange, Held, Job, Limit, Overlapped, Place, Plan, Shares, Stage, StepPart, Task, stage_of
from oracle.pricing import LayerCall
from oracle.strategies.data import Data, in_buckets
from oracle.strategies.serial import Serial
from oracle.updates import Parameters

STAGES = (1, 2, 3)


@dataclass(frozen=True)
class Zero:
    """Replicas that share out their states.

    Args:
        stage: 1 optimizer states, 2 and gradients, 3 and weights.
        unit_bytes: weights that are gathered, and gradients that are reduced, together.
    """

    name: ClassVar[str] = "zero"
    stage: int = 3
    unit_bytes: float = 25 * 2.0**20

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise OutOfRange(f"zero has the stages 1, 2 and 3, not {self.stage}")
        if not self.unit_bytes > 0:
            raise OutOfRange(f"a unit of weights has more than zero bytes, not {self.unit_bytes}")

    def limit(self, job: Job) -> Limit:
        """Every device needs a sample."""
        return Data().limit(job)

    def plan(self, job: Job) -> Plan:
        """A stage per unit, with its transfers beside the kernels of the others."""
        if job.devices == 1:
            return Serial().plan(job)
        group = Group(job.devices)
        samples = -(-job.global_batch // group.size)
        units = in_buckets(stage_of(job, job.model.nodes, samples), job, self.unit_bytes)
        params, share = [unit.params for unit in units], 1 / group.size
        # One unit's gradients until they are reduced; and in stage 3 the weights of a unit and of the next.
        transient = (0, max(params), max(params) + max(map(sum, zip(params, [*params[1:], 0], strict=True))))
        held = Held(
            weights=share if self.stage == 3 else 1.0,
            gradients=share if self.stage >= 2 else 1.0,
            optimizer=share,
            transfer_bytes=float(transient[self.stage - 1] * job.execution.parameter_bytes),
        )
        stages = tuple(self._sharing(unit, job, group) for unit in units)
        return Plan(job, samples, stages, Overlapped(), groups=group.size, held=held)

    def shares(self, job: Job, batches: Ints) -> Shares:
        """The largest share of each batch."""
        return Shares.of(-(-batches // job.devices))

    def _sharing(self, unit: Stage, job: Job, group: Group) -> Stage:
        """The unit with its transfers and its share of the update."""
        if not unit.params:
            return unit
        size_bytes = unit.params * job.execution.parameter_bytes
        gather = group.transfer(job.cluster, "all_gather", size_bytes)
        reduce = group.transfer(job.cluster, "reduce_scatter", size_bytes)
        exchanges = [Exchange(reduce, StepPart.GRADIENT_EXCHANGE)]
        if self.stage == 3:
            parts = (StepPart.FORWARD, StepPart.BACKWARD_DATA)
            exchanges += [Exchange(gather, part, place=Place.AHEAD) for part in parts]
        else:
            exchanges.append(Exchange(gather, StepPart.UPDATE))
        flat = Parameters(((-(-unit.params // group.size), 1),))
        update = Task(LayerCall(flat, Phase.UPDATE, unit.samples), StepPart.UPDATE)
        tasks = tuple(task for task in unit.tasks if task.part is not StepPart.UPDATE)
        return replace(unit, tasks=(*tasks, update), exchanges=tuple(exchanges), reduced=group.size)
