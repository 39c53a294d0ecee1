"""What can be known of this machine at once, without loading torch or starting NVML: for commands that only predict."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from profiler.this_machine import ROOT, cpu_model, operating_system, usable_cores


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
    for name, version in (("torch", _torch()), ("driver", _driver(root))):
        if version:
            versions[name] = version
    return Installed(cpu_model(), usable_cores(), _gpus(root), versions)


def _torch() -> str | None:
    """The version that torch gives itself, as its own file says it: to look for its package's files takes longer."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    return found[1] if found else None


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
