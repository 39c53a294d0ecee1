"""What makes a number reproducible, read from the machine: its identity and its state.

Identity is what must match for a constant to be reused; two runs with one identity have one validity key. State is how
it was at the time. Whatever cannot be read becomes a note, never an error. Of host names only a hash is kept.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from oracle.errors import BadInput, StepgaugeError
from oracle.units import parse_bytes
from profiler.measurement import Environment
from profiler.nvml import DeviceState, device_state, driver_version

VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_WAIT_POLICY",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "LD_PRELOAD",
    "MALLOC_CONF",
)
"""Environment variables that change how fast kernels run on a CPU; no other is ever stored."""

CUDA_VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_CUDNN_V8_API_DISABLED",
)
"""The same for CUDA devices."""

CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Where Linux shows a container its limits."""

Probe = Callable[[], str]
READ_ERRORS = (OSError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError, StepgaugeError)
"""What a probe may fail with: an absent file, an unknown format, a library without the call or (torch: an assertion)
without the device."""


def read_environment(device: str = "cpu", index: int = 0) -> Environment:
    """Read the environment of measurements on one device.

    Args:
        device: the kind, `cpu` or `cuda`.
        index: which of the visible CUDA devices.
    """
    torch = import_torch()
    identity: dict[str, Probe] = dict(_MACHINE_IDENTITY)
    state: dict[str, Probe] = dict(_MACHINE_STATE)
    notes: list[str] = []
    variables: tuple[str, ...] = VARIABLES
    if torch is None:
        notes.append("torch is not installed")
    else:
        identity |= _torch_identity(torch)
        if device == "cuda":
            identity |= _cuda_identity(torch, index)
            state |= _cuda_state(torch, index)
            variables += CUDA_VARIABLES
    values = _read(identity, notes) | {name: os.environ[name] for name in variables if name in os.environ}
    return Environment(values, _read(state, notes), tuple(notes))


def _read(probes: Mapping[str, Probe], notes: list[str]) -> dict[str, str]:
    """What the probes say; one that fails adds a note."""
    values = {}
    for name, probe in probes.items():
        try:
            values[name] = probe()
        except READ_ERRORS as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error).partition("\n")[0]
            notes.append(f"{name} could not be read: {reason or type(error).__name__}")
    return values


def import_torch() -> ModuleType | None:
    """torch, or None where it is not installed or cannot be loaded."""
    try:
        import torch
    except (ImportError, OSError):  # a shared library that is missing raises OSError
        return None
    return torch


def cpu_model() -> str:
    """The CPU's own name, such as `AMD EPYC 9654 96-Core Processor`."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine() or "unknown CPU"


def last_level_cache_bytes() -> float | None:
    """Size of the largest cache of the first core; None where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            sizes.append(parse_bytes(f"{path.read_text().strip()}iB"))  # written as 32768K
        except (OSError, BadInput):
            continue
    return max(sizes, default=None)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_quota() -> float | None:
    """Cores' worth of time that the container may use; None without a limit.

    Raises:
        OSError, ValueError: a limit that cannot be read.
    """
    limit = _control_file("cpu.max")
    if limit is not None:
        quota, period = limit.split()
        return None if quota == "max" else int(quota) / int(period)
    quota_us = _control_file("cpu/cpu.cfs_quota_us")
    period_us = _control_file("cpu/cpu.cfs_period_us")
    if quota_us is None or period_us is None or int(quota_us) < 0:
        return None
    return int(quota_us) / int(period_us)


def available_memory_bytes() -> float:
    """Memory that can be taken without swapping, within the limit of the container; infinite where unknown."""
    available = [float("inf")]
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if found:
            available.append(int(found[1]) * 1024.0)
        limit, used = _control_file("memory.max"), _control_file("memory.current")
        if limit is not None and used is not None and limit != "max":
            available.append(float(limit) - float(used))
    except (OSError, ValueError):
        pass  # no limit is known then
    return max(0.0, min(available))


