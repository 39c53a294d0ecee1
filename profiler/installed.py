"""What can be known of this machine at once, without loading torch or starting NVML: for commands that only predict."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from profiler.environment import cpu_model, operating_system, usable_cores
from profiler.machine_state import ROOT


@dataclass(frozen=True)
class Installed:
    """A machine at a glance.

    Args:
        cpu, cores: its CPU's own name, and how many cores this process may use.
        gpus: the own names of its NVIDIA devices.
        versions: of torch, of the driver and of the system, under the names that an environment's identity gives them;
            what is not installed has none.
    """

    cpu: str
    cores: int
    gpus: tuple[str, ...]
    versions: dict[str, str]


def installed(root: Path = ROOT) -> Installed:
    """Look at this machine.

    Args:
        root: of the file system in which the driver describes itself.
    """
    versions = {"os": operating_system()}
    with suppress(metadata.PackageNotFoundError):
        versions["torch"] = metadata.version("torch")
    driver = _driver(root)
    if driver:
        versions["driver"] = driver
    return Installed(cpu_model(), usable_cores(), _gpus(root), versions)


def _driver(root: Path) -> str | None:
    """The version of NVIDIA's driver, as its kernel module says it."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return found[1] if found else None


def _gpus(root: Path) -> tuple[str, ...]:
    names = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        try:
            found = re.search(r"^Model:\s*(.+?)\s*$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            names.append(found[1])
    return tuple(names)
