"""How the files of all ranks become measurements: one for each visit that every rank which takes part has finished.

A collective has ended when its last rank has, so each sample of a visit is that of its slowest rank. Files may come
from several folders (nodes that share no disk), several runs, or twice: what tells a visit is its run, its time and its
case, and a rank counts once. What does not belong together is said and not mixed. Ranks whose environments differ
(another NCCL on one node) did run together; their visits get an environment of their own that names both values.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from profiler.collectives.records import Unavailable, read_rank_file, split_rank
from profiler.measurement import Environment, Measurement
from profiler.stopping import StoppingRule, flags

STRAGGLER = 1.2
"""A rank whose median is above that of the median rank by this factor is named in the flags."""

_NAMED = 8
"""Ranks that a message names at most."""


@dataclass(frozen=True)
class Collected:
    """What the files of a run hold.

    Args:
        measurements: one for each visit of a case; each sample is that of the slowest rank.
        of_ranks: the same visits, each rank for itself; the case names its `rank`.
        unavailable: what the backend could not do.
        problems: lines that could not be read, visits that lack a rank, and environments that differ.
    """

    measurements: tuple[Measurement, ...]
    of_ranks: tuple[Measurement, ...]
    unavailable: tuple[Unavailable, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _Files:
    """Which ranks have a file here, and which runs are in it."""

    ranks: set[int] = field(default_factory=set)
    runs: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))

    def why_missing(self, rank: int, run_id: str) -> str:
        """Why a rank of a run did not finish a visit, as far as the files tell."""
        others = self.runs[rank] - {run_id}
        if run_id in self.runs[rank]:
            return f"rank {rank} did not finish them"
        if others:
            return f"the file of rank {rank} is of another run ({', '.join(sorted(others)[:2])})"
        return f"rank {rank} did not finish any" if rank in self.ranks else f"the file of rank {rank} is not here"


def collect(files: Iterable[Path]) -> Collected:
    """Bring the files of ranks together.

    Args:
        files: in any order, of one run or of several.

    Raises:
        BadInput: one that cannot be opened.
    """
    problems: list[str] = []
    known = _Files()
    of_ranks: list[Measurement] = []
    missing: dict[Unavailable, None] = {}
    for path in files:
        if match := re.fullmatch(r"rank-(\d{1,9})\.jsonl", path.name):
            known.ranks.add(int(match[1]))
        for entry in read_rank_file(path, problems):
            if isinstance(entry, Measurement):
                of_ranks.append(entry)
                known.runs[split_rank(entry.case)[0]].add(entry.run_id)
            else:
                missing[entry] = None
    whole, broken = _visits(of_ranks)
    problems += [*_of_broken(broken, known), *_of_environments(whole)]
    merged = tuple(_slowest(by_rank) for by_rank in whole)
    return Collected(merged, tuple(of_ranks), tuple(missing), tuple(problems))


_Visit = Mapping[int, Measurement]


def _visits(of_ranks: Iterable[Measurement]) -> tuple[list[_Visit], list[_Visit]]:
    """The visits that are whole, and those that lack a rank or samples."""
    visits: dict[tuple[str, str, str], dict[int, Measurement]] = defaultdict(dict)
    for measurement in of_ranks:
        rank, case = split_rank(measurement.case)
        visits[(measurement.run_id, measurement.taken_at, json.dumps(case, sort_keys=True))][rank] = measurement
    whole: list[_Visit] = []
    broken: list[_Visit] = []
    for by_rank in visits.values():
        samples = {len(measurement.device_s) for measurement in by_rank.values()}
        good = len(by_rank) == _taking_part(by_rank) and len(samples) == 1
        (whole if good else broken).append(by_rank)
    return whole, broken


def _any(by_rank: _Visit) -> Measurement:
    return next(iter(by_rank.values()))


def _taking_part(by_rank: _Visit) -> int:
    case = _any(by_rank).case
    return int(case["ranks"]) * int(case.get("concurrent", 1))


def _of_broken(broken: Iterable[_Visit], known: _Files) -> Iterator[str]:
    """One line for all visits of a run that lack the same ranks."""
    alike: dict[tuple[str, int, frozenset[int]], list[Measurement]] = defaultdict(list)
    for by_rank in broken:
        one = _any(by_rank)
        alike[(one.run_id, _taking_part(by_rank), frozenset(by_rank))].append(one)
    for (run_id, wanted, present), visits in alike.items():
        first = visits[0]
        what = f"first {first.case['collective']} of {first.case['bytes']} bytes at {first.taken_at}"
        yield f"run {run_id}, {len(visits)} visits left out: {_why(run_id, wanted, present, first, known)} ({what})"


def _why(run_id: str, wanted: int, present: frozenset[int], first: Measurement, known: _Files) -> str:
    if len(present) == wanted:
        return "the ranks have different numbers of samples"
    if str(wanted) == first.environment.identity.get("world_ranks"):
        lacking = list(islice((rank for rank in range(wanted) if rank not in present), _NAMED + 1))
        reasons = [known.why_missing(rank, run_id) for rank in lacking[:_NAMED]]
        return "; ".join([*reasons, *(["and so on"] if len(lacking) > _NAMED else [])])
    return f"{len(present)} of {wanted} ranks finished them"


def _of_environments(whole: Sequence[_Visit]) -> Iterator[str]:
    """What differs between the ranks of one visit, and between the visits of one run."""
    apart: dict[str, dict[str, str]] = defaultdict(dict)
    by_run: dict[str, list[Environment]] = defaultdict(list)
    for by_rank in whole:
        environments = [measurement.environment for measurement in by_rank.values()]
        apart[_any(by_rank).run_id] |= differences(environments)
        by_run[_any(by_rank).run_id].append(shared_environment(environments))
    for run_id, differing in apart.items():
        if differing:
            yield f"run {run_id}: its ranks differ in {_listed(differing)}; kept as an environment of its own"
    for run_id, environments in by_run.items():
        if between := differences(environments):
            yield f"run {run_id} holds several environments, kept apart; they differ in {_listed(between)}"


def differences(environments: Iterable[Environment]) -> dict[str, str]:
    """What of the identities is not the same in all, with every value.

    >>> differences([Environment({"nccl": "2.21", "os": "Linux"}, {}), Environment({"os": "Linux"}, {})])
    {'nccl': '2.21 | none'}
    """
    distinct = list({environment.validity_key: environment for environment in environments}.values())
    names = sorted({name for environment in distinct for name in environment.identity})
    values = {name: sorted({environment.identity.get(name, "none") for environment in distinct}) for name in names}
    return {name: " | ".join(found) for name, found in values.items() if len(found) > 1}


def _listed(differing: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({values})" for name, values in differing.items())


def shared_environment(environments: Sequence[Environment]) -> Environment:
    """The environment of what several ranks did together: that of the first, with every value where they differ."""
    return replace(environments[0], identity={**environments[0].identity, **differences(environments)})


def _slowest(by_rank: _Visit) -> Measurement:
    """One visit: a collective has ended when its last rank has."""
    ranks = sorted(by_rank)
    first = by_rank[ranks[0]]
    device_s = tuple(max(times) for times in zip(*(by_rank[rank].device_s for rank in ranks), strict=True))
    lines = flags(device_s, StoppingRule(target=0.05)) + stragglers({rank: by_rank[rank].median_s for rank in ranks})
    environment = shared_environment([by_rank[rank].environment for rank in ranks])
    case = split_rank(first.case)[1]
    return replace(first, case=case, device_s=device_s, host_s=(), flags=lines, environment=environment)


def stragglers(median_s: Mapping[int, float]) -> tuple[str, ...]:
    """Flags that name the ranks which took much longer than the median rank.

    >>> stragglers({0: 1.0, 1: 1.0, 2: 1.5})
    ('straggler: rank 2 x1.50',)
    """
    middle = statistics.median_low(median_s.values())
    slow = {rank: seconds / middle for rank, seconds in median_s.items() if seconds > STRAGGLER * middle}
    return tuple(f"straggler: rank {rank} x{ratio:.2f}" for rank, ratio in sorted(slow.items()))


def rank_medians(of_ranks: Sequence[Measurement]) -> dict[str, dict[int, float]]:
    """Median seconds of each rank, by `case_key` of the merged measurements: over all visits of the case."""
    samples: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for measurement in of_ranks:
        rank, case = split_rank(measurement.case)
        samples[replace(measurement, case=case).case_key][rank] += measurement.device_s
    return {
        key: {rank: statistics.median(own) for rank, own in sorted(ranks.items())} for key, ranks in samples.items()
    }
