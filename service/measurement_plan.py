"""What to measure on a cluster so that its tiers can be told apart, planned on a login node without torch.

Every job is one launch, and its groups tell the links apart: the ranks of one `node`, one rank of each node (`across`,
the links between nodes alone), `all` of them, and the `first:N`, which are the smaller scales that a law in ranks needs
(`calibration.link_scaling` takes three numbers of nodes). So one allocation of N nodes replaces one for each scale, and
all of its scales share their nodes. A tier further out needs an allocation of its own that leaves the tier inside it:
one node more than that holds, or two nodes chosen in different places where that would be too many. Curves of different
tiers look alike (ranks, nodes) and are different networks, so each job is collected under a name of its own.

Times are estimated by the links of the cluster file (`oracle.links`), as no measurement exists yet: for every case the
calls of a visit, for every round a visit, once the check of its result, plus the start of all ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibration.link_scaling import LEAST_SCALES
from oracle.errors import BadInput, OutOfRange
from oracle.links import LinkTimer
from oracle.machine import Cluster, Tier, load_cluster
from oracle.pricing import Transfer
from oracle.units import format_rate, format_seconds
from profiler.collectives.settings import CollectiveCase, CollectiveSettings, cases
from service.catalogue import write_text
from service.launch_lines import ADDRESS, LARGEST_BYTES, Launch

START_S = 90.0
"""Importing torch on every node from a shared file system, and joining."""

VISIT_S = 0.05
"""What the agreement of all ranks adds to a visit."""

CHECK_S_PER_BYTE = 2e-8
"""Writing and comparing the numbers that verify a result."""

SAMPLE_S, MOST_CALLS, WARM_UP_CALLS = 10e-3, 100, 4
"""As in `profiler.collectives.sampling`, which needs torch."""

MARGIN = 1.5
"""Budget over estimate: real links are slower than those of a file."""

MOST_NODES = 8
DEFAULT_BUDGET_S = 1800.0


@dataclass(frozen=True)
class PlanRequest:
    """Plan measurements.

    Args:
        cluster: a YAML file, see `oracle.machine.load_cluster`.
        max_nodes: of one job.
        budget_s: longest time of measuring in one job.
        device: `cuda` or `cpu`.
        dtypes: data types of the items.
        folder: under which every job has a folder for the files of its ranks.
    """

    cluster: Path
    max_nodes: int = MOST_NODES
    budget_s: float = DEFAULT_BUDGET_S
    device: str = "cuda"
    dtypes: tuple[str, ...] = ("fp32",)
    folder: Path = Path("collectives")

    def __post_init__(self) -> None:
        if self.max_nodes < 1:
            raise OutOfRange(f"--max-nodes is at least 1, not {self.max_nodes}")
        if not 60 <= self.budget_s < math.inf:
            raise OutOfRange(f"--budget of a job is at least 60 s, not {self.budget_s:g} s")
        if not str(self.folder).isprintable():
            raise BadInput("--folder has a name that no script can hold on one line")


@dataclass(frozen=True)
class Group:
    """A kind of group of a job.

    Args:
        kind: as `--groups` takes it.
        ranks, tier: how many ranks one has, and the tier that holds it.
        why: what it tells.
    """

    kind: str
    ranks: int
    tier: int
    why: str


@dataclass(frozen=True)
class MeasurementJob:
    """One launch.

    Args:
        name: the tier that it measures.
        nodes, ranks_per_node: where it runs.
        placement: which nodes to take; empty where any will do.
        groups: what is measured.
        estimate_s: how long all rounds take; budget_s: how long it may measure.
        launch: how to start it.
    """

    name: str
    nodes: int
    ranks_per_node: int
    placement: str
    groups: tuple[Group, ...]
    estimate_s: float
    budget_s: float
    launch: Launch

    @property
    def share(self) -> float:
        """How much of the estimated time the budget gives, at most 1."""
        return min(1.0, self.budget_s / self.estimate_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name,
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "placement": self.placement,
            "groups": [dict(vars(group)) for group in self.groups],
            "estimate_s": self.estimate_s,
            "budget_s": self.budget_s,
            "time_limit_s": self.launch.time_limit_s,
            "folder": str(self.launch.folder),
            "commands": self.launch.commands(),
            "collect": self.launch.collect,
        }


@dataclass(frozen=True)
class MeasurementPlan:
    """What to measure on a cluster.

    Args:
        scripts: the batch scripts that were written.
    """

    cluster: str
    jobs: tuple[MeasurementJob, ...]
    notes: tuple[str, ...]
    scripts: tuple[Path, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "cluster": self.cluster,
            "before": list(ADDRESS),
            "jobs": [job.to_dict() for job in self.jobs],
            "notes": list(self.notes),
            "scripts": [str(script) for script in self.scripts],
        }


def plan_measurement(request: PlanRequest) -> MeasurementPlan:
    """What to measure on a cluster, on how many nodes, for how long, and why.

    Raises:
        BadInput: the file is no cluster, or its innermost tier does not say how many devices it holds.
    """
    cluster = load_cluster(request.cluster)
    devices = cluster.tiers[0].devices
    if devices is None:
        inner = cluster.tiers[0].name
        raise BadInput(f"{request.cluster}: how many ranks run on a node? tier '{inner}' has no number of devices")
    notes: list[str] = []
    places = _places(cluster, devices, request.max_nodes, notes)
    jobs = [_job(request, cluster, place) for place in places]
    notes += [_short_of(job) for job in jobs if job.share < 1]
    return MeasurementPlan(cluster.name, tuple(jobs), tuple(notes))


def _short_of(job: MeasurementJob) -> str:
    rounds = job.launch.settings.rounds
    enough = job.share * rounds >= 1
    what = f"every size is measured, but not {rounds} times" if enough else "not every size is measured even once"
    part = f"about {job.share:.0%} of the estimated {format_seconds(job.estimate_s)}"
    return f"job '{job.name}': {format_seconds(job.budget_s)} are {part}: {what}; --budget gives it more"


@dataclass(frozen=True)
class _Place:
    """Index of the tier that a job measures, its nodes, which nodes to take, and how Slurm is told so."""

    tier: int
    nodes: int
    text: str = ""
    slurm: str = ""


def _places(cluster: Cluster, devices: int, max_nodes: int, notes: list[str]) -> Iterator[_Place]:
    tiers = cluster.tiers
    if len(tiers) == 1 or max_nodes == 1:
        if devices < 2:
            raise BadInput(f"one node of cluster '{cluster.name}' has a single device: nothing to measure between")
        if len(tiers) > 1:
            notes.append("one node alone tells nothing of the links between nodes; --max-nodes 2 or more does")
        yield _Place(0, 1)
        return
    nodes = min(max_nodes, _nodes(tiers[1], devices) or max_nodes)
    if len(list(_powers(2, nodes))) + 1 < LEAST_SCALES:
        notes.append(f"{nodes} nodes have fewer than {LEAST_SCALES} scales between nodes: no law in ranks is fitted")
    if len(tiers) == 2:
        yield _Place(1, nodes)
    else:
        yield _Place(
            1, nodes, f"all in one {_slug(tiers[1].name)}", "##SBATCH --switches=1  # where one switch joins them"
        )
    for index in range(2, len(tiers)):
        inner = _slug(tiers[index - 1].name)
        crossing = (_nodes(tiers[index - 1], devices) or 0) + 1
        if crossing <= max_nodes:
            yield _Place(index, crossing, f"one more than a {inner} holds")
        else:
            hint = "##SBATCH --nodelist=ONE,ANOTHER  # fill in two nodes, and remove one '#'"
            yield _Place(index, 2, f"each in another {inner}; name them yourself", hint)


def _nodes(tier: Tier, devices: int) -> int | None:
    return None if tier.devices is None else max(2, math.ceil(tier.devices / devices))


def _slug(text: str) -> str:
    """A text as a word of a shell, a folder, a comment."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "unnamed"