def _control_file(name: str) -> str | None:
    """A control file of this container's own group; None where there is no such file."""
    path = CONTROL_GROUP / name
    return path.read_text().strip() if path.exists() else None


def frequency_governor() -> str:
    """How the first core's clock is governed.

    Raises:
        OSError: the kernel does not say.
    """
    return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()


def _clock_hz() -> str:
    found = re.search(r"^cpu MHz\s*:\s*([0-9.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if not found:
        raise ValueError("the kernel does not say")
    return f"{float(found[1]) * 1e6:.0f}"


def _temperature_c() -> str:
    zone = Path("/sys/class/thermal/thermal_zone0/temp")
    return f"{int(zone.read_text()) / 1000:.1f}"


def _total_memory_bytes() -> str:
    return str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _quota_text() -> str:
    quota = core_quota()
    return "none" if quota is None else f"{quota:g}"


def _host_hash() -> str:
    return hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()


_MACHINE_IDENTITY: Mapping[str, Probe] = {
    "cpu": cpu_model,
    "cores": lambda: str(usable_cores()),
    "core_quota": _quota_text,
    "os": lambda: f"{platform.system()} {platform.release()}",
    "python": platform.python_version,
}
_MACHINE_STATE: Mapping[str, Probe] = {
    "load_average": lambda: " ".join(f"{load:.2f}" for load in os.getloadavg()),
    "available_memory_bytes": lambda: f"{available_memory_bytes():.0f}",
    "total_memory_bytes": _total_memory_bytes,
    "governor": frequency_governor,
    "clock_hz": _clock_hz,
    "temperature_c": _temperature_c,
    "host": _host_hash,
}


def _torch_identity(torch: ModuleType) -> dict[str, Probe]:
    build = torch.__config__.show()

    def version_of(pattern: str) -> Probe:
        def probe() -> str:
            found = re.search(pattern, build)
            return found[1] if found else "none"

        return probe

    return {
        "torch": lambda: str(torch.__version__),
        "threads": lambda: str(torch.get_num_threads()),
        "cpu_capability": lambda: str(torch.backends.cpu.get_cpu_capability()),
        "onednn": version_of(r"MKL-DNN v([\w.]+)"),
        "mkl": version_of(r"Math Kernel Library Version ([\w.-]+)"),
        "onednn_enabled": lambda: str(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "deterministic": lambda: str(torch.are_deterministic_algorithms_enabled()),
    }


def _cuda_identity(torch: ModuleType, index: int) -> dict[str, Probe]:
    def properties_of(name: str) -> Probe:
        return lambda: str(getattr(torch.cuda.get_device_properties(index), name))

    return {
        "gpu": properties_of("name"),
        "compute_capability": lambda: ".".join(map(str, torch.cuda.get_device_capability(index))),
        "multiprocessors": properties_of("multi_processor_count"),
        "gpu_memory_bytes": properties_of("total_memory"),
        "l2_bytes": properties_of("L2_cache_size"),
        "driver": driver_version,
        "cuda": lambda: str(torch.version.cuda),
        "cudnn": lambda: str(torch.backends.cudnn.version()),
        "cublas": _cublas_version,
        "cudnn_enabled": lambda: str(torch.backends.cudnn.enabled),
        "cudnn_benchmark": lambda: str(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": lambda: str(torch.backends.cudnn.deterministic),
        "reduced_fp16_sums": lambda: str(torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "reduced_bf16_sums": lambda: str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
    }


def _cublas_version() -> str:
    from importlib import metadata

    for package in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    raise LookupError("no cuBLAS package; a system library is in use")


def _cuda_state(torch: ModuleType, index: int) -> dict[str, Probe]:
    @cache
    def state() -> DeviceState:
        return device_state(str(torch.cuda.get_device_properties(index).uuid))

    def of(name: str) -> Probe:
        def probe() -> str:
            value = getattr(state(), name)
            if value is None:
                raise LookupError("the driver does not say")
            return str(value)

        return probe

    names = ("power_limit_w", "default_power_limit_w", "mig", "gpu_temperature_c", "sm_clock_hz", "power_w")
    return {name: of(name) for name in names}
