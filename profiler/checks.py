"""What is right and wrong with a machine before it is measured: each finding with a remedy.

Nothing here fails: an optional library that is absent or a file that the system hides becomes a finding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata, util

from profiler.cpu_checks import cpu_findings
from profiler.cuda_checks import cuda_findings, rank_findings
from profiler.environment import import_torch
from profiler.findings import Finding, Level
from profiler.this_machine import cpu_model
from profiler.versions import version_of

MIN_TORCH = (2, 6)

OPTIONAL = {
    "sklearn": ("scikit-learn", "kernel regression", "pip install 'stepgauge[measure]'"),
    "scipy": ("scipy", "fitting a calibration", "pip install 'stepgauge[measure]'"),
    "pynvml": ("nvidia-ml-py", "clocks, power and neighbours of NVIDIA devices", "pip install 'stepgauge[measure]'"),
    "cupy": ("cupy", "raw CUDA microbenchmarks", "pip install 'stepgauge[cuda12]' or 'stepgauge[cuda13]'"),
}
"""Module -> its package, what it is for, how to get it."""

NEEDED = ("sklearn", "scipy")
"""Those without which nothing can be calibrated."""


def check_machine(device: str = "cpu") -> tuple[Finding, ...]:
    """Look at everything that measuring on a kind of device needs; takes a fraction of a second.

    Args:
        device: `cpu`, `cuda` or `simulated`. CUDA devices are named in any case; only where they are asked for is
            their absence a failure, and what is wrong with them worth a finding.
    """
    return (*_torch_findings(device), *conditions(device), *_optional_libraries())


def conditions(device: str) -> tuple[Finding, ...]:
    """Look at the conditions under which something would be measured now: the device, its neighbours, the host.

    Args:
        device: as for `check_machine`. To be called before the device is used, which would make it look busy.
    """
    torch = import_torch()
    threads = torch.get_num_threads() if torch else None
    visible = torch.cuda.device_count() if torch and device == "cuda" else 0
    return (*cuda_findings(device), *rank_findings(os.environ, device, visible), *cpu_findings(threads))


def _torch_findings(device: str) -> Iterator[Finding]:
    missing: Level = "ok" if device == "simulated" else "fail"
    install = "pip install 'stepgauge[measure]'"
    if util.find_spec("torch") is None:
        yield Finding(missing, "torch", "not installed: nothing can be measured, predicting works", install)
        return
    torch = import_torch()
    if torch is None:
        yield Finding(missing, "torch", "installed, but its import fails", "python -c 'import torch' says why")
        return
    wanted = ".".join(map(str, MIN_TORCH))
    if version_of(torch.__version__) < MIN_TORCH:
        yield Finding("warn", "torch", f"{torch.__version__} is older than {wanted}", f"pip install 'torch>={wanted}'")
    else:
        yield Finding("ok", "torch", f"{torch.__version__} on {cpu_model()}")


def _optional_libraries() -> Iterator[Finding]:
    for module, (package, purpose, remedy) in OPTIONAL.items():
        if util.find_spec(module) is None:
            yield Finding("fail" if module in NEEDED else "ok", package, f"not installed: no {purpose}", remedy)
        else:
            yield Finding("ok", package, _installed_version(package))


def _installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # CuPy's wheels carry the version of CUDA in their names
        return "installed"
