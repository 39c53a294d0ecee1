"""OSU micro-benchmarks: two columns (size, us or MB/s), or with `-f` average, least, largest and iterations.

MB/s is 1e6 bytes per second. `osu_bw` keeps a window of 64 messages in flight one way, `osu_bibw` both ways, and
`osu_latency` prints half a round trip of one message, so they are three different patterns of p2p. The size of a
collective is bytes per rank: for all_gather and its kind the whole buffer is size x ranks, and OSU does not print how
many ranks there were, so the caller has to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from profiler.importers.base import Importer, Item, Log, Verdict
from profiler.importers.collectives import PER_RANK_COUNT, Setting, collective_name, transfer_measurement
from profiler.importers.printed import Printed, printed
from profiler.importers.source import Source
from profiler.measurement import Environment

_TITLE = re.compile(r"OSU (MPI|NCCL|UPC|OpenSHMEM)\S{0,40} (.{1,80}?)(?: Test)?(?: v([\d.]+))?\s*$")
_POINT_TO_POINT = {
    "latency": "one_way",
    "bandwidth": "one_way_window",
    "bi-directional bandwidth": "exchange_window",
}
_COLUMNS = re.compile(r"#?\s*Size\s+(.*)")
FASTEST_BYTES_PER_S = 3.6e12
LONGEST_S = 1e3


@dataclass
class _Table:
    """One benchmark of the file."""

    title: str
    version: str
    library: str
    unit: str = ""
    columns: int = 0
    dtype: str = "int8"
    last_size: int = -1

    @property
    def pattern(self) -> str | None:
        """How a point-to-point benchmark sends; None for collectives."""
        return _POINT_TO_POINT.get(self.title.lower())

    @property
    def collective(self) -> str | None:
        """Our name of what is measured."""
        return "p2p" if self.pattern else collective_name(self.title.split(" Latency")[0].replace(" ", ""))


def _read(source: Source, log: Log) -> Iterator[Item]:
    table: _Table | None = None
    for number, line in source.lines():
        text = line.strip()
        if not text:
            continue
        if match := _TITLE.search(text):
            table = _Table(match[2].strip(), match[3] or "", match[1])
        elif table is not None and (match := _COLUMNS.match(text)):
            table.unit = "us" if "us" in match[1] or "Latency" in match[1] else "MB/s" if "MB/s" in match[1] else ""
            table.columns = 1 + len(re.split(r"\s{2,}", match[1].strip()))
        elif table is not None and "Datatype" in text:
            table.dtype = {"MPI_FLOAT": "fp32", "MPI_INT": "int32"}.get(text.split(":")[-1].strip(" ."), "int8")
        elif text[0] == "#" or table is None or not text[0].isdecimal():
            log.skip(number, line, "a comment" if text[0] == "#" else "no line of OSU")
        else:
            yield from _row(number, text, table, log)
    if table is not None and not table.unit:
        log.judge(Verdict.INCOMPLETE)


def _row(number: int, text: str, table: _Table, log: Log) -> Iterator[Item]:
    why, size, seconds, inner = _numbers(text, table)
    ranks = 2 if table.pattern else log.assumptions.ranks
    collective = table.collective
    if not why and collective is None:
        why = f"no collective that is known: {table.title}"
    if not why and ranks is None:
        why = "OSU does not say how many ranks took part; give their number"
    if why or collective is None or ranks is None:
        log.drop(number, text, why)
        return
    table.last_size = size
    log.take()
    log.ranks.add(ranks)
    environment = Environment({"tool": f"OSU {table.version}".strip(), "library": table.library}, {})
    device = log.assumptions.device or "unknown"
    setting = Setting(collective, ranks, log.assumptions.nodes, device, environment, log.run_id)
    whole = size * ranks if collective in PER_RANK_COUNT else size
    extra = {"pattern": table.pattern} if table.pattern else {"in_place": False}
    yield transfer_measurement(setting, whole, table.dtype, seconds, inner, **extra)


def _numbers(text: str, table: _Table) -> tuple[str, int, float, int]:
    """Why a row cannot be taken (or an empty text), its size, seconds per message and iterations."""
    words = text.split()
    numbers = [printed(word) for word in words]
    values = [number for number in numbers if number is not None]
    if len(values) != len(words) or len(words) < 2 or not words[0].isdecimal() or len(words[0]) > 18:
        return "not a size and numbers", 0, 0.0, 1
    if not table.unit:
        return "the head of the table is missing: the unit is not known", 0, 0.0, 1
    if len(words) != max(2, table.columns):
        return f"{len(words)} columns, the head announces {table.columns}: cut off?", 0, 0.0, 1
    size = int(words[0])
    if size == 0:
        return "size 0: nothing was sent", 0, 0.0, 1
    if size <= table.last_size:
        return "sizes do not rise: two tables in one, or a damaged number", 0, 0.0, 1
    return _seconds(size, values, table)


def _seconds(size: int, values: list[Printed], table: _Table) -> tuple[str, int, float, int]:
    value = values[1].value
    if not value > 0:
        return "not a positive number", 0, 0.0, 1
    seconds = value * 1e-6 if table.unit == "us" else size / (value * 1e6)
    if size / seconds > FASTEST_BYTES_PER_S or seconds > LONGEST_S:
        return "faster than any link, or slower than anybody waits", 0, 0.0, 1
    if len(values) >= 4 and not values[2].lo <= value <= values[3].hi:
        return "the average is not between the least and the largest", 0, 0.0, 1
    inner = int(values[4].value) if len(values) >= 5 and values[4].value >= 1 else 1
    return "", size, seconds, inner


def _recognises(head: str) -> bool:
    return bool(re.search(r"^\s*#?\s*OSU (MPI|NCCL|UPC|OpenSHMEM)", head, re.MULTILINE))


IMPORTER = Importer("osu", _recognises, _read)
