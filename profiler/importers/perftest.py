"""perftest (ib_write_bw, ib_read_bw, ib_send_bw, ..._lat): text, and the JSON of 2023 that is none.

The column says MB/sec and means MiB: perftest divides by 0x100000; with --report_gbits it divides by 1.25e8 bytes.
The message rate checks it: bytes x Mpps = average bandwidth. Client and server may write into one file, so the same
row can come twice: the second is dropped. Latencies are half a round trip, in us. The JSON of 2023 has bare names
and trailing commas (linux-rdma/perftest#216), so `name: value` lines are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from profiler.importers.base import Importer, Item, Log, Verdict
from profiler.importers.printed import SLACK, printed
from profiler.importers.source import Source
from profiler.measurement import Environment, Measurement

_TEST = re.compile(
    r"\b(RDMA_Write|RDMA_Read|Send|Write|Read|Atomic\w*|Raw_Ethernet)[ _](?:Post[ _]List[ _])?(BW|Latency|bw|lat)\w*\b"
)
_SETTING = re.compile(
    r"(Device|Number of qps|Transport type|Connection type|Link type|Mtu|TX depth|PCIe relax order)\s*: (\S+)"
)
_FIELD = re.compile(r'^\s*"?([\w.#\[\]/-]+)"?\s*:\s*"?([^",]+?)"?\s*,?\s*$')
MIB = 2.0**20
GBIT_BYTES = 1.25e8
FASTEST_BYTES_PER_S = 1e12


class _Run:
    """The head that is in force and the sizes that were taken."""

    def __init__(self) -> None:
        self.test = ""
        self.settings: dict[str, str] = {}
        self.columns = ""
        self.seen: set[int] = set()
        self.ended = False

    @property
    def gbits(self) -> bool:
        """Whether bandwidths are in Gb/s."""
        return "Gb/sec" in self.columns

    @property
    def latency(self) -> bool:
        """Whether times are printed, not bandwidths."""
        return "t_avg" in self.columns or "t_typical" in self.columns


def _read(source: Source, log: Log) -> Iterator[Item]:
    if source.head.lstrip().startswith("{"):
        yield from _bare_json(source, log)
        return
    run = _Run()
    for number, line in source.lines():
        text = line.strip()
        if match := _TEST.search(text):
            run.test = f"{match[1]}_{match[2]}".lower()
        elif text.startswith("#bytes"):
            run.columns = text
        elif text[:1].isdecimal() and run.columns:
            yield from _row(number, text, run, log)
        elif found := _SETTING.findall(text):
            run.settings.update(found)
        elif text.startswith("---"):
            run.ended = bool(run.seen)
        elif text:
            log.skip(number, line, "no part of the table")
    if not run.ended:
        log.judge(Verdict.INCOMPLETE)


def _row(number: int, text: str, run: _Run, log: Log) -> Iterator[Measurement]:
    words = text.split()
    numbers = [printed(word) for word in words]
    values = [value.value for value in numbers if value is not None]
    wanted = len(
        re.findall(
            r"#?\w+(?: \w+)?(?:\[[^\]]*\])?",
            run.columns.replace("BW peak", "BW_peak").replace("BW average", "BW_average"),
        )
    )
    if len(values) != len(words) or len(values) != wanted or not words[0].isdecimal() or not words[1].isdecimal():
        log.drop(number, text, f"not the {wanted} numbers that the head announces: cut off?")
        return
    size, iterations = int(values[0]), int(values[1])
    if size in run.seen:
        log.drop(number, text, "the size was taken already: both ends wrote into the file")
        return
    why, seconds = _latency(values) if run.latency else _bandwidth(size, values, run)
    if why:
        log.drop(number, text, why)
        return
    run.seen.add(size)
    log.take()
    yield _measured(run, size, seconds, max(1, iterations), log)


def _bandwidth(size: int, values: list[float], run: _Run) -> tuple[str, float]:
    """Why a row cannot be taken (or an empty text), and seconds per message."""
    peak, average = values[2], values[3]
    rate = average * (GBIT_BYTES if run.gbits else MIB)
    if not size or not 0 < rate < FASTEST_BYTES_PER_S:
        return "no positive size and bandwidth, or faster than any link", 0.0
    if peak and peak < average * (1 - SLACK):
        return "the average is above the peak", 0.0
    if len(values) > 4 and abs(values[4] * 1e6 * size - rate) > max(SLACK * rate, 0.01 * MIB, 0.5 * size):
        return "the message rate does not fit the bandwidth", 0.0
    return "", size / rate


def _latency(values: list[float]) -> tuple[str, float]:
    """Columns: bytes, iterations, t_min, t_max, t_typical, t_avg, ..."""
    if len(values) < 6:
        return "no average latency", 0.0
    least, most, average = values[2], values[3], values[5]
    if not 0 < least <= average <= most:
        return "the average is not between the least and the largest", 0.0
    return "", average * 1e-6


def _measured(run: _Run, size: int, seconds: float, iterations: int, log: Log) -> Measurement:
    pattern = "one_way" if run.latency else "one_way_window"
    identity = {
        "tool": "perftest",
        **{name: run.settings[name][:40] for name in sorted(run.settings) if name != "Device"},
    }
    if iterations < 5:
        log.warn(f"few iterations: each time is the mean of {iterations}")
    return Measurement(
        micro="rdma",
        case={"operation": run.test, "bytes": size, "pattern": pattern},
        phase=run.test,
        execution="",
        device_s=(seconds,),
        host_s=(),
        inner=iterations,
        device=log.assumptions.device or run.settings.get("Device", "unknown")[:40],
        environment=Environment(identity, {}),
        run_id=log.run_id,
        taken_at="",
        stopped="imported",
    )


def _bare_json(source: Source, log: Log) -> Iterator[Measurement]:
    fields: dict[str, str] = {}
    run = _Run()
    last = ""
    for number, line in source.lines():
        last = line.strip() or last
        match = _FIELD.match(line[:1000])
        if match and len(fields) < 1000:
            fields[match[1]] = match[2].strip()
        elif line.strip() and line.strip(" \t,{}") and "{" not in line:
            log.skip(number, line, "no name and value")
    if last != "}":
        log.judge(Verdict.INCOMPLETE)
    if match := _TEST.search(fields.get("test", "")):
        run.test = f"{match[1]}_{match[2]}".lower()
    run.settings = {
        name: fields[key]
        for name, key in (("Mtu", "Mtu"), ("Device", "Device"), ("Link type", "Link_type"))
        if key in fields
    }
    yield from _from_fields(fields, run, log)


def _from_fields(fields: Mapping[str, str], run: _Run, log: Log) -> Iterator[Measurement]:
    text = ", ".join(f"{name} {fields[name]}" for name in ("MsgSize", "t_avg", "BW_average") if name in fields)
    names: tuple[str, ...] = ("MsgSize", "n_iterations", "t_min", "t_max", "t_typical", "t_avg")
    run.columns = "t_avg" if "t_avg" in fields else ""
    if not run.latency:
        names = ("MsgSize", "n_iterations", "BW_peak", "BW_average", "MsgRate")
    numbers = [printed(fields.get(name, "")) for name in names]
    values = [number.value for number in numbers if number is not None]
    if len(values) != len(names):
        log.drop(0, text, "a number is missing")
        log.judge(Verdict.INCOMPLETE)
        return
    why, seconds = _latency(values) if run.latency else _bandwidth(int(values[0]), values, run)
    if why:
        log.drop(0, text, why)
        return
    log.take()
    yield _measured(run, int(values[0]), seconds, max(1, int(values[1])), log)


def _recognises(head: str) -> bool:
    table = re.search(r"^\s*#bytes\s+#iterations", head, re.MULTILINE)
    bare = head.lstrip().startswith("{") and "test_info" in head
    return bool(table or bare) and bool(_TEST.search(head))


IMPORTER = Importer("perftest", _recognises, _read)