def _job(request: PlanRequest, cluster: Cluster, place: _Place) -> MeasurementJob:
    devices = cluster.tiers[0].devices or 1
    name = _slug(cluster.tiers[place.tier].name)
    groups = tuple(_groups(cluster, place.tier, place.nodes, devices))
    settings = CollectiveSettings(
        folder=request.folder / name,
        run_id="",
        budget_s=request.budget_s,
        device=request.device,
        dtypes=request.dtypes,
        largest_bytes=LARGEST_BYTES.get(request.device, 1 << 20),
        groups=tuple(group.kind for group in groups),
        concurrent=place.nodes > 1 and devices > 1,
    )
    estimate_s = _estimate_s(settings, cluster, groups, devices)
    settings = replace(settings, budget_s=min(request.budget_s, 60.0 * math.ceil(MARGIN * estimate_s / 60.0)))
    lines = (f"# Nodes: {place.text}.", *((place.slurm,) if place.slurm else ())) if place.text else ()
    return MeasurementJob(
        name=name,
        nodes=place.nodes,
        ranks_per_node=devices,
        placement=place.text,
        groups=groups,
        estimate_s=estimate_s,
        budget_s=settings.budget_s,
        launch=Launch(f"{_slug(cluster.name)}-{name}", settings, place.nodes, devices, lines),
    )


