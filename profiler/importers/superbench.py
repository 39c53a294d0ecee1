"""SuperBench: `results-summary.jsonl` (one object per node) and the raw output of gpu_copy.

A key is `bench[:annotation]/metric[:rank]`. `nccl-bw` metrics `COLLECTIVE_BYTES_time` (us) with their `algbw` and
`busbw` (GB/s) become transfers, with the same checks as a row of nccl-tests; everything else stays a fact, as the
bench printed it, because SuperBench's units depend on the bench. The node's name is kept as a digest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from profiler.importers.base import Fact, Importer, Item, Log, Verdict, host_digest
from profiler.importers.collectives import Setting, collective_name, transfer_measurement
from profiler.importers.json_stream import json_line
from profiler.importers.nccl_run import Result, Row, Run, choose_ranks, result_error
from profiler.importers.printed import exact
from profiler.importers.source import Source
from profiler.measurement import Environment

_COPY = re.compile(r"((?:cpu|gpu\w*?)_(?:to|and)_\w+?_by_(?:sm|dma)(?:_under_numa\d+)?) (\d{1,9}(?:\.\d{1,12})?)")
_METRIC = re.compile(r"(nccl-bw[^/]*)/(?:([a-z_]+?)_)?(\d{1,18})_(time|algbw|busbw)(?::(\d+))?")
_Place = tuple[str, str, int, str]
_KEY = re.compile(r"[\w.:+-]{1,100}/[\w.:/+-]{1,200}")


def _read(source: Source, log: Log) -> Iterator[Item]:
    for number, line in source.lines():
        text = line.strip()
        if not text:
            continue
        if match := _COPY.fullmatch(text):
            yield from _copy(number, match[1], float(match[2]), log)
        elif text[0] == "{":
            yield from _summary(number, text, log)
        else:
            log.skip(number, line, "no result of SuperBench")


def _copy(number: int, name: str, gb_per_s: float, log: Log) -> Iterator[Fact]:
    if not 0 < gb_per_s < 1e5:
        log.drop(number, f"{name} {gb_per_s}", "no plausible bandwidth")
        return
    log.take()
    yield Fact("bandwidth", name, {"test": name, "bandwidth_bytes_per_s": gb_per_s * 1e9})


def _summary(number: int, text: str, log: Log) -> Iterator[Item]:
    values = json_line(text)
    if not isinstance(values, dict):
        log.drop(number, text, "no JSON object: cut off?")
        log.judge(Verdict.INCOMPLETE)
        return
    node = host_digest({str(values.get("node"))}, log.assumptions.host_key)
    transfers: dict[_Place, dict[str, object]] = {}
    others: dict[str, float] = {}
    for key, value in values.items():
        value_read = exact(value)
        if key == "node":
            continue
        if value_read is None or not _KEY.fullmatch(key):
            log.drop_part(number, f"{key}: {value}", "no number, or no name of a bench")
        elif (match := _METRIC.fullmatch(key)) and match[2] is not None:
            place = (match[1], match[2], int(match[3]), match[5] or "")
            transfers.setdefault(place, {})[match[4]] = value
        else:
            others[key] = value_read.value
    log.take()
    yield from _transfers(number, transfers, node, log)
    yield Fact("superbench", node, others)


def _transfers(number: int, found: Mapping[_Place, Mapping[str, object]], node: str, log: Log) -> Iterator[Item]:
    """The transfers of one node: the rows of a bench and collective find their number of ranks together."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for (bench, said, size, rank), metrics in sorted(found.items()):
        collective = collective_name(said)
        result = Result(exact(metrics.get("time")), exact(metrics.get("algbw")), exact(metrics.get("busbw")), None)
        text = f"{bench}/{said}_{size}" + (f":{rank}" if rank else "")
        if collective is None or result.time_us is None or size == 0:
            log.drop_part(number, text, "no collective that is known, no time, or size 0")
        else:
            row = Row(number, text, size, 0, "float", None, None, (result, result))
            groups.setdefault((bench, collective), []).append(row)
    for (bench, collective), rows in groups.items():
        yield from _curve(bench, collective, rows, node, log)


def _curve(bench: str, collective: str, rows: list[Row], node: str, log: Log) -> Iterator[Item]:
    ranks, warning = choose_ranks(Run(rows=rows), collective, log.assumptions.ranks)
    if ranks is None:
        for row in rows:
            log.drop_part(row.line, row.text, warning or "the number of ranks is not known")
        return
    log.ranks.add(ranks)
    environment = Environment({"tool": "SuperBench", "bench": bench, "node_set": node}, {})
    device = log.assumptions.device or "unknown"
    setting = Setting(collective, ranks, log.assumptions.nodes, device, environment, log.run_id)
    for row in rows:
        result = row.results[0]
        why = result_error(row, result, collective, ranks, "")
        if why or result.time_us is None:
            log.drop_part(row.line, row.text, f"{why}")
        else:
            yield transfer_measurement(setting, row.size, "fp32", result.time_us.value * 1e-6, 1, in_place=False)


def _recognises(head: str) -> bool:
    first = head.lstrip().split("\n", 1)[0].strip()
    if _COPY.fullmatch(first):
        return True
    if not first.startswith('{"node"'):
        return False
    if len(first) > 20_000:  # the head may hold only a part of the first object
        return bool(re.search(r'"[\w-]+(?::[\w-]+)?/[\w./-]+(?::\d+)?":', first))
    try:
        values = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and any("/" in key for key in values)


IMPORTER = Importer("superbench", _recognises, _read)
