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
from pathlib import Path
from types import ModuleType

from oracle.errors import BadInput, StepgaugeError
from oracle.units import parse_bytes
from profiler.machine_state import (
    available_memory_bytes,
    core_quota,
    frequency_governor,
    huge_pages,
    is_virtual,
    numa_nodes,
    physical_cores,
    turbo,
)
from profiler.measurement import Environment
from profiler.nvml import key_of
from profiler.nvml_state import DeviceState, device_state
from profiler.this_machine import cpu_model, operating_system, own_cores, usable_cores

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
    notes: list[str] = []
    variables: tuple[str, ...] = VARIABLES
    gpu: tuple[dict[str, str], dict[str, str]] = ({}, {})
    if torch is None:
        notes.append("torch is not installed")
    else:
        identity |= _torch_identity(torch)
        if device == "cuda":
            identity |= _cuda_identity(torch, index)
            variables += CUDA_VARIABLES
            gpu = _nvml(torch, index, notes)
    set_here = {name: os.environ[name] for name in variables if name in os.environ}
    values = _read(identity, notes) | gpu[0] | set_here
    return Environment(values, _read(_MACHINE_STATE, notes) | gpu[1], tuple(notes))


def _nvml(torch: ModuleType, index: int, notes: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What NVML says, as identity and state; what it does not say adds a note."""
    try:
        state = device_state(key_of(torch.cuda.get_device_properties(index)))
    except READ_ERRORS as error:
        notes.append(f"NVML could not be read: {_reason(error)}")
        return {}, {}
    notes.extend(state.unread)
    return nvml_values(state)


def _read(probes: Mapping[str, Probe], notes: list[str]) -> dict[str, str]:
    """What the probes say; one that fails adds a note."""
    values = {}
    for name, probe in probes.items():
        try:
            values[name] = probe()
        except READ_ERRORS as error:
            notes.append(f"{name} could not be read: {_reason(error)}")
    return values


def _reason(error: Exception) -> str:
    reason = (isinstance(error, OSError) and error.strerror) or str(error).partition("\n")[0]
    return reason or type(error).__name__


def import_torch() -> ModuleType | None:
    """torch, or None where it is not installed or cannot be loaded."""
    try:
        import torch
    except (ImportError, OSError):  # a shared library that is missing raises OSError
        return None
    return torch


def last_level_cache_bytes() -> float | None:
    """Size of the largest cache of the first core; None where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            sizes.append(parse_bytes(f"{path.read_text().strip()}iB"))  # written as 32768K
        except (OSError, BadInput):
            continue
    return max(sizes, default=None)


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
    "physical_cores": lambda: str(physical_cores(own_cores())),
    "numa_nodes": lambda: str(numa_nodes(own_cores())),
    "core_quota": _quota_text,
    "turbo": turbo,
    "huge_pages": huge_pages,
    "virtual": lambda: str(is_virtual()),
    "os": operating_system,
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


def nvml_values(state: DeviceState) -> tuple[dict[str, str], dict[str, str]]:
    """What NVML says of a device, as identity and as state; what it does not say is in neither."""
    identity = {
        "driver": state.driver,
        "cuda_driver": state.cuda_driver,
        "mig": state.mig,
        "ecc": state.ecc,
        "virtualization": state.virtualization,
        "power_limit_w": state.power_limit_w,
        "max_sm_clock_hz": state.max_sm_clock_hz,
        "max_memory_clock_hz": state.max_memory_clock_hz,
        "application_sm_clock_hz": state.application_sm_clock_hz,
        "max_pcie": _pcie(state.max_pcie_generation, state.max_pcie_width),
        "nvlinks": None if state.nvlinks is None else f"{sum(state.nvlinks)} of {len(state.nvlinks)}",
    }
    now = {
        "default_power_limit_w": state.default_power_limit_w,
        "persistence": state.persistence,
        "compute_mode": state.compute_mode,
        "pcie": _pcie(state.pcie_generation, state.pcie_width),
        "gpu_temperature_c": state.gpu_temperature_c,
        "sm_clock_hz": state.sm_clock_hz,
        "memory_clock_hz": state.memory_clock_hz,
        "power_w": state.power_w,
        "clock_reasons": None if state.reasons is None else ", ".join(state.reasons) or "none",
        "gpu_processes": None if state.processes is None else len(state.processes),
        "uncorrected_errors": state.uncorrected_errors,
    }
    return _known(identity), _known(now)


def _known(values: Mapping[str, object]) -> dict[str, str]:
    return {
        name: f"{value:.10g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _pcie(generation: float | None, width: float | None) -> str | None:
    return None if generation is None or width is None else f"generation {generation:g}, {width:g} lanes"
