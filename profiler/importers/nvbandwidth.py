"""nvbandwidth: bandwidths and latencies between devices and host, from its JSON or its text, as facts.

The unit is in the description of each test case (GB/s or ns). Cells are texts; N/A, and 0.00 on the diagonal, mean
that nothing was measured. The sum is a check: a matrix whose cells do not add up to it is dropped. Version 0.8 loses
remote devices in its multi-node JSON (NVIDIA/nvbandwidth#54). Of a document that is cut off only the device list in
its head is taken. The text form prints `Running NAME.`, the description, the matrix and `SUM NAME value`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from profiler.importers.base import Fact, Importer, Item, Log, Verdict
from profiler.importers.json_stream import CutOff, members
from profiler.importers.printed import printed
from profiler.importers.source import Source

_DEVICE = re.compile(r'^\s*"?(?:Device )?\d+: ([^("]{1,80}?)\s*\(')
_DESCRIPTION = re.compile(r'"bandwidth_description"')
_UNITS = {"GB/s": ("bandwidth_bytes_per_s", 1e9), "ns": ("latency_s", 1e-9), "us": ("latency_s", 1e-6)}


@dataclass
class _Case:
    """One test case."""

    name: str = ""
    line: int = 0
    description: str = ""
    rows: list[list[str]] = field(default_factory=list)
    total: str = ""
    status: str = "passed"


def _facts(case: _Case, devices: list[str], version: str, log: Log) -> Iterator[Fact]:
    """The cells of a finished test case."""
    if not case.name:
        return
    unit = next((unit for unit in _UNITS if f"({unit})" in case.description), None)
    if case.status.lower() not in ("passed", "pass"):
        log.drop(case.line, case.name, f"status {case.status}")
        return
    cells = [
        (i, j, number) for i, row in enumerate(case.rows) for j, cell in enumerate(row) if (number := printed(cell))
    ]
    if unit is None or not cells:
        log.drop(case.line, case.name, "no unit that is known, or no numbers: cut off?")
        return
    total = printed(case.total)
    bound = sum(number.half for *_, number in cells) + (total.half if total else 0) + 1e-9
    if total is not None and abs(sum(number.value for *_, number in cells) - total.value) > bound:
        log.drop(case.line, case.name, f"the cells do not add up to the sum of {case.total}")
        return
    name, scale = _UNITS[unit]
    log.take()
    for i, j, number in cells:
        if number.value > 0:
            about = {"test": case.name, "row": i, "column": j, "version": version, name: number.value * scale}
            if devices:
                about["device"] = devices[0]
            yield Fact("bandwidth", f"{case.name}/{i}-{j}", about)


def _from_json(source: Source, log: Log) -> Iterator[Item]:
    known: Mapping[str, Any] = {}
    try:
        known = next(
            (value for name, value in members(source) if name == "nvbandwidth" and isinstance(value, dict)), {}
        )
    except CutOff as error:
        log.warn(str(error))
        log.judge(Verdict.INCOMPLETE)
        if _DESCRIPTION.search(source.head):
            log.drop(0, "testcases", "the document is cut off: a matrix may be, too")
    listed = known.get("GPU Device list") if known else source.head.splitlines()
    texts = [str(entry) for entry in listed] if isinstance(listed, list) else []
    devices = [match[1] for text in texts if (match := _DEVICE.match(text))]
    version = str(known.get("git_version", ""))[:40]
    cases = known.get("testcases")
    for number, value in enumerate(cases if isinstance(cases, list) else [], start=1):
        yield from _facts(_json_case(number, value), devices, version, log)
    yield from _machine(devices, version, log)


def _json_case(number: int, value: object) -> _Case:
    if not isinstance(value, dict):
        return _Case(name=f"test case {number}", line=number, status="no object")
    matrix = value.get("bandwidth_matrix")
    rows = [row if isinstance(row, list) else [] for row in matrix] if isinstance(matrix, list) else []
    return _Case(
        name=str(value.get("name", f"test case {number}"))[:80],
        line=number,
        description=str(value.get("bandwidth_description", ""))[:200],
        rows=[[str(cell) for cell in row] for row in rows],
        total=str(value.get("sum", "")),
        status=str(value.get("status", "passed"))[:80],
    )


def _from_text(source: Source, log: Log) -> Iterator[Item]:
    case, devices, version = _Case(), list[str](), ""
    for number, line in source.lines():
        text = line.strip()
        if match := re.match(r"Running (\S+?)\.?$", text):
            yield from _facts(case, devices, version, log)
            case = _Case(name=match[1][:80], line=number, status="cut off")
        elif match := re.match(r"SUM (\S+) (\S+)", text):
            case.total, case.status = match[2], "passed" if match[1] == case.name else "mixed up"
            yield from _facts(case, devices, version, log)
            case = _Case()
        elif match := re.match(r"nvbandwidth Version: (\S+)", text):
            version = match[1][:40]
        elif (match := _DEVICE.match(text)) and len(devices) < 4096:
            devices.append(match[1])
        elif not _into_case(text, case) and text:
            log.skip(number, line, "no part of a matrix")
    if case.name:
        log.judge(Verdict.INCOMPLETE)
    yield from _facts(case, devices, version, log)
    yield from _machine(devices, version, log)


def _into_case(text: str, case: _Case) -> bool:
    """Take a line of a test case's text; False where it is none."""
    if re.search(r"\((?:GB/s|ns|us)\)", text):
        case.description = text
    elif text.startswith("Waived"):
        case.status = "waived"
    elif re.match(r"\d+(\s+(?:N/A|\d+\.\d+))+$", text) and len(case.rows) < 4096:
        case.rows.append(text.split()[1:])
    else:
        return False
    return True


def _machine(devices: list[str], version: str, log: Log) -> Iterator[Fact]:
    if devices:
        names = sorted(set(devices))
        if len(names) > 1:
            log.warn(f"mixed devices: {' + '.join(names)}")
        yield Fact("machine", " + ".join(names), {"devices": devices, "version": version})


def _read(source: Source, log: Log) -> Iterator[Item]:
    return _from_json(source, log) if source.head.lstrip().startswith("{") else _from_text(source, log)


def _recognises(head: str) -> bool:
    return '"nvbandwidth"' in head or bool(re.search(r"^nvbandwidth Version:", head, re.MULTILINE))


IMPORTER = Importer("nvbandwidth", _recognises, _read)
