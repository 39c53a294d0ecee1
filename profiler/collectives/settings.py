"""What is asked of a run of collectives, as plain values that travel to every process as JSON.

Bytes are the whole buffer, as in `profiler.importers.collectives`. Groups separate the tiers of a network: `all`
ranks, those of one `node`, one of each node (`across`), or the `first:N`. Where a kind makes several groups (every
node is one), the first is measured while the others rest; with `concurrent` all of them are measured at once as well,
which shows how far they share their links. `first:N` makes groups of N consecutive ranks.

Calls follow one another `back_to_back`, as in nccl-tests; or with a `pause` of `pause_s` between them, in which the
devices rest; or with `compute` between them, which is how a training step spaces its collectives: its kernels empty
the caches, and ranks arrive at different times. `beside` names kernels to run at the same time as a collective, which
shows how far the two slow one another down (`profiler.collectives.beside`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from oracle.errors import BadInput, OutOfRange, UnknownName
from profiler.importers.collectives import DTYPES
from profiler.stopping import StoppingRule

PLACES: dict[str, tuple[bool, ...]] = {
    "all_reduce": (True,),
    "all_gather": (False, True),
    "reduce_scatter": (False, True),
    "broadcast": (True,),
    "all_to_all": (False,),
    "p2p": (False,),
}
"""Collective -> whether torch.distributed does it in place: all_reduce and broadcast have no other form there."""

SHARED_OUT = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives whose buffer is cut into one share for each rank."""

MEASURABLE_DTYPES = ("fp32", "fp16", "bf16", "fp64", "int8", "uint8", "int32", "int64")

ITEM_BYTES = {name: size for name, size in DTYPES.values() if name in MEASURABLE_DTYPES}
"""Data type -> bytes of one item."""

GROUPS = ("all", "node", "across", "first:N")

SPACINGS = ("back_to_back", "pause", "compute")
"""What lies between the calls of one sample."""

KERNELS = ("matmul", "conv2d", "copy")
"""What may run beside a collective: bound by compute, by compute with a layer's shapes, and by memory."""


@dataclass(frozen=True)
class CollectiveCase:
    """One message to measure.

    Args:
        collective: its name.
        bytes: the whole buffer.
        dtype: of its items.
        in_place: whether it is received where it was sent from.
        pattern: of `p2p`: one_way, exchange or ring; empty for the others.
        group: which kind of group, see the module.
        concurrent: whether all groups of that kind do it at once.
        spacing: what lies between the calls of a sample, one of `SPACINGS`.
        beside: the kernel that runs at the same time, one of `KERNELS`; empty for none.
    """

    collective: str
    bytes: int
    dtype: str
    in_place: bool
    pattern: str = ""
    group: str = "all"
    concurrent: bool = False
    spacing: str = SPACINGS[0]
    beside: str = ""

    @property
    def items(self) -> int:
        """Items in the whole buffer."""
        return self.bytes // ITEM_BYTES[self.dtype]

    @property
    def text(self) -> str:
        """One short line.

        >>> CollectiveCase("p2p", 64, "fp32", False, "ring").text
        'p2p ring, 64 bytes of fp32, out of place'
        """
        place = "in place" if self.in_place else "out of place"
        company = ", all groups at once" if self.concurrent else ""
        name = f"{self.collective} {self.pattern}".strip()
        group = "" if self.group == "all" else f", group {self.group}"
        spacing = "" if self.spacing == SPACINGS[0] else f", {self.spacing} between calls"
        beside = f", beside {self.beside}" if self.beside else ""
        return f"{name}, {self.bytes} bytes of {self.dtype}, {place}{group}{company}{spacing}{beside}"


