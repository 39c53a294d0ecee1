"""What one rank does: join the others, then visit every case in rounds, in the same order as they do."""

from __future__ import annotations

import platform
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import torch
import torch.distributed as dist

from profiler.backends.base import Sample
from profiler.collectives.beside import Beside
from profiler.collectives.environment import collective_environment
from profiler.collectives.kernels import Kernel, open_kernel
from profiler.collectives.places import RankPlace, device_index, groups_of
from profiler.collectives.records import (
    RankFile,
    environment_values,
    measurement_values,
    read_rank_file,
    split_rank,
)
from profiler.collectives.sampling import Agreement, Gap, Timed, computing, pause, verify
from profiler.collectives.settings import KERNELS, CollectiveCase, CollectiveSettings, cases
from profiler.collectives.sides import COLLECTIVE_BESIDE, MICRO
from profiler.importers.base import host_digest
from profiler.measurement import Environment, Measurement
from profiler.micro.collective import Member
from profiler.run import Progress
from profiler.stopping import decide
from profiler.this_machine import cpu_model

UNSEEN = 1e9
"""Visits that a rank reports of a case in which it does not take part."""


@dataclass(frozen=True)
class Planned:
    """A case and who takes part.

    Args:
        case: what to measure.
        member: this process in its group; None where it rests.
        values: the case of the measurement, without the rank.
    """

    case: CollectiveCase
    member: Member | None
    values: Mapping[str, Any]


