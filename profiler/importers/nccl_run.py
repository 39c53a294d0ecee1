"""One run of nccl-tests or rccl-tests: what its head says, its rows, and what can be trusted of them.

Which collective it was: the tool's own line (since June 2025), else the command line, else the columns: a reduction
whose size is count * item is all_reduce (reduce prints a root), with one rank's share as count it is reduce_scatter;
without a reduction, a root means broadcast, and no root means sendrecv, or with one rank's share all_gather or
all_to_all. The last two differ in one thing: all_to_all cannot be checked in place, so that its in-place `#wrong` is
N/A where the out-of-place one is a number (src/alltoall.cu sets reportErrors to 0), and old tables have an empty
redop column for all_to_all and none for all_gather. What stays open is not guessed.

How many ranks: the ratio busbw / algbw (see `collectives.ranks_from_ratio`) and size / (count * item) come from the
run itself; the rank lines may be elided, edited or cut. So the ratio wins where it is unambiguous, the lines decide
where several numbers fit, and a contradiction is a warning. Published logs of "64" and "143" ranks had 96 and 128.

Before June 2020 all_gather and reduce_scatter printed an algbw that already contained (n - 1) / n
(NVIDIA/nccl-tests#45); such rows agree with themselves in that convention, and since only size and time are kept
they are taken.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from profiler.importers.base import host_digest
from profiler.importers.collectives import BUS_FACTORS, DTYPES, PER_RANK_COUNT, ranks_from_ratio
from profiler.importers.environments import SIZES
from profiler.importers.printed import Printed, agrees, ratio_bounds

VOTERS = 40
"""Rows that are asked for the number of ranks: those whose bandwidth has the most digits."""

MANY = 4096
"""A ratio that fits more numbers of ranks than this says nothing."""


@dataclass(frozen=True, slots=True)
class Result:
    """One placement of a row: time in us, bandwidths in GB/s, wrong values (None where they were not checked)."""

    time_us: Printed | None
    algbw: Printed | None
    busbw: Printed | None
    wrong: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it was printed; `results` is out of place, in place."""

    line: int
    text: str
    size: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    results: tuple[Result, Result]

    @property
    def item_bytes(self) -> int:
        """Bytes of one item; 0 where the type is unknown."""
        return DTYPES.get(self.dtype, ("", 0))[1]


@dataclass(frozen=True)
class RankLine:
    """Who a rank is: one line of the device list."""

    rank: int
    group: int
    host: str
    device: int
    bus: str
    name: str


@dataclass
class Run:
    """What was read of one run.

    Args:
        params: of the parameter line, such as nThread, minBytes, iters.
        columns: whether the table's head was seen, and whether it has redop and root columns.
    """

    collective: str | None = None
    params: dict[str, str] = field(default_factory=dict)
    rank_lines: list[RankLine] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    heads: int = 0
    ended: bool = False
    failure: str | None = None
    max_bytes: int | None = None
    malformed: int = 0
    taken_at: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing of a run was read."""
        return not (self.heads or self.rows or self.rank_lines or self.ended or self.failure or self.columns)

    @property
    def iterations(self) -> int | None:
        """Back-to-back calls of which a time is the mean."""
        text = self.params.get("iters", "")
        aggregated = self.params.get("agg iters", "1")
        return int(text[:9]) * int(aggregated[:9]) if text.isdecimal() and aggregated.isdecimal() else None


def find_collective(run: Run, rows: list[Row]) -> str | None:
    """The collective of a run by its columns; None where they leave it open."""
    shares = [row for row in rows if row.item_bytes and row.size and row.count]
    if not shares:
        return None
    ratios = {row.size / (row.count * row.item_bytes) for row in shares}
    if len(ratios) != 1:
        return None
    whole = ratios == {1.0}
    row = shares[0]
    rooted = any(other.root is not None and other.root >= 0 for other in shares)
    if row.redop not in (None, "none"):
        if whole:
            return "reduce" if rooted else "all_reduce"
        return "reduce_scatter"
    if whole:
        return "broadcast" if rooted else ("p2p" if row.redop == "none" else None)
    return None if rooted else _gather_or_exchange(run, shares)


def _gather_or_exchange(run: Run, rows: list[Row]) -> str | None:
    """all_gather or all_to_all: by the in-place check, or by an old table's redop column (see the module)."""
    out_checked = all(row.results[0].wrong is not None for row in rows)
    in_checked = all(row.results[1].wrong is not None for row in rows)
    if rows[0].redop == "none" and out_checked:
        return "all_gather" if in_checked else "all_to_all"
    if rows[0].redop is None and run.columns:
        return "all_to_all" if "redop" in run.columns else "all_gather"
    return None


