"""Parallel units and last-level cache of a device: from what its environment says, else from its name. NumPy only.

A GPU that was measured here says both itself. A CPU has as many units as threads; its cache is not recorded, and a
usual size stands in (a constant for all of its kernels, so its own fit does not see it). A table that was imported
names its device only, hence the list below: streaming multiprocessors and L2 in MiB from NVIDIA's and AMD's data
sheets and architecture white papers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from calibration.quantities import Processor

_MIB = 2**20
_CPU_CACHE_BYTES = 32.0 * _MIB
_UNKNOWN = Processor(80, 6.0 * _MIB)
"""The V100's, in the middle of what there is."""

KNOWN: Mapping[str, tuple[int, float]] = {
    "k20m": (13, 1.25),
    "k20xm": (14, 1.5),
    "k40m": (15, 1.5),
    "k80": (13, 1.5),
    "m40": (24, 3),
    "titan x": (24, 3),
    "titanx": (24, 3),
    "titan x pascal": (28, 3),
    "titanx pascal": (28, 3),
    "titan xp": (30, 3),
    "titanxp": (30, 3),
    "1080 ti": (28, 2.75),
    "1080ti": (28, 2.75),
    "p4": (20, 2),
    "p40": (30, 3),
    "p100": (56, 4),
    "v100": (80, 6),
    "t4": (40, 4),
    "rtx 2080": (46, 4),
    "rtx 2080 ti": (68, 5.5),
    "titan rtx": (72, 6),
    "rtx 3090": (82, 6),
    "rtx 4090": (128, 72),
    "rtx 5090": (170, 96),
    "a10": (72, 6),
    "a10g": (80, 6),
    "a30": (56, 24),
    "a40": (84, 6),
    "a6000": (84, 6),
    "a100": (108, 40),
    "l4": (58, 48),
    "l40s": (142, 96),
    "h100": (132, 50),
    "h100 pcie": (114, 50),
    "h200": (132, 50),
    "gh200": (132, 50),
    "b200": (148, 126.5),
    "mi100": (120, 8),
    "mi210": (104, 8),
    "mi250x": (220, 16),
    "mi300x": (304, 32),
}
"""Words of a device's name -> units and MiB of cache; the entry with the most words counts."""


def processor_of(device: str, identity: Mapping[str, str]) -> Processor:
    """The processor of a device.

    Args:
        device: its name.
        identity: of the environment of its measurements.

    >>> processor_of("NVIDIA A100-SXM4-80GB", {})
    Processor(units=108, cache_bytes=41943040)
    >>> processor_of("some CPU", {"threads": "8"}).units
    8
    """
    units, cache = _number(identity, "multiprocessors"), _number(identity, "l2_bytes")
    if units and cache:
        return Processor(units, float(cache))
    threads = _number(identity, "threads") or _number(identity, "cores")
    if threads:
        return Processor(threads, _CPU_CACHE_BYTES)
    words = set(re.findall(r"[a-z0-9]+", device.lower()))
    fitting = [name for name in KNOWN if set(name.split()) <= words]
    if not fitting:
        return _UNKNOWN
    found = KNOWN[max(fitting, key=lambda name: len(name.split()))]
    return Processor(found[0], found[1] * _MIB)


def is_cpu(identity: Mapping[str, str]) -> bool:
    """Whether an environment is that of kernels on a CPU; one that does not say it is not."""
    return "threads" in identity and "multiprocessors" not in identity


def kind_of(identity: Mapping[str, str]) -> str:
    """What a device is: `cpu`, `gpu`, or `simulated`. A table of kernels that names its device only is a GPU's.

    >>> kind_of({"threads": "8"}), kind_of({"device": "V100"}), kind_of({"device": "x", "law": "additive"})
    ('cpu', 'gpu', 'simulated')
    """
    if "law" in identity:
        return "simulated"
    return "cpu" if is_cpu(identity) else "gpu"


def _number(identity: Mapping[str, str], key: str) -> int:
    text = identity.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0
