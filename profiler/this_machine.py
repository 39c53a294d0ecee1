"""The machine's own names, and what this process may use of it: read at once, with nothing loaded for it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

ROOT = Path("/")
"""Of the file system in which a machine describes itself."""


def cpu_model() -> str:
    """The CPU's own name, such as `AMD EPYC 9654 96-Core Processor`."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine() or "unknown CPU"


def operating_system() -> str:
    """The system's name and version."""
    return f"{platform.system()} {platform.release()}"


def own_cores() -> frozenset[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(own_cores())
