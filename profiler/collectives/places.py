"""Which rank this process is, as its launcher says, and which ranks make a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oracle.errors import BadInput, NoDevice


@dataclass(frozen=True)
class RankPlace:
    """Where one process stands among all.

    Args:
        rank, ranks: its number, and how many there are.
        local_rank: its number on its node, which is its CUDA device.
        address, port: of the store that all of them share.
        holds_store: whether this process opens that store; else somebody else does.
        attempt: of the launcher, which may start ranks again after a failure.
    """

    rank: int
    ranks: int
    local_rank: int
    address: str
    port: int
    holds_store: bool
    attempt: str = "0"


LAUNCHERS: dict[str, tuple[str, str, str]] = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpirun (MPICH)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}
"""Launcher -> its variables for rank, ranks, rank on the node. Of Slurm the number of tasks of the *step* is read: in
a batch script, which is no step of srun, SLURM_PROCID and SLURM_NTASKS are set as well."""


def place_from_launcher(environ: Mapping[str, str]) -> RankPlace | None:
    """This process's place under torchrun, srun or mpirun; None where there is no launcher or one rank alone.

    Raises:
        BadInput: a launcher without the address of rank 0, or with numbers that are none.

    >>> place_from_launcher({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n", "MASTER_PORT": "9"})
    RankPlace(rank=1, ranks=4, local_rank=1, address='n', port=9, holds_store=False, attempt='0')
    >>> place_from_launcher({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})
    """
    for launcher, names in LAUNCHERS.items():
        if all(name in environ for name in names):
            rank, ranks, local_rank = (_number(environ, name) for name in names)
            return None if ranks < 2 else _placed(launcher, environ, (rank, ranks, local_rank))
    return None


def _placed(launcher: str, environ: Mapping[str, str], numbers: tuple[int, int, int]) -> RankPlace:
    if "MASTER_ADDR" not in environ or "MASTER_PORT" not in environ:
        raise BadInput(f"under {launcher} MASTER_ADDR (the node of rank 0) and MASTER_PORT (a free port) must be set")
    rank, ranks, local_rank = numbers
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    return RankPlace(
        rank=rank,
        ranks=ranks,
        local_rank=local_rank,
        address=environ["MASTER_ADDR"],
        port=_number(environ, "MASTER_PORT"),
        holds_store=rank == 0 and not agent,
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise BadInput(f"the variable {name} is no number: '{environ[name][:40]}'")
    return int(environ[name])


def device_index(place: RankPlace, count: int) -> int:
    """Which of the visible CUDA devices is this rank's own.

    A launcher may show each rank all devices of its node, or only the one that it bound to the rank
    (`srun --gpus-per-task=1`). Two ranks that share one device are found out by NCCL itself.

    Args:
        place: of the rank.
        count: of devices that this process sees.

    Raises:
        NoDevice: there are several, but none for this rank.
    """
    if count == 1:
        return 0
    if place.local_rank >= count:
        raise NoDevice(f"rank {place.rank} is number {place.local_rank} on a node of {count} devices")
    return place.local_rank


def groups_of(kind: str, hosts: Sequence[str]) -> list[tuple[int, ...]]:
    """The groups of one kind, each of at least two ranks and all as large as the first.

    Args:
        kind: as in `profiler.collectives.settings`.
        hosts: the node of each rank, by any name.

    >>> groups_of("node", ["a", "a", "b", "b"]), groups_of("across", ["a", "a", "b", "b"])
    ([(0, 1), (2, 3)], [(0, 2), (1, 3)])
    >>> groups_of("across", ["a", "a"]), groups_of("first:2", ["a", "a", "a"]), groups_of("first:2", ["a"] * 4)
    ([], [(0, 1)], [(0, 1), (2, 3)])
    """
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, host in enumerate(hosts):
        by_host[host].append(rank)
    nodes = list(by_host.values())
    if kind == "node":
        found = [tuple(ranks) for ranks in nodes]
    elif kind == "across":
        found = [tuple(ranks) for ranks in zip(*nodes, strict=False)]
    else:
        count = int(kind[6:]) if kind.startswith("first:") else len(hosts)
        starts = range(0, len(hosts) - count + 1, max(1, count))
        found = [tuple(range(start, start + count)) for start in starts]
        found = [ranks for ranks in found if _nodes(ranks, hosts) == _nodes(found[0], hosts)]
    return [ranks for ranks in found if len(ranks) > 1 and len(ranks) == len(found[0])]


def _nodes(ranks: Sequence[int], hosts: Sequence[str]) -> int:
    return len({hosts[rank] for rank in ranks})