def voted_ranks(collective: str, rows: list[Row]) -> list[int]:
    """The numbers of ranks that most rows agree on: none where no row says anything, several where they cannot tell."""
    if collective in PER_RANK_COUNT:
        shares = Counter(row.size // (row.count * row.item_bytes) for row in rows if row.count and row.item_bytes)
        if shares:
            return [shares.most_common(1)[0][0]]
    votes: Counter[int] = Counter()
    informative = 0
    for row in sorted(rows, key=_precision, reverse=True)[:VOTERS]:
        for result in row.results:
            fits = _ranks_that_fit(collective, row.size, result)
            if 0 < len(fits) <= MANY:
                votes.update(fits)
                informative += 1
    if not votes or 2 * max(votes.values()) <= informative:
        return []
    most = max(votes.values())
    return sorted(n for n, count in votes.items() if count == most)


def _precision(row: Row) -> float:
    algbw = row.results[0].algbw
    return algbw.value / algbw.half if algbw and algbw.half else 0.0


def _ranks_that_fit(collective: str, size: int, result: Result) -> range:
    time, algbw, busbw = result.time_us, result.algbw, result.busbw
    if time is None or algbw is None or busbw is None or not agrees(size, time, algbw):
        return range(0)
    if algbw.lo > 0 and busbw.value == 0:
        return range(1, 2)  # one rank: its bus bandwidth is printed as zero
    bounds = ratio_bounds(busbw, algbw)
    return ranks_from_ratio(collective, *bounds) if bounds else range(0)


def stated_ranks(run: Run) -> tuple[int | None, bool]:
    """How many ranks the device list shows, and whether the list is whole."""
    if not run.rank_lines:
        return None, False
    seen = {line.rank for line in run.rank_lines}
    return max(seen) + 1, len(seen) == max(seen) + 1


def choose_ranks(run: Run, collective: str, assumed: int | None) -> tuple[int | None, str]:
    """The number of ranks, and a warning (or an empty text).

    Args:
        run: with its rows.
        collective: our name.
        assumed: what the caller says, used where the log leaves it open.
    """
    stated, whole = stated_ranks(run)
    voted = voted_ranks(collective, run.rows)
    said = stated if stated is not None else assumed
    if len(voted) == 1:
        if said is not None and said != voted[0] and (whole or said > voted[0] or stated is None):
            who = "the device list says" if stated is not None else "the caller says"
            return voted[0], f"{who} {said} ranks, the bandwidths say {voted[0]}"
        return voted[0], ""
    if voted:
        if said in voted:
            return said, ""
        if stated is not None and not whole and (larger := [n for n in voted if n >= stated]) and len(larger) == 1:
            return larger[0], ""
        return None, f"busbw / algbw fits {voted[0]} to {voted[-1]} ranks and nothing in the log decides"
    return said, ""


def find_nodes(run: Run, ranks: int) -> int | None:
    """On how many nodes the ranks were: every rank is listed, or the listed ones bound blocks that cover all."""
    hosts: dict[str, list[int]] = {}
    for line in run.rank_lines:
        hosts.setdefault(line.host, []).append(line.rank)
    listed = {line.rank for line in run.rank_lines}
    if listed == set(range(ranks)):
        return len(hosts)
    covered = sum(max(members) - min(members) + 1 for members in hosts.values())
    return len(hosts) if hosts and covered == ranks and max(listed) == ranks - 1 else None


def device_name(run: Run) -> str:
    """The names of the devices, joined where they differ; empty where the log has none."""
    return " + ".join(sorted({line.name for line in run.rank_lines if line.name}))


def shares_device(run: Run) -> bool:
    """Whether two ranks sit on one device: same host, index and bus id (old logs print bus id 0x00 for all)."""
    places = Counter(
        (line.host, line.device, line.bus) for line in run.rank_lines if line.bus.strip("0x:.") or line.device
    )
    return any(count > 1 for count in places.values())


def identity(run: Run, tool: str, key: bytes) -> dict[str, str]:
    """What must match for curves of two runs to be one curve."""
    settings = {name: value for name, value in run.variables.items() if name not in SIZES}
    values = {"tool": tool, **run.versions, **settings}
    if run.rank_lines:
        values["node_set"] = host_digest({line.host for line in run.rank_lines}, key)
    for name in ("nThread", "nGpus", "graph", "blocking"):
        if name in run.params:
            values[name] = run.params[name]
    return values


def row_error(row: Row, collective: str, ranks: int) -> str | None:
    """Why a whole row cannot be taken, or None."""
    if row.item_bytes == 0:
        return f"unknown data type '{row.dtype}'"
    if row.size == 0:
        return "size 0: nothing was sent"
    if ranks == 1:
        return "one rank: a copy inside a device, no transfer"
    share = row.count * row.item_bytes
    wanted = share * ranks if collective in PER_RANK_COUNT else share
    if collective not in ("all_to_all_v", "hypercube") and wanted != row.size:
        return f"size is not count x {row.item_bytes} bytes" + (" x ranks" if collective in PER_RANK_COUNT else "")
    return None


TOLERATED = {"fp16": 1e-2, "bf16": 1e-2, "fp32": 1e-5, "fp64": 1e-12}
"""Largest deviation that nccl-tests before 2022, which printed it instead of a count, called right."""

FASTEST_US = 0.5
"""No collective of two ranks is faster: a kernel launch alone takes longer."""

FASTEST_GB_PER_S = {"P100": 160, "V100": 300, "A100": 600, "H100": 900, "H200": 900, "B200": 1800, "GB200": 1800}
"""Twice the NVLink of one direction, which even NVLink SHARP, whose busbw exceeds the wire, does not reach."""
FASTEST_GB_PER_S_OF_ANY = 3600


def result_error(row: Row, result: Result, collective: str, ranks: int, device: str) -> str | None:
    """Why one placement of a row cannot be taken, or None."""
    time, algbw, busbw = result.time_us, result.algbw, result.busbw
    if time is None or algbw is None or busbw is None:
        return "a number is missing"
    if result.wrong and not result.wrong <= wrong_limit(row):
        return f"wrong results ({result.wrong:g})"
    if time.value < FASTEST_US:
        return f"{time.value:g} us is faster than a launch"
    limit = next((rate for name, rate in FASTEST_GB_PER_S.items() if name in device), FASTEST_GB_PER_S_OF_ANY)
    if busbw.value > limit:
        return f"busbw {busbw.value:g} GB/s is above {limit} GB/s, twice the link"
    return _contradiction(row.size, (time, algbw, busbw), collective, ranks)


def _contradiction(size: int, numbers: tuple[Printed, Printed, Printed], collective: str, ranks: int) -> str | None:
    """Which of time, algbw and busbw does not fit the others, or None."""
    time, algbw, busbw = numbers
    factor = BUS_FACTORS[collective](ranks)
    if not agrees(size, time, algbw):
        old = collective in PER_RANK_COUNT and agrees(size, time, algbw, factor) and busbw == algbw
        return None if old else f"algbw {algbw.value:g} is not size / time"
    if not agrees(size, time, busbw, factor):
        return f"busbw {busbw.value:g} is not algbw times {factor:.4g} of {ranks} ranks"
    return None


def wrong_limit(row: Row) -> float:
    """The largest `#wrong` or `error` of a right result: a count must be 0, a deviation may be rounding."""
    old = row.results[0].wrong is not None and any(
        result.wrong is not None and result.wrong != math.floor(result.wrong) for result in row.results
    )
    return TOLERATED.get(DTYPES[row.dtype][0], 0.0) if old else 0.0


def range_warning(run: Run) -> str:
    """Whether the rows cover the sizes that the parameter line announces; an empty text where they do."""
    sizes = [row.size for row in run.rows]
    low, high = run.params.get("minBytes", ""), run.params.get("maxBytes", "")
    if not sizes or not low.isdecimal() or not high.isdecimal():
        return ""
    top = min(int(high), run.max_bytes or int(high))
    step = run.params.get("step", "")
    value = int("".join(character for character in step if character.isdecimal()) or 0)
    following = max(sizes) * value if "factor" in step else max(sizes) + value
    if min(sizes) > int(low) or max(sizes) > top:
        return f"the table holds {min(sizes)} to {max(sizes)} bytes, the parameter line says {low} to {high}"
    if value > 0 and following + 1024 * 16 <= top:
        return f"the table ends at {max(sizes)} bytes, the parameter line says {high}"
    return ""
