"""The flags of measurements, in words.

A flagged measurement is kept: what it says holds under the condition that the flag names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from profiler.measurement import Measurement

FLAGS: Mapping[str, str] = {
    "noisy": "their median is known less well than was asked",
    "drifting": "their later samples differ from the earlier ones",
    "preempted": "something else had the core for a part of the time",
    "launch-bound": "the host took longer to start the kernels than the device to run them",
    "bimodal": "their samples lie on two levels and change between them at random",
    "spiky": "a few of their samples lie far above the others",
    "anchor": "taken again and again, to see how fast the machine is at the moment",
    "throttled": "heat, the power supply or a fault held the clock down, or their samples look as if something did",
    "power-capped": "the power limit held the clock down",
    "clocks-set": "a setting held the clock down",
    "unwatched": "the driver does not say whether something held the clock down",
    "in-situ": "taken inside real training steps",
    "stolen": "the hypervisor gave a part of the time to other machines",
}
"""Flag -> what is so of the measurements that carry it."""


NOTED = ("noisy", "bimodal", "throttled", "power-capped", "clocks-set", "unwatched", "preempted", "stolen")
"""Flags that a reader of a whole run has to know of; the others matter to single kernels."""


def flag_notes(measurements: Sequence[Measurement]) -> Iterator[str]:
    """How many measurements carry each flag that a reader has to know of."""
    for flag in NOTED:
        count = sum(flag in measurement.flags for measurement in measurements)
        if count:
            yield f"{count} of {len(measurements)} measurements are flagged {meaning(flag)}"


def meaning(flag: str) -> str:
    """A flag with what it means, where that is known.

    >>> meaning("power-capped"), meaning("imported")
    ('power-capped: the power limit held the clock down', 'imported')
    """
    return f"{flag}: {FLAGS[flag]}" if flag in FLAGS else flag