def _groups(cluster: Cluster, tier: int, nodes: int, devices: int) -> Iterator[Group]:
    def link(index: int) -> str:
        known = cluster.tiers[index].link
        rate = format_rate(known.bandwidth_bytes_per_s, "B/s")
        return f"tier '{cluster.tiers[index].name}', {format_seconds(known.latency_s)} and {rate} by the file"

    if nodes == 1:
        yield Group("all", devices, 0, f"the links inside a node ({link(0)})")
    elif devices > 1 and tier == 1:
        yield Group("node", devices, 0, f"the links inside a node ({link(0)})")
    if nodes > 1:
        what = f"the links between nodes ({link(tier)})"
        if devices > 1:
            yield Group("across", nodes, tier, f"{what} alone: one rank of each node, then all such groups at once")
        yield Group("all", nodes * devices, tier, f"{what} under all ranks of {nodes} nodes")
    if tier > 1:
        return  # only the crossing counts: a smaller group may stay inside, and the inside has a job of its own
    for ranks in _powers(2, devices):
        yield Group(f"first:{ranks}", ranks, 0, f"{ranks} ranks of a node: a scale inside it")
    for count in _powers(2, nodes):
        yield Group(f"first:{count * devices}", count * devices, tier, f"{count} nodes: a scale of the law in ranks")


def _powers(first: int, end: int) -> Iterator[int]:
    while first < end:
        yield first
        first *= 2


def _estimate_s(settings: CollectiveSettings, cluster: Cluster, groups: tuple[Group, ...], devices: int) -> float:
    timer = LinkTimer(cluster)
    total_s = START_S
    for group in groups:
        sharing = {"across": devices, "node": 1}.get(group.kind)
        for concurrent in [1] if sharing is None or not settings.concurrent else [1, sharing]:
            asked = list(cases(settings, group.kind, group.ranks, False))
            transfers = [
                Transfer(case.collective, float(case.bytes), group.ranks, group.tier, concurrent) for case in asked
            ]
            for case, call_s in zip(asked, timer.price(transfers).middle_s, strict=True):
                total_s += _case_s(settings, case, max(float(call_s), 1e-6))
    return total_s


def _case_s(settings: CollectiveSettings, case: CollectiveCase, call_s: float) -> float:
    calls = max(1, min(MOST_CALLS, math.ceil(SAMPLE_S / call_s)))
    rule = settings.rule
    samples = max(rule.min_samples, min(rule.max_samples, math.ceil(rule.max_s / (calls * call_s))))
    visit_s = VISIT_S + (WARM_UP_CALLS + (1 + samples) * calls) * call_s
    return CHECK_S_PER_BYTE * case.bytes + settings.rounds * visit_s


def write_scripts(plan: MeasurementPlan, file: Path) -> MeasurementPlan:
    """Write a batch script for every job: the first into the file, others beside it with the job in their name.

    Raises:
        BadInput: one cannot be written.
    """
    files = [file, *(file.with_stem(f"{file.stem}-{job.name}") for job in plan.jobs[1:])]
    for path, job in zip(files, plan.jobs, strict=True):
        write_text(path, job.launch.sbatch().rstrip("\n"))
    return replace(plan, scripts=tuple(files))
