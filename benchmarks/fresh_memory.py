"""What fresh pages cost a training step on a CPU, and how much of it the kernels' own times already hold.

    python benchmarks/fresh_memory.py [--model resnet50 --batch 8]

A page that a process touches for the first time is mapped and cleared by the system. An isolated kernel reuses much of
its memory, a step asks for more of it anew. Printed are: what a fresh byte costs (touching new memory less touching it
again), the page faults of a step, those of its kernels measured one by one (calls counted as often as a step makes
them), and the time of the difference as a share of the step. All times are processor time of this process, on one
thread, so that a busy machine does not change them much.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import sys
import time
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from calibration.design import model_calls
from oracle.execution import Execution
from oracle.loading import load_model
from oracle.model import ModelGraph
from oracle.units import format_seconds
from profiler.backends.cpu import Cpu, open_cpu
from profiler.backends.torch_device import MAX_SETS
from profiler.case import Case
from profiler.steps.serial import TrainingStep
from profiler.steps.subject import of_graph

SIZES = tuple(2**power for power in range(20, 29, 2))
CALLS = 4


def faults() -> int:
    """Pages that this process has had mapped so far without reading a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def fresh_s_per_byte(size_bytes: int, repeats: int = 15) -> tuple[float, float]:
    """Seconds per byte of writing to new memory less writing to it again, and bytes per fault."""
    costs, pages = [], []
    for _ in range(repeats):
        with mmap.mmap(-1, size_bytes) as region:
            memory = np.frombuffer(region, dtype=np.uint8)
            before, first_s = faults(), -time.process_time()
            memory[:] = 1
            first_s += time.process_time()
            pages.append(faults() - before)
            again_s = -time.process_time()
            memory[:] = 2
            again_s += time.process_time()
            costs.append((first_s - again_s) / size_bytes)
            del memory
    return median(costs), size_bytes / max(median(pages), 1)


def step_faults(graph: ModelGraph, samples: int, device: Cpu, steps: int = 6) -> tuple[float, float]:
    """Faults and processor seconds of one step, once its memory has settled."""
    step = TrainingStep(of_graph(graph, samples)(Execution(), device.torch_device), Execution(), device)
    for _ in range(6):
        step.run(device.stopwatch())
    counts, seconds = [], []
    for _ in range(steps):
        before, taken_s = faults(), -time.process_time()
        step.run(device.stopwatch())
        seconds.append(taken_s + time.process_time())
        counts.append(faults() - before)
    return median(counts), median(seconds)


def kernel_faults(graph: ModelGraph, samples: int, device: Cpu) -> tuple[float, float]:
    """Faults and processor seconds of all kernels of a step, each measured alone."""
    total_faults, total_s = 0.0, 0.0
    for call, count in model_calls(graph, samples).items():
        with device.open(Case(call, Execution())) as kernel:
            for _ in range(MAX_SETS):
                kernel.sample(1)  # every set of inputs and every kept result once
            before, taken_s = faults(), -time.process_time()
            for _ in range(CALLS):
                kernel.sample(1)
            total_s += count * (taken_s + time.process_time()) / CALLS
            total_faults += count * (faults() - before) / CALLS
    return total_faults, total_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    costs = {size: fresh_s_per_byte(size) for size in SIZES}
    for size, (per_byte_s, per_fault) in costs.items():
        print(
            f"{size / 2**20:5.0f} MiB: {per_byte_s * 1e12:6.1f} ps per fresh byte, "
            f"{per_fault / 1024:.1f} KiB and {format_seconds(per_byte_s * per_fault)} per fault"
        )
    per_fault_s = median(per_byte_s * per_fault for per_byte_s, per_fault in costs.values())
    device, graph = open_cpu(), load_model(options.model)
    in_step, step_s = step_faults(graph, options.batch, device)
    in_kernels, kernels_s = kernel_faults(graph, options.batch, device)
    missing_s = (in_step - in_kernels) * per_fault_s
    print(f"{options.model}, {options.batch} samples, one thread:")
    print(f"  step:    {in_step:8.0f} faults, {format_seconds(step_s)} of the processor")
    print(
        f"  kernels: {in_kernels:8.0f} faults, {format_seconds(kernels_s)}, {kernels_s / step_s - 1:+.1%} of the step"
    )
    print(f"  the difference in faults is {format_seconds(missing_s)}, {missing_s / step_s:+.1%} of the step")


if __name__ == "__main__":
    main()
