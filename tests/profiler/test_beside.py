"""Collectives spaced as in training, and beside kernels: in one process where that is enough, else in two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from profiler.collectives.beside import Beside
from profiler.collectives.clock import mark
from profiler.collectives.collected import collect
from profiler.collectives.kernels import Kernel, open_kernel
from profiler.collectives.measure import measure_collectives
from profiler.collectives.records import rank_files
from profiler.collectives.sampling import MAX_SPACED, Agreement, Timed, computing, pause
from profiler.collectives.settings import KERNELS, SPACINGS, CollectiveCase, CollectiveSettings, cases
from profiler.collectives.sides import COLLECTIVE_ALONE, COLLECTIVE_BESIDE, KERNEL_ALONE, KERNEL_BESIDE
from profiler.measurement import Measurement
from profiler.micro.collective import Member
from profiler.stopping import StoppingRule

CPU = torch.device("cpu")
CASE = CollectiveCase("all_reduce", 1 << 12, "fp32", True)


@pytest.fixture
def alone() -> Iterator[tuple[Member, Agreement]]:
    """This process as the only rank of a group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield Member(dist.group.WORLD, (0,), 0, CPU), Agreement(dist.group.WORLD)
    dist.destroy_process_group()


def test_spaced_calls_are_timed_one_by_one_without_what_lies_between(alone: tuple[Member, Agreement]) -> None:
    member, agreement = alone
    passed: list[float] = []
    gap = pause(0.02, CPU)
    timed = Timed(CASE, member, agreement, gap)
    assert gap.text == "pause 20 ms"
    assert timed.inner <= MAX_SPACED
    begun = mark(CPU)
    sample = timed.sample(3)
    passed.append(begun.until(mark(CPU)))
    assert len(timed.laps) == 3
    # Three pauses of 20 ms went by, and none of them is in the time of the calls.
    assert passed[0] >= 0.06
    assert 0 < 3 * sample.device_s <= passed[0] - 0.06


def test_back_to_back_calls_are_one_lap(alone: tuple[Member, Agreement]) -> None:
    timed = Timed(CASE, *alone)
    timed.sample(4)
    assert len(timed.laps) == 1


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_the_same_again_and_say_their_size(name: str) -> None:
    kernel = open_kernel(name, CPU)
    first = kernel.run().clone()
    assert torch.equal(kernel.run(), first)
    assert kernel.text.startswith(f"{name} ")
    assert any(char.isdigit() for char in kernel.text)
    assert computing(kernel).text == kernel.text


def test_four_sides_are_timed_after_both_results_were_right(alone: tuple[Member, Agreement]) -> None:
    beside = Beside(CASE, *alone, open_kernel("copy", CPU))
    assert beside.check() is None
    assert beside.sides == (COLLECTIVE_ALONE, KERNEL_ALONE, KERNEL_BESIDE, COLLECTIVE_BESIDE)
    samples = beside.samples()
    assert len(samples) == 4
    assert all(sample.device_s > 0 for sample in samples)


def test_a_kernel_that_is_wrong_in_company_is_not_measured(alone: tuple[Member, Agreement]) -> None:
    calls = iter(range(10**9))
    kernel = Kernel("count", lambda: torch.full((4,), float(next(calls))))
    assert Beside(CASE, *alone, kernel).check() == "count is wrong beside a collective"


def _settings(folder: Path, **fields: object) -> CollectiveSettings:
    values: dict[str, object] = {
        "folder": folder,
        "run_id": "test",
        "budget_s": 120.0,
        "collectives": ("all_reduce",),
        "smallest_bytes": 64,
        "largest_bytes": 4096,
        "size_factor": 64.0,
        "rounds": 1,
        "rule": StoppingRule(target=0.5, max_samples=6, max_s=0.05),
        "spacings": SPACINGS,
        "beside": ("copy",),
        "beside_bytes": 4096,
    }
    return CollectiveSettings(**{**values, **fields})  # type: ignore[arg-type]


def test_two_ranks_measure_every_spacing_and_both_sides_of_an_overlap(tmp_path: Path) -> None:
    found: list[Measurement] = []
    measure_collectives(_settings(tmp_path), found.append)
    spaced = [m.case.get("spacing", "") for m in found if m.micro == "collective"]
    # Two sizes in three spacings; only the larger one beside a kernel.
    assert sorted(spaced) == sorted(2 * ["", "matmul 256", "pause 1 ms"])
    overlap = [m for m in found if m.micro == "overlap"]
    assert {m.case["timed"] for m in overlap} == set(Beside.sides)
    assert len({m.taken_at for m in overlap}) == 1
    assert {m.case["bytes"] for m in overlap} == {4096}
    assert len({len(m.device_s) for m in overlap}) == 1
    before = len(collect(rank_files(tmp_path)).of_ranks)
    measure_collectives(_settings(tmp_path, resume=True), lambda measurement: None)
    assert len(collect(rank_files(tmp_path)).of_ranks) == before


def test_four_ranks_measure_two_pairs_apart_and_at_once(tmp_path: Path) -> None:
    found: list[Measurement] = []
    plain: dict[str, object] = {"spacings": SPACINGS[:1], "beside": (), "largest_bytes": 64}
    measure_collectives(_settings(tmp_path, ranks=4, groups=("first:2",), concurrent=True, **plain), found.append)
    assert sorted(m.case.get("concurrent", 1) for m in found) == [1, 2]
    # Every rank of both groups has its own time.
    assert len(collect(rank_files(tmp_path)).of_ranks) == 2 + 4


def test_kernels_run_beside_the_form_that_training_uses_and_from_buckets_up() -> None:
    settings = _settings(Path(), collectives=("all_gather",), spacings=SPACINGS[:1], beside=KERNELS)
    found = [case for case in cases(settings, "all", 2, False) if case.beside]
    assert {(case.bytes, case.in_place, case.beside) for case in found} == {(4096, True, name) for name in KERNELS}
    assert not [case for case in cases(settings, "all", 2, True) if case.beside]
    assert "beside copy" in found[-1].text
