"""Which algorithm and protocol NCCL says it chose for a size (NCCL_DEBUG_SUBSYS=TUNING), old and new wording.

Old: `AllReduce: 1048576 Bytes -> Algo 1 proto 2 time 93.2` (with numbers for names); new: `AllReduce: 1048576 Bytes
-> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}`. The size of all_gather and reduce_scatter in these lines is one
rank's share in some versions and the whole buffer in others, so only collectives without shares are labelled by it.
"""

from __future__ import annotations

import re

from profiler.importers.collectives import PER_RANK_COUNT, collective_name

_CHOICE = re.compile(r"\b(\w+): (\d{1,18}) Bytes -> Algo (\w{1,30}) proto (\w{1,30})")
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")


class Choices:
    """Collects the choices of one log."""

    def __init__(self) -> None:
        self.by_size: dict[tuple[str, int], set[tuple[str, str]]] = {}

    def feed(self, message: str) -> bool:
        """Read a message; False where it is about something else."""
        match = _CHOICE.search(message)
        name = collective_name(match[1]) if match else None
        if match is None or name is None:
            return False
        choice = (_name(match[3], _ALGORITHMS), _name(match[4], _PROTOCOLS))
        self.by_size.setdefault((name, int(match[2])), set()).add(choice)
        return True

    def about(self, collective: str, size_bytes: int) -> dict[str, str]:
        """The algorithm and protocol of one size, where they are known and always the same."""
        if collective in PER_RANK_COUNT:
            return {}
        found = self.by_size.get((collective, size_bytes), set())
        if len(found) != 1:
            return {}
        algorithm, protocol = next(iter(found))
        return {"algorithm": algorithm, "protocol": protocol}


def _name(text: str, table: tuple[str, ...]) -> str:
    if text.isdecimal():
        return table[int(text)] if int(text) < len(table) else text
    return text.lower()