@dataclass(frozen=True)
class CollectiveSettings:
    """How to measure collectives.

    Args:
        folder: where each rank keeps its file; on a cluster it may lie on a shared file system.
        run_id: what the measurements share.
        budget_s: wall-clock seconds for all of it; what is not reached by then is left out.
        ranks: processes to start on this machine; under torchrun, srun or mpirun theirs are used.
        device: `cpu` (Gloo) or `cuda` (NCCL, one device for each rank).
        collectives: which; `p2p` is send and receive.
        dtypes: of the items.
        smallest_bytes, largest_bytes: of the whole buffer.
        size_factor: between neighbouring sizes.
        groups: which kinds of groups, see the module.
        concurrent: whether groups are also measured all at once.
        spacings: what lies between calls, of `SPACINGS`.
        pause_s: seconds of a pause between calls.
        beside: kernels, of `KERNELS`, beside which each collective is measured as well; in place where it can be, and
            from `beside_bytes` up, because what a step hides behind kernels are buckets and not single numbers.
        beside_bytes: the smallest message that is measured beside kernels.
        rounds: visits of each case, minutes apart where there are many cases.
        rule: when a visit ends.
        seed: of the order.
        resume: go on with what is in the files.
        timeout_s: longest wait for one call before the run is given up.
        silence_s: a rank that gives no sign of life for so long is given up.
        host_key: secret of the digest under which host names are kept.
    """

    folder: Path
    run_id: str
    budget_s: float
    ranks: int = 2
    device: str = "cpu"
    collectives: tuple[str, ...] = tuple(PLACES)
    dtypes: tuple[str, ...] = ("fp32",)
    smallest_bytes: int = 32
    largest_bytes: int = 1 << 26
    size_factor: float = 2.0
    groups: tuple[str, ...] = ("all",)
    concurrent: bool = False
    spacings: tuple[str, ...] = (SPACINGS[0],)
    pause_s: float = 1e-3
    beside: tuple[str, ...] = ()
    beside_bytes: int = 1 << 18
    rounds: int = 3
    rule: StoppingRule = field(default_factory=lambda: StoppingRule(target=0.05, max_samples=20))
    seed: int = 0
    resume: bool = False
    timeout_s: float = 40.0
    silence_s: float = 15.0
    host_key: bytes = b""

    def __post_init__(self) -> None:
        self._check_names()
        if self.ranks < 2:
            raise OutOfRange(f"a collective needs at least 2 ranks, not {self.ranks}")
        if not 0 < self.smallest_bytes <= self.largest_bytes:
            raise OutOfRange(
                f"sizes go from a positive number of bytes up, not from {self.smallest_bytes} to {self.largest_bytes}"
            )
        if not (math.isfinite(self.size_factor) and self.size_factor >= 1.05):
            raise OutOfRange(f"neighbouring sizes differ by a factor of at least 1.05, not {self.size_factor}")
        for name in ("budget_s", "timeout_s", "silence_s", "pause_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise OutOfRange(f"{name} must be a positive number of seconds, not {getattr(self, name)}")
        if self.rounds < 1:
            raise OutOfRange(f"at least one round is measured, not {self.rounds}")

    def _check_names(self) -> None:
        tables: tuple[tuple[str, Sequence[str], Sequence[str]], ...] = (
            ("collective", self.collectives, tuple(PLACES)),
            ("data type", self.dtypes, MEASURABLE_DTYPES),
            ("device", (self.device,), ("cpu", "cuda")),
            ("spacing", self.spacings, SPACINGS),
            ("kernel", self.beside, KERNELS),
        )
        for what, names, known in tables:
            if not names and what != "kernel":
                raise BadInput(f"no {what} was asked for; known: {', '.join(known)}")
            for name in names:
                if name not in known:
                    raise UnknownName(what, name, known)
        for group in self.groups:
            if not (group in GROUPS[:3] or (group.startswith("first:") and group[6:].isdecimal())):
                raise UnknownName("group", group, GROUPS)

    def sizes(self) -> list[int]:
        """The sizes asked for, ascending, before they are rounded to whole shares.

        >>> CollectiveSettings(Path(), "r", 1.0, largest_bytes=200).sizes()
        [32, 64, 128, 200]
        """
        steps = math.floor(math.log(self.largest_bytes / self.smallest_bytes) / math.log(self.size_factor) + 1e-9)
        found = {round(self.smallest_bytes * self.size_factor**step) for step in range(steps + 1)}
        return sorted({*found, self.largest_bytes})

    def to_json(self) -> str:
        """For another process; `from_json` gives equal settings back."""
        return json.dumps({**asdict(self), "folder": str(self.folder), "host_key": self.host_key.hex()})

    @classmethod
    def from_json(cls, text: str) -> CollectiveSettings:
        """Read what `to_json` wrote."""
        values: Mapping[str, Any] = json.loads(text)
        lists = {name: tuple(values[name]) for name in _LISTS}
        parts = {
            "folder": Path(values["folder"]),
            "rule": StoppingRule(**values["rule"]),
            "host_key": bytes.fromhex(values["host_key"]),
        }
        return cls(**{**values, **lists, **parts})


_LISTS = ("collectives", "dtypes", "groups", "spacings", "beside")


def cases(settings: CollectiveSettings, group: str, ranks: int, concurrent: bool) -> Iterator[CollectiveCase]:
    """Every case of one kind of group.

    Args:
        settings: of the run.
        group: the kind of group.
        ranks: in each such group.
        concurrent: whether the groups run at once.
    """
    for collective in settings.collectives:
        for dtype in settings.dtypes:
            unit = ITEM_BYTES[dtype] * (ranks if collective in SHARED_OUT else 1)
            sizes = sorted({max(1, math.ceil(size / unit)) * unit for size in settings.sizes()})
            for in_place in PLACES[collective]:
                for pattern in _patterns(collective, ranks):
                    for size in sizes:
                        case = CollectiveCase(collective, size, dtype, in_place, pattern, group, concurrent)
                        yield from _ways(settings, case)


def _ways(settings: CollectiveSettings, case: CollectiveCase) -> Iterator[CollectiveCase]:
    """A case with everything that may lie between its calls, and beside every kernel."""
    for spacing in settings.spacings:
        yield replace(case, spacing=spacing)
    if case.bytes >= settings.beside_bytes and case.in_place == PLACES[case.collective][-1] and not case.concurrent:
        for kernel in settings.beside:
            yield replace(case, beside=kernel)


def _patterns(collective: str, ranks: int) -> tuple[str, ...]:
    if collective != "p2p":
        return ("",)
    return ("one_way", "exchange") if ranks == 2 else ("ring",)  # a ring of two is an exchange
