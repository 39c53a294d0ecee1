"""nccl-tests `-J`: versions 1 (October 2025) to 4, with the misspelt keys and the text values of the early ones.

The schema is that of NVIDIA/nccl-tests src/util.cu: booleans and roots are texts, a missing number is the text "nan",
`average_bus_bandwidth` was `average_bus_bandwidith` before 2026-02, and `env` is the whole environment, of which only
a list of settings is kept. In runs of several devices per process the device list has one line per process. A run
that ended early leaves truncated JSON before 2.18.4: its complete results are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from profiler.importers.base import Importer, Item, Log
from profiler.importers.collectives import collective_name
from profiler.importers.environments import allowed
from profiler.importers.json_stream import CutOff, members
from profiler.importers.nccl_judge import judge
from profiler.importers.nccl_run import RankLine, Result, Row, Run
from profiler.importers.printed import exact
from profiler.importers.source import Source

_ROOT = re.compile(r"-?[0-9]{1,9}")
MOST = 1 << 60
"""Bytes or items beyond which a number is damaged."""
_KNOWN_VERSIONS = (1, 2, 3, 4)
_PARAMS = {
    "nthreads": "nThread",
    "ngpus": "nGpus",
    "minimum_bytes": "minBytes",
    "maximum_bytes": "maxBytes",
    "iterations": "iters",
    "aggregated_iterations": "agg iters",
    "warmup_iters": "warmup iters",
    "validation": "validation",
    "graph": "graph",
    "blocking_collectives": "blocking",
}


def _read(source: Source, log: Log) -> Iterator[Item]:
    run = Run(columns=("json",), heads=1)
    known: dict[str, Any] = {}
    index = 0
    try:
        for name, value in members(source, ("results",)):
            if name == "results":
                index += 1
                _add_result(run, index, value, log)
            else:
                known[name] = value
    except CutOff as error:
        run.failure = str(error)
    _describe(run, known, log)
    version = known.get("nccl_tests_version")
    yield from judge(run, f"nccl-tests {version}" if isinstance(version, str) else "nccl-tests", log, lambda *_: {})


def _add_result(run: Run, index: int, value: object, log: Log) -> None:
    row = _row(index, value)
    if row is None:
        log.drop(index, str(value), "a result without size, count, type and two placements")
    else:
        run.rows.append(row)


def _row(index: int, value: object) -> Row | None:
    """One element of `results`."""
    if not isinstance(value, dict):
        return None
    size, count, dtype = value.get("size"), value.get("count"), value.get("type")
    results = [_result(value.get(name)) for name in ("out_of_place", "in_place")]
    if (
        type(size) is not int
        or type(count) is not int
        or not isinstance(dtype, str)
        or not 0 <= size < MOST
        or not 0 <= count < MOST
    ):
        return None
    if results[0] is None or results[1] is None:
        return None
    redop = value.get("redop")
    root = str(value.get("root", "")).strip()
    text = f"{size} {count} {dtype} {redop} {root}"
    return Row(
        line=index,
        text=text,
        size=size,
        count=count,
        dtype=dtype.strip(),
        redop=redop.strip() if isinstance(redop, str) else None,
        root=int(root) if _ROOT.fullmatch(root) else None,
        results=(results[0], results[1]),
    )


def _result(value: object) -> Result | None:
    if not isinstance(value, dict):
        return None
    wrong = exact(value.get("nwrong"))
    time = value.get("time", value.get("cpu_time"))
    return Result(exact(time), exact(value.get("alg_bw")), exact(value.get("bus_bw")), wrong.value if wrong else None)


def _describe(run: Run, known: Mapping[str, Any], log: Log) -> None:
    """Everything beside the results."""
    if known.get("version") not in _KNOWN_VERSIONS:
        log.warn(f"version {known.get('version')} of the JSON is unknown: read like version {_KNOWN_VERSIONS[-1]}")
    config = _mapping(known.get("config"))
    run.params = {ours: str(config[name])[:18] for name, ours in _PARAMS.items() if name in config}
    run.variables = allowed(_variables(known.get("env")))
    if "nccl_version" in known:
        run.versions["library"] = f"NCCL version {str(known['nccl_version'])[:40]}"
    for number, line in enumerate(_sequence(config.get("devices"))):
        run.rank_lines += _rank_line(number, _mapping(line))
    _spread(run, config)
    run.collective = _collective(_sequence(known.get("args")))
    start = known.get("start_time")
    run.taken_at = start[:40] if isinstance(start, str) else ""
    _judge_end(run, known)


def _judge_end(run: Run, known: Mapping[str, Any]) -> None:
    bounds = _mapping(known.get("out_of_bounds"))
    run.ended = "end_time" in known or bool(bounds)
    if _said(bounds.get("okay", bounds.get("ok"))) is False:
        run.failure = f"{bounds.get('count', 'some')} results out of bounds"
    if errors := _sequence(known.get("errors")):
        run.failure = run.failure or f"{len(errors)} errors, first: {str(errors[0])[:80]}"


def _spread(run: Run, config: Mapping[str, Any]) -> None:
    """Without all devices in the list (several per process), the ranks that it shows are a lower bound."""
    per_process = 1
    for name in ("nthreads", "ngpus"):
        value = config.get(name)
        per_process *= value if type(value) is int and 0 < value < 1000 else 1
    if per_process > 1 and len(run.rank_lines) and max(line.rank for line in run.rank_lines) + 1 == len(run.rank_lines):
        last = run.rank_lines[-1]
        ranks = len(run.rank_lines) * per_process
        run.rank_lines = [line for line in run.rank_lines if line.rank == 0]
        run.rank_lines.append(RankLine(ranks - 1, last.group, last.host, last.device, last.bus, last.name))


def _rank_line(number: int, line: Mapping[str, Any]) -> list[RankLine]:
    def whole(name: str, default: int) -> int:
        value = str(line.get(name, default)).strip()
        return int(value) if value.isdecimal() and len(value) < 10 else default

    if not line:
        return []
    name = str(line.get("device_info", "")).strip()[:80]
    bus = str(line.get("device_hex", "")).strip()[:20]
    return [
        RankLine(whole("rank", number), whole("group", 0), str(line.get("hostname", "")), whole("device", 0), bus, name)
    ]


def _variables(env: object) -> list[tuple[str, str]]:
    """`env` as pairs: a list of NAME=value, or an object."""
    if isinstance(env, dict):
        return [(str(name), str(value)) for name, value in env.items()]
    pairs = (str(entry).split("=", 1) for entry in _sequence(env))
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]


def _collective(args: list[Any]) -> str | None:
    program = str(args[0]).rsplit("/", 1)[-1] if args else ""
    return collective_name(program.removesuffix("_mpi").removesuffix("_perf")) if "_perf" in program else None


def _said(value: object) -> bool | None:
    """A boolean, or the text of one."""
    return {"true": True, "false": False}.get(str(value).lower())


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _recognises(head: str) -> bool:
    return head.lstrip().startswith("{") and (
        '"nccl_version"' in head or '"minimum_bytes"' in head or '"out_of_place"' in head
    )


IMPORTER = Importer("nccl_tests_json", _recognises, _read)
