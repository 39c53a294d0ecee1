"""The lines that start a measurement of collectives on a cluster: srun, torchrun, mpirun, and a batch script."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from oracle.units import format_bytes
from profiler.collectives.settings import CollectiveSettings

LARGEST_BYTES = {"cpu": 1 << 26, "cuda": 1 << 30}
"""Largest message by kind of device. Gradients are this large, and a bandwidth found on smaller messages misses by a
third and more on larger ones."""

START_AND_END_S = 600.0
"""Time of a job beside measuring: starting all nodes, and what is left of the last visit."""

ADDRESS = (
    'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
)
"""How a batch job tells all ranks where rank 0 is; torch reads the same variables."""


@dataclass(frozen=True)
class Launch:
    """How to start one job.

    Args:
        name: of the network that comes of it; letters, digits, `-_.`.
        settings: what is measured.
        nodes, ranks_per_node: where.
        placement: which nodes, as lines of a batch script.
    """

    name: str
    settings: CollectiveSettings
    nodes: int
    ranks_per_node: int
    placement: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the ranks keep their files."""
        return self.settings.folder

    @property
    def time_limit_s(self) -> float:
        """What to ask the scheduler for."""
        return self.settings.budget_s + START_AND_END_S

    @property
    def measure(self) -> str:
        """What every rank runs; `--resume` also starts a run that has not begun."""
        asked = self.settings
        options = {
            "--device": asked.device,
            "--groups": ",".join(asked.groups),
            "--dtypes": ",".join(asked.dtypes),
            "--largest": format_bytes(asked.largest_bytes).replace(" ", ""),
            "--budget": f"{math.ceil(asked.budget_s / 60)}min",
            "--folder": shlex.quote(str(self.folder)),
        }
        parts = [f"{name} {value}" for name, value in options.items()]
        concurrent = ["--concurrent"] if asked.concurrent else []
        return " ".join(["stepgauge measure --collectives", *parts, *concurrent, "--resume"])

    @property
    def collect(self) -> str:
        """What brings the files into a store and fits a network."""
        return f"stepgauge collect {shlex.quote(str(self.folder))} --name {shlex.quote(self.name)}"

    def commands(self) -> dict[str, str]:
        """Launcher -> its line; torchrun's is started on every node, with MASTER_ADDR and MASTER_PORT set."""
        gpus = f" --gpus-per-node={self.ranks_per_node}" if self.settings.device == "cuda" else ""
        ranks = self.nodes * self.ranks_per_node
        rendezvous = "--standalone"
        if self.nodes > 1:
            rendezvous = f'--nnodes={self.nodes} --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
        return {
            "srun": f"srun --nodes={self.nodes} --ntasks-per-node={self.ranks_per_node}{gpus} {self.measure}",
            "torchrun": f"torchrun {rendezvous} --nproc-per-node={self.ranks_per_node} --no-python {self.measure}",
            "mpirun": f"mpirun -np {ranks} --map-by ppr:{self.ranks_per_node}:node -x MASTER_ADDR -x MASTER_PORT "
            f"{self.measure}",
        }

    def sbatch(self) -> str:
        """A batch script for Slurm that goes on where it stopped when it is put back into the queue."""
        minutes = math.ceil(self.time_limit_s / 60)
        gpus = [f"#SBATCH --gpus-per-node={self.ranks_per_node}"] if self.settings.device == "cuda" else []
        lines = [
            "#!/bin/bash",
            f"#SBATCH --job-name=stepgauge-{self.name}",
            f"#SBATCH --nodes={self.nodes}",
            f"#SBATCH --ntasks-per-node={self.ranks_per_node}",
            *gpus,
            f"#SBATCH --time={minutes // 60:02d}:{minutes % 60:02d}:00",
            "#SBATCH --exclusive",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            f"#SBATCH --output=stepgauge-{self.name}.%j.log",
            *self.placement,
            "",
            "# Activate the environment that has stepgauge and torch here (module load, source .venv/bin/activate).",
            "set -euo pipefail",
            *ADDRESS,
            "# Every rank appends to a file of its own. A job that was put back into the queue goes on with --resume.",
            f"srun {self.measure}",
            "",
            "# Afterwards, on one machine whose disk is local (no database lies on a shared file system):",
            f"#   {self.collect}",
        ]
        return "\n".join(lines) + "\n"
