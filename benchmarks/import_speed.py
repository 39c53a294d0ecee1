"""How long importing 100,000 rows takes, and how much memory: `python benchmarks/import_speed.py [--rows N]`.

Synthetic rows in the layout of nccl-tests (50 per run, two results each) and of the tidy tables. Each case runs in a
process of its own, so that its peak of memory is its own: once handing every result over (`stream_file`), once
keeping all of them (`import_file`).
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from profiler.importers.files import import_file, stream_file

RANKS = 8
HEAD = "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong"


def nccl_tests(rows: int, rng: random.Random) -> Iterator[str]:
    """Runs of 50 rows with head and end; times of about 5 us + size / 470 GB/s."""
    for start in range(0, rows, 50):
        yield "# Collective test starting: all_reduce_perf"
        yield from (f"#  Rank {r} Group 0 Pid 9 on node device {r} [0000:0{r}:00] NVIDIA H100" for r in range(RANKS))
        yield HEAD
        for k in range(1, min(50, rows - start) + 1):
            size = k << 20
            results = []
            for _ in range(2):
                time_us = round(5 + size / 470e3 * rng.uniform(0.98, 1.02), 2)
                algbw = size / time_us / 1e3
                results.append(f"{time_us:.2f}  {algbw:.2f}  {algbw * 2 * (RANKS - 1) / RANKS:.2f}  0")
            yield f"{size}  {size // 4}  float  sum  -1  {'  '.join(results)}"
        yield "# Out of bounds values : 0 OK"


def tidy_collectives(rows: int, rng: random.Random) -> Iterator[str]:
    """One collective after another, a new tag every 100 rows."""
    yield "source,gpu,interconnect,collective,nnodes,nranks,dtype,bytes,time_us,tag"
    for k in range(rows):
        size = 1024 << k % 20
        time_us = 9 + size / 4e5 * rng.uniform(0.9, 1.1)
        yield f"mine,H100,NVLink,all_reduce,1.0,8.0,half,{size}.0,{time_us:.2f},job {k // 100}"


def tidy_kernels(rows: int, rng: random.Random) -> Iterator[str]:
    """Convolutions of many shapes."""
    yield "source,gpu,op,phase,dtype,N,C,H,W,K,R,S,stride_h,stride_w,pad_h,pad_w,time_ms"
    for _ in range(rows):
        channels, extent = rng.randrange(8, 512), rng.randrange(7, 224)
        yield f"mine,V100,conv2d,fwd,fp32,32,{channels},{extent},{extent},64,3,3,1,1,1,1,{rng.uniform(10, 100):.3f}"


LAYOUTS: dict[str, Callable[[int, random.Random], Iterator[str]]] = {
    f.__name__: f for f in (nccl_tests, tidy_collectives, tidy_kernels)
}


def measure(path: Path, how: str) -> None:
    """Import one file in this process and print seconds and peak memory."""
    started, cpu = time.perf_counter(), time.process_time()
    report = stream_file(path, lambda _: None) if how == "stream" else import_file(path).report
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{report.format:18} {how:7} {report.rows_taken:8} rows {report.rows_dropped:3} dropped {seconds:6.1f} s wall "
        f"{cpu_s:6.1f} s CPU {peak / 1024:6.0f} MB peak"
    )


def main() -> None:
    """Write the files and measure each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--one", nargs=2, metavar=("FILE", "HOW"), help="measure one file in this process")
    options = parser.parse_args()
    if options.one:
        measure(Path(options.one[0]), options.one[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, layout in LAYOUTS.items():
            path, rng = Path(folder) / name, random.Random(0)  # noqa: S311 - made-up rows, not secrets
            path.write_text("\n".join(layout(options.rows, rng)) + "\n")
            for how in ("stream", "keep"):
                subprocess.run([sys.executable, __file__, "--one", str(path), how], check=True)


if __name__ == "__main__":
    main()
