"""rccl-tests `--output_file`: one JSON object per line, size and placement (ROCm/rccl-tests#93)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from profiler.importers.base import Importer, Item, Log, Verdict
from profiler.importers.collectives import DTYPES, Setting, collective_name, transfer_measurement
from profiler.importers.json_stream import json_line
from profiler.importers.nccl_run import Result, Row, result_error
from profiler.importers.printed import exact, printed
from profiler.importers.source import Source
from profiler.measurement import Environment


def _read(source: Source, log: Log) -> Iterator[Item]:
    environment = Environment({"tool": "rccl-tests"}, {})
    device = log.assumptions.device or "unknown"
    for number, line in source.lines():
        if not line.strip():
            continue
        values = json_line(line)
        if not isinstance(values, dict):
            log.drop(number, line, "no JSON object: cut off?")
            log.judge(Verdict.INCOMPLETE)
            continue
        name, ranks = collective_name(str(values.get("name"))), values.get("gpus")
        if name is None or type(ranks) is not int or not 1 <= ranks < 1 << 24:
            log.drop(number, line, "no known collective, or no number of devices")
            continue
        why, row = _checked(number, line, values, name, ranks)
        if row is None:
            log.drop(number, line, why)
            continue
        log.take()
        log.ranks.add(ranks)
        setting = Setting(name, ranks, log.assumptions.nodes, device, environment, log.run_id)
        time = row.results[0].time_us
        yield transfer_measurement(
            setting,
            row.size,
            DTYPES[row.dtype][0],
            time.value * 1e-6 if time else 0.0,
            1,
            in_place=values.get("inPlace") in (1, True, "1"),
        )
    if log.rows_taken:
        log.warn("the lines name neither device, nodes nor iterations")


def _checked(number: int, line: str, values: Mapping[str, Any], name: str, ranks: int) -> tuple[str, Row | None]:
    """Why a line cannot be taken, or the row that it is."""
    size, dtype = values.get("size"), str(values.get("type"))
    if type(size) is not int or not 0 <= size < 1 << 60 or dtype not in DTYPES:
        return "no size, or an unknown data type", None
    wrong = printed(str(values.get("#wrong")).strip())
    time, algbw, busbw = (exact(values.get(key)) for key in ("time", "algBw", "busBw"))
    result = Result(time, algbw, busbw, wrong.value if wrong else None)
    # The object has no count column: the row check of it is left out by giving the count that fits.
    row = Row(number, line, size, 0, dtype, None, None, (result, result))
    why = "size 0: nothing was sent" if size == 0 else None
    why = why or ("one rank: a copy inside a device, no transfer" if ranks == 1 else None)
    why = why or result_error(row, result, name, ranks, "")
    return why or "", None if why else row


def _recognises(head: str) -> bool:
    first = head.lstrip().split("\n", 1)[0]
    try:
        values = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and {"algBw", "busBw", "size", "name"} <= set(values)


IMPORTER = Importer("rccl_jsonl", _recognises, _read)
