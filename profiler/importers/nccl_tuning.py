"""NCCL's own tables (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING): the latency and bandwidth that its tuner assumes.

They are what NCCL believes, not what was measured, so they become facts: per collective, algorithm and protocol
seconds and bytes per second of algorithm bandwidth. Old logs have one head line (`Latency/AlgBw | Tree/ LL |`), new
ones an `Algorithm` and a `Protocol` line; a cell is `latency in us / bandwidth in GB/s`, 0.0 / 0.0 where the pair is
not used. `N Bytes -> Algo` lines are its choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from profiler.importers.base import Fact, Importer, Item, Log, Verdict
from profiler.importers.collectives import collective_name
from profiler.importers.environments import allowed
from profiler.importers.nccl_choices import Choices
from profiler.importers.source import Source

_MESSAGE = re.compile(r"NCCL (?:INFO|WARN|TRACE) (.*)")
_CELL = re.compile(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*/\s*(\d{1,9}(?:\.\d{1,6})?)\s*")
_SET = re.compile(r"\b([A-Z][A-Z0-9_]+) set by environment to (\S+)")
_VERSION = re.compile(r"NCCL version (\d\S*)")


class _Tables:
    """Reads table lines; the head in force names the columns."""

    def __init__(self) -> None:
        self.columns: list[tuple[str, str]] = []
        self.algorithms: list[str] = []
        self.rows = 0
        self.last = ""

    def feed(self, label: str, cells: list[str]) -> tuple[str | None, list[Fact]]:
        """Why a line was not taken (None where it was), and the facts of it."""
        if label == "Algorithm":
            self.algorithms = [cell.strip() for cell in cells]
            return None, []
        if label == "Protocol":
            protocols = [cell.strip() for cell in cells]
            per = 3
            # The last block names one algorithm but prints the protocols of three; the rest has no column.
            self.columns = [
                (algorithm, protocols[per * k + j] if per * k + j < len(protocols) else "")
                for k, algorithm in enumerate(self.algorithms)
                for j in range(per)
            ]
            return None, []
        if label == "Latency/AlgBw":
            pairs = [cell.split("/", 1) for cell in cells]
            self.columns = [(pair[0].strip(), pair[-1].strip()) for pair in pairs]
            return None, []
        if label == "Max NThreads":
            return None, []
        return self._row(label, cells)

    def _row(self, label: str, cells: list[str]) -> tuple[str | None, list[Fact]]:
        collective = collective_name(label)
        if collective is None:
            return "no collective that is known", []
        if not self.columns:
            return "the head of the table is missing", []
        matches = [_CELL.fullmatch(cell) for cell in cells]
        if len(cells) != len(self.columns):
            return f"{len(cells)} cells, the head announces {len(self.columns)}", []
        if not all(matches):
            return "a cell is no pair of numbers", []
        self.rows += 1
        self.last = collective
        facts = []
        for (algorithm, protocol), match in zip(self.columns, matches, strict=True):
            if match and (float(match[1]) or float(match[2])):
                values = {
                    "collective": collective,
                    "algorithm": algorithm.lower(),
                    "protocol": protocol.lower(),
                    "latency_s": float(match[1]) * 1e-6,
                    "bandwidth_bytes_per_s": float(match[2]) * 1e9,
                }
                facts.append(Fact("nccl_tuning", f"{collective}/{algorithm}/{protocol}".lower(), values))
        return None, facts


def _read(source: Source, log: Log) -> Iterator[Item]:
    tables, choices = _Tables(), Choices()
    about: dict[str, str] = {}
    for number, line in source.lines():
        match = _MESSAGE.search(line)
        if match is None:
            if line.strip():
                log.skip(number, line, "no message of NCCL")
            continue
        text = match[1]
        if "|" in text:
            yield from _table_line(number, line, text, tables, log)
        elif choices.feed(text):
            log.take()
        elif found := _about(text):
            about.update(found)
        else:
            log.skip(number, line, "a message about something else")
    for (collective, size), chosen in sorted(choices.by_size.items()):
        pairs = [{"algorithm": algorithm, "protocol": protocol} for algorithm, protocol in sorted(chosen)]
        yield Fact("nccl_choice", collective, {"collective": collective, "bytes": size, "chosen": pairs})
    if about:
        yield Fact("environment", "nccl", about)
    if tables.last != "all_reduce":  # every version of the table ends with it
        log.judge(Verdict.INCOMPLETE)


def _table_line(number: int, line: str, text: str, tables: _Tables, log: Log) -> Iterator[Fact]:
    label, *cells = text.split("|")
    if cells and not cells[-1].strip():
        cells.pop()
    else:
        log.judge(Verdict.INCOMPLETE)  # a line of the table ends with a bar
    before = tables.rows
    why, facts = tables.feed(label.strip(), cells)
    if why:
        log.drop(number, line, why)
    elif tables.rows > before:
        log.take()
    yield from facts


def _about(text: str) -> dict[str, str]:
    if match := _VERSION.search(text):
        return {"library": f"NCCL version {match[1]}"}
    return allowed(_SET.findall(text))


def _recognises(head: str) -> bool:
    return "NCCL INFO" in head and ("Max NThreads" in head or "Latency/AlgBw" in head or "Bytes -> Algo" in head)


IMPORTER = Importer("nccl_tuning", _recognises, _read)
