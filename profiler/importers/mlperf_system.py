"""MLPerf's system description: what a machine is made of, as one fact. Numbers and free text are kept as written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from profiler.importers.base import Fact, Importer, Item, Log, Verdict
from profiler.importers.json_stream import CutOff, members
from profiler.importers.source import Source

_KEPT = re.compile(
    r"(?:accelerator|host|number_of_nodes|framework|operating_system|system_name|system_type|other_software)\w*"
)
_COUNTS = ("number_of_nodes", "accelerators_per_node", "host_processors_per_node")


def _read(source: Source, log: Log) -> Iterator[Item]:
    values: dict[str, object] = {}
    try:
        for index, (name, value) in enumerate(members(source), start=1):
            if not _KEPT.match(name) or value in ("", "N/A", None):
                log.skip(index, f"{name}: {value}", "empty, or not about the machine")
            elif name in _COUNTS:
                _count(index, name, value, values, log)
            else:
                values[name] = str(value)[:300]
                log.take()
    except CutOff as error:
        log.warn(str(error))
        log.judge(Verdict.INCOMPLETE)
    if values:
        yield Fact("system", str(values.get("system_name", "unnamed")), values)


def _count(index: int, name: str, value: object, values: dict[str, object], log: Log) -> None:
    text = str(value).strip()
    if text.isdecimal() and len(text) < 8:
        values[name] = int(text)
        log.take()
    else:
        log.drop(index, f"{name}: {value}", "no whole number")


def _recognises(head: str) -> bool:
    return head.lstrip().startswith("{") and '"accelerator_model_name"' in head and '"number_of_nodes"' in head


IMPORTER = Importer("mlperf_system", _recognises, _read)
