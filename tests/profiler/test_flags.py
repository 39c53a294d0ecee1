"""Flags in words: each flag that is given has a meaning, and a document explains it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from profiler.flags import FLAGS, NOTED, flag_notes
from profiler.measurement import Environment, Measurement
from profiler.state_sampler import POWER_CAPS, SETTINGS, SLOWDOWNS, Reading, summarise
from profiler.stopping import flags
from profiler.visit import host_flags

ROOT = Path(__file__).resolve().parents[2]


def measured(*named: str) -> Measurement:
    return Measurement(
        *("conv", {}, "forward", "fp32", (1.0,), (1.0,), 1, "any", Environment({}, {}), "run-1"),
        *("2026-01-01T00:00:00+00:00", "converged", named),
    )


def test_flags_that_matter_to_a_whole_run_are_counted_with_their_meaning() -> None:
    notes = list(flag_notes([measured("throttled", "noisy"), measured("throttled"), measured("launch-bound")]))
    assert notes == [
        "1 of 3 measurements are flagged noisy: their median is known less well than was asked",
        "2 of 3 measurements are flagged throttled: heat, the power supply or a fault held the clock down, "
        "or their samples look as if something did",
    ]
    assert list(flag_notes([measured()])) == []


def test_every_flag_that_measuring_gives_has_a_meaning() -> None:
    fall, trend, two, spikes = (
        [1.0] * 20 + [1.5] * 20,
        [1.0 + i / 99 for i in range(40)],
        [1.0, 2.0],
        [1.0] * 40 + [9.0],
    )
    random.Random(7).shuffle(levels := two * 20)
    given = {flag for stream in (fall, trend, levels, spikes) for flag in flags(stream)}
    given |= {*host_flags("cpu", [1.0], [0.1]), *host_flags("cuda", [1.0], [2.0])}
    reasons = (*SLOWDOWNS, *POWER_CAPS, *SETTINGS)
    start = Reading(0.0, throttle_count=0.0, stolen_s=0.0)
    given |= set(summarise(start, [Reading(1.0, reasons=reasons, stolen_s=1.0)]).flags)
    assert given == set(FLAGS) - {"unwatched", "anchor", "in-situ"}
    assert set(NOTED) <= set(FLAGS)


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_the_documents_explain_every_flag(flag: str) -> None:
    assert f"| `{flag}` |" in (ROOT / "docs/measuring.md").read_text(encoding="utf-8")
