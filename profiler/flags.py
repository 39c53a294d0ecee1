"""The flags of measurements, in words.

A flagged measurement is kept: what it says holds under the condition that the flag names.
"""

from __future__ import annotations

from collections.abc import Mapping

FLAGS: Mapping[str, str] = {
    "noisy": "their median is known less well than was asked",
    "drifting": "their later samples differ from the earlier ones",
    "preempted": "something else had the core for a part of the time",
    "launch-bound": "the host took longer to start the kernels than the device to run them",
    "throttled": "heat, the power supply or a fault held the clock down",
    "power-capped": "the power limit held the clock down",
    "clocks-set": "a setting held the clock down",
    "unwatched": "the driver does not say whether something held the clock down",
    "stolen": "the hypervisor gave a part of the time to other machines",
}
"""Flag -> what is so of the measurements that carry it."""


def meaning(flag: str) -> str:
    """A flag with what it means, where that is known.

    >>> meaning("power-capped"), meaning("imported")
    ('power-capped: the power limit held the clock down', 'imported')
    """
    return f"{flag}: {FLAGS[flag]}" if flag in FLAGS else flag