@dataclass
class RankRun:
    """One rank of a run.

    Args:
        settings: of the run.
        place: of this rank.
        store: the store of all ranks.
        file: where this rank keeps its measurements.
        progress: called on rank 0.
    """

    settings: CollectiveSettings
    place: RankPlace
    store: Any
    file: RankFile
    progress: Progress
    _unusable: set[CollectiveCase] = field(default_factory=set)
    _verified: set[CollectiveCase] = field(default_factory=set)
    _kernels: dict[str, Kernel] = field(default_factory=dict)

    def run(self) -> None:
        """Measure until every case has had its visits or the budget is spent.

        Raises:
            NoDevice: this rank has no CUDA device of its own.
            RuntimeError: another rank does not answer, or this one cannot go on.
            OSError: the file cannot be written.
        """
        end_s = time.monotonic() + self.settings.budget_s
        self._device = self._own_device()
        self._join()
        self._measure(end_s)
        self._leave()

    def _measure(self, end_s: float) -> None:
        agreement = self._agreement = Agreement(dist.new_group(backend="gloo", timeout=self._timeout))
        hosts = self._hosts()
        planned = self._planned(hosts)
        environment = collective_environment(self.settings, self.place, hosts)
        done = self._done(planned, environment)
        self.file.write("environment", environment_values(environment))
        order = list(range(len(planned)))
        draw = random.Random(self.settings.seed)  # noqa: S311 - an order, no secret
        total = len(planned) * self.settings.rounds
        for visit in range(self.settings.rounds):
            draw.shuffle(order)
            for position, index in enumerate(order):
                if done[index] > visit or planned[index].case in self._unusable:
                    continue
                if self.place.rank == 0:
                    self.progress(visit * len(planned) + position, total, planned[index].case.text)
                (over,) = agreement.largest(time.monotonic() >= end_s and self.place.rank == 0)
                if over:
                    return
                self._visit(planned[index], environment, end_s)

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self.settings.timeout_s)

    def _own_device(self) -> torch.device:
        if self.settings.device == "cpu":
            return torch.device("cpu")
        index = device_index(self.place, torch.cuda.device_count())
        torch.cuda.set_device(index)
        return torch.device("cuda", index)

    def _join(self) -> None:
        dist.init_process_group(
            "nccl" if self.settings.device == "cuda" else "gloo",
            store=dist.PrefixStore("torch", self.store),  # type: ignore[attr-defined]
            rank=self.place.rank,
            world_size=self.place.ranks,
            timeout=self._timeout,
        )

    def _leave(self) -> None:
        """End the threads of the process groups; one that still runs when the interpreter ends aborts the process."""
        self._agreement.largest(0.0)  # nobody leaves while another still measures
        del self._agreement
        dist.destroy_process_group()

    def _hosts(self) -> list[str]:
        """A digest of the host of every rank; names are not kept."""
        mine = host_digest({platform.node()}, self.settings.host_key)
        self.store.set(f"host/{self.place.rank}", mine)
        return [self.store.get(f"host/{rank}").decode() for rank in range(self.place.ranks)]

    def _planned(self, hosts: list[str]) -> list[Planned]:
        """Every case, in the same order on all ranks, which also make their groups in the same order."""
        found = []
        for kind in self.settings.groups:
            groups = groups_of(kind, hosts)
            if not groups:
                self.file.write("unavailable", {"what": f"group {kind}", "reason": "fewer than two such ranks"})
                continue
            handles = [dist.new_group(list(ranks), timeout=self._timeout) for ranks in groups]
            for concurrent in (False, True) if self.settings.concurrent and len(groups) > 1 else (False,):
                taking_part = groups if concurrent else groups[:1]
                member = self._member(taking_part, handles)
                nodes = len({hosts[rank] for rank in groups[0]})
                for case in cases(self.settings, kind, len(groups[0]), concurrent):
                    values = case_values(case, len(groups[0]), nodes, len(taking_part)) | self._company(case)
                    found.append(Planned(case, member, values))
        return found

    def _company(self, case: CollectiveCase) -> dict[str, str]:
        """What a case adds to a measurement's where it is not alone and back to back."""
        gap = self._gap(case)
        spacing = {} if gap is None else {"spacing": gap.text}
        return spacing | ({"beside": self._kernel(case.beside).text} if case.beside else {})

    def _gap(self, case: CollectiveCase) -> Gap | None:
        if case.spacing == "pause":
            return pause(self.settings.pause_s, self._device)
        return computing(self._kernel(KERNELS[0])) if case.spacing == "compute" else None

    def _kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            self._kernels[name] = open_kernel(name, self._device)
        return self._kernels[name]

    def _member(self, groups: list[tuple[int, ...]], handles: list[Any]) -> Member | None:
        for ranks, handle in zip(groups, handles, strict=False):
            if self.place.rank in ranks:
                return Member(handle, ranks, ranks.index(self.place.rank), self._device)
        return None

    def _done(self, planned: list[Planned], environment: Environment) -> list[float]:
        """Visits of each case that every rank has in its file, taken in this environment."""
        visits: Counter[str] = Counter()
        for entry in read_rank_file(self.file.path, []) if self.file.path.is_file() else ():
            if isinstance(entry, Measurement) and entry.environment.validity_key == environment.validity_key:
                case = split_rank(entry.case)[1]
                if case.pop("timed", COLLECTIVE_BESIDE) == COLLECTIVE_BESIDE:  # the last of a visit's
                    visits[_text(case)] += 1
        mine = [visits[_text(item.values)] if item.member else UNSEEN for item in planned]
        return [-most for most in self._agreement.largest(*(-count for count in mine))] if planned else []

    def _visit(self, planned: Planned, environment: Environment, end_s: float) -> None:
        case, member = planned.case, planned.member
        if case not in self._verified and not self._usable(case, verify(case, member, self._agreement)):
            return
        timed: Timed | Beside
        if not case.beside:
            timed = Timed(case, member, self._agreement, self._gap(case))
        else:
            timed = Beside(case, member, self._agreement, self._kernel(case.beside))
            if case not in self._verified and not self._usable(case, timed.check()):
                return
        self._verified.add(case)
        sides, stopped = self._sampled(timed, end_s)
        # One time for all ranks, since it tells the visits of a case apart.
        (stamp_ms,) = self._agreement.largest(time.time() * 1e3 if self.place.rank == 0 else 0.0)
        if member is None:
            return
        for name, samples in zip(timed.sides, sides, strict=True):
            measurement = Measurement(
                micro=MICRO if name else "collective",
                case={**planned.values, "rank": self.place.rank, **({"timed": name} if name else {})},
                phase=case.collective,
                execution="",
                device_s=tuple(sample.device_s for sample in samples),
                host_s=tuple(sample.host_s for sample in samples),
                inner=timed.inner,
                device=self._device_name(),
                environment=environment,
                run_id=self.settings.run_id,
                taken_at=datetime.fromtimestamp(stamp_ms * 1e-3, UTC).isoformat(timespec="milliseconds"),
                stopped=stopped,
            )
            self.file.write("measurement", measurement_values(measurement))

    def _usable(self, case: CollectiveCase, problem: str | None) -> bool:
        """Whether a case gave the right numbers; what it cannot do is written down and not tried again."""
        if problem is None:
            return True
        self._unusable.add(case)
        if problem:
            self.file.write("unavailable", {"what": case.text, "reason": problem})
        return False

    def _sampled(self, timed: Timed | Beside, end_s: float) -> tuple[list[list[Sample]], str]:
        """Samples of each side until all ranks agree that they are enough, and what ended them."""
        sides: list[list[Sample]] = [[] for _ in timed.sides]
        slowest_s: list[float] = []
        while True:
            for side, sample in zip(sides, timed.samples(), strict=True):
                side.append(sample)
            over = self.place.rank == 0 and time.monotonic() >= end_s
            longest_s, ended = self._agreement.largest(sides[-1][-1].device_s, over)
            slowest_s.append(longest_s)
            elapsed_s = len(sides) * sum(slowest_s) * timed.inner
            stopped = decide(slowest_s, elapsed_s, self.settings.rule) or ("budget" if ended else None)
            if stopped is not None:
                return sides, stopped

    def _device_name(self) -> str:
        return torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else cpu_model()


def case_values(case: CollectiveCase, ranks: int, nodes: int, concurrent: int) -> dict[str, Any]:
    """The `case` of a measurement, as importers write it: what is out of the ordinary adds a key.

    >>> case_values(CollectiveCase("broadcast", 64, "fp32", True), 2, 1, 1)
    {'collective': 'broadcast', 'bytes': 64, 'ranks': 2, 'nodes': 1, 'dtype': 'fp32', 'in_place': True}
    """
    values = {
        "collective": case.collective,
        "bytes": case.bytes,
        "ranks": ranks,
        "nodes": nodes,
        "dtype": case.dtype,
        "in_place": case.in_place,
    }
    if case.pattern:
        values["pattern"] = case.pattern
    if concurrent > 1:
        values["concurrent"] = concurrent
    return values


def _text(values: Mapping[str, Any]) -> str:
    return repr(sorted(values.items()))
