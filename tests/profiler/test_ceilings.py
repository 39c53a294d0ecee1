"""Answers follow from samples, questions count what they move, and promises are found by a device's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")

from oracle.errors import OutOfMemory  # noqa: E402
from profiler.backends.base import Kernel, Sample  # noqa: E402
from profiler.backends.cpu import open_cpu  # noqa: E402
from profiler.ceilings import launches, products, streams, updates  # noqa: E402
from profiler.ceilings.copies import copy_probes  # noqa: E402
from profiler.ceilings.data_sheets import find_data_sheet  # noqa: E402
from profiler.ceilings.probe import (  # noqa: E402
    FLOP,
    GROUPS,
    SECONDS,
    Ceiling,
    CeilingSettings,
    Probe,
    Unanswered,
    measure_ceilings,
)
from profiler.measurement import Measurement  # noqa: E402


@dataclass
class Slowing:
    """A kernel that needs a millisecond more with every sample, from 20 ms on, and a third of it on the host."""

    taken: int = 0
    calls: list[int] = field(default_factory=list)

    def sample(self, inner: int) -> Sample:
        self.taken += 1
        self.calls.append(inner)
        device_s = (19 + self.taken) * 1e-3
        return Sample(device_s, device_s / 3)


def ask(*probes: Probe, sustained_s: float = 0.0) -> tuple[list[Ceiling], list[Unanswered], list[Measurement]]:
    recorded: list[Measurement] = []
    settings = CeilingSettings("run", burst_s=0.0, sustained_s=sustained_s)
    answered, failed = measure_ceilings(probes, open_cpu(), recorded.append, settings, lambda *_: None)
    return answered, failed, recorded


def test_a_burst_is_the_fastest_sample_and_what_is_sustained_the_median_of_the_later_half() -> None:
    probe = Probe("compute", "made_up", FLOP, 1e9, Slowing)
    (ceiling,), _, recorded = ask(probe, sustained_s=1e-9)
    # Three calls warm up; six samples from 23 ms on are the burst, six from 29 ms on the rest: half of them 32 to 34.
    assert ceiling.burst == pytest.approx(1e9 / 23e-3)
    assert ceiling.sustained == pytest.approx(1e9 / 33e-3)
    assert [(item.micro, item.phase, len(item.device_s)) for item in recorded] == [
        ("ceiling", "burst", 6),
        ("ceiling", "sustained", 6),
    ]
    assert recorded[0].case == {"question": "made_up", "unit": FLOP, "amount": 1e9}


def test_a_time_is_a_median_and_may_be_the_hosts() -> None:
    device = Probe("launch", "device", SECONDS, 1.0, Slowing)
    host = Probe("launch", "host", SECONDS, 1.0, Slowing, host=True)
    (first, second), _, _ = ask(device, host, sustained_s=1.0)
    # 23 to 28 ms: 25.5; nothing that is a time is sustained.
    assert [first.burst, second.burst] == pytest.approx([25.5e-3, 8.5e-3])
    assert first.sustained is None


def test_a_question_that_does_not_fit_is_named_and_the_rest_goes_on() -> None:
    def too_large() -> Kernel:
        raise OutOfMemory("it does not fit")

    answered, failed, _ = ask(
        Probe("memory", "large", "B/s", 1.0, too_large), Probe("memory", "s", "B/s", 1.0, Slowing)
    )
    assert [item.probe.question for item in answered] == ["s"]
    assert [(item.probe.question, item.reason) for item in failed] == [("large", "it does not fit")]


@pytest.mark.parametrize(
    "make",
    [products.product_probes, streams.stream_probes, launches.launch_probes, copy_probes, updates.update_probes],
)
def test_every_question_to_a_cpu_can_be_prepared_and_sampled(make: Callable[..., list[Probe]]) -> None:
    device = open_cpu()
    probes = {probe.question: probe for probe in reversed(make(device))}  # the smallest of each name
    for probe in probes.values():
        assert probe.group in GROUPS
        assert probe.amount > 0
        if probe.group != "memory":  # arrays beyond the cache of a large server take seconds
            assert probe.prepare().sample(1).device_s > 0


def test_streams_and_products_count_what_they_do() -> None:
    device = open_cpu()
    items = streams.array_items(streams.cache_bytes(device))
    amounts = {probe.question: probe.amount for probe in streams.stream_probes(device)}
    assert amounts == {"read": 4.0 * items, "copy": 8.0 * items, "triad": 12.0 * items}
    # 2 n^3: a multiply and an add for each of n^3 pairs
    assert products.product_probes(device)[0].amount == 2 * 1024**3


@pytest.mark.parametrize(
    ("device", "question", "peak"),
    [
        ("NVIDIA H200", "read", 4.8e12),
        ("NVIDIA H200", "wgmma_fp8", 1978.9e12),
        ("NVIDIA H200", "fma_fp64", 33.5e12),
        ("NVIDIA H200", "mma_fp64", 66.9e12),
        ("Tesla V100-SXM2-16GB", "mma_fp16", 125e12),
        ("Tesla V100-SXM2-16GB", "gemm_bf16", None),
        ("NVIDIA A100-SXM4-80GB", "fma_bf16x2", 78e12),
        ("NVIDIA A100-SXM4-80GB", "raw_read_l2", None),
        ("NVIDIA A100-SXM4-80GB", "launch", None),
    ],
)
def test_a_data_sheet_answers_with_the_peak_of_the_unit_that_was_asked(
    device: str, question: str, peak: float | None
) -> None:
    sheet = find_data_sheet(device)
    assert sheet is not None
    assert sheet.promise(question) == peak
    assert sheet.source.startswith("NVIDIA")


def test_peaks_of_data_sheets_agree_with_the_shared_table_of_devices(shared: object) -> None:
    import csv
    from pathlib import Path

    assert isinstance(shared, Path)
    names = {"fp64": "fp64", "fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp8": "fp8"}
    compared = 0
    with (shared / "data" / "devices.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sheet = find_data_sheet(row["name"])
            if sheet is None:
                continue
            for column, name in names.items():
                given, known = sheet.peaks.get(column), row[f"peak_flop_per_s_{name}"]
                if given and known:
                    assert given == pytest.approx(float(known), rel=0.02), (row["name"], column)
                    compared += 1
            assert sheet.peaks["memory"] == pytest.approx(float(row["memory_bytes_per_s"]), rel=0.02)
    assert compared > 40
