"""Tidy tables of collectives: collective, bytes (the whole buffer), nranks, nnodes, dtype, time_us, and where from.

`source`, `interconnect` and `tag` (an environment or a job) become the identity: rows of two tags are never one curve.
"""

from __future__ import annotations

from collections.abc import Iterator

from profiler.importers.base import Importer, Item, Log
from profiler.importers.collectives import BUS_FACTORS, DTYPES, Setting, collective_name, transfer_measurement
from profiler.importers.nccl_run import FASTEST_GB_PER_S_OF_ANY
from profiler.importers.source import Source
from profiler.importers.tidy import Cells, head_columns, rows, time_column
from profiler.measurement import Environment

IDENTITY = ("source", "interconnect", "tag", "library", "software")
"""Columns that say where a row is from."""
FASTEST_S = 5e-7
REMEMBERED = 10_000


def _read(source: Source, log: Log) -> Iterator[Item]:
    environments: dict[tuple[tuple[str, str], ...], Environment] = {}
    for row in rows(source, log):
        why, setting, size, dtype = _row(row, log)
        if setting is None:
            log.drop(row.line, row.text, why)
            continue
        about = tuple((name, row.values[name]) for name in IDENTITY if name in row.values)
        if len(environments) > REMEMBERED:
            environments.clear()
        environment = environments.setdefault(about, Environment(dict(about), {}))
        log.take()
        log.ranks.add(setting.ranks)
        shared = Setting(
            setting.collective,
            setting.ranks,
            setting.nodes,
            setting.device,
            environment,
            log.run_id,
            flags=setting.flags,
        )
        extra = {"in_place": row.values["in_place"].lower() in ("1", "true")} if "in_place" in row.values else {}
        yield transfer_measurement(shared, size, dtype, row.seconds, 1, **extra)


_NO_ENVIRONMENT = Environment({}, {})


def _row(row: Cells, log: Log) -> tuple[str, Setting | None, int, str]:
    """Why a row cannot be taken (or an empty text), its setting without environment, bytes and data type."""
    collective = collective_name(row.text_of("collective"))
    ranks, size = row.whole("nranks", "ranks"), row.whole("bytes")
    nodes = row.whole("nnodes", "nodes")
    dtype = DTYPES.get(row.text_of("dtype").lower(), ("", 0))
    if collective is None:
        return f"unknown collective '{row.text_of('collective')[:40]}'", None, 0, ""
    if ranks is None or ranks < 2 or (nodes is not None and not 1 <= nodes <= ranks):
        return "fewer than two ranks, no number of ranks, or more nodes than ranks", None, 0, ""
    if not size:
        return "size 0, or no whole number of bytes", None, 0, ""
    if not dtype[0]:
        return f"unknown data type '{row.text_of('dtype')[:40]}'", None, 0, ""
    busbw = BUS_FACTORS[collective](ranks) * size / row.seconds
    if row.seconds < FASTEST_S or busbw > FASTEST_GB_PER_S_OF_ANY * 1e9:
        return f"{row.seconds:.3g} s and busbw {busbw / 1e9:.4g} GB/s are faster than any link", None, 0, ""
    device = row.text_of("gpu", "device") or log.assumptions.device or "unknown"
    setting = Setting(collective, ranks, nodes, device, _NO_ENVIRONMENT, log.run_id, flags=row.flags)
    return "", setting, size, dtype[0]


def _recognises(head: str) -> bool:
    columns = head_columns(head)
    wanted = "collective" in columns and "bytes" in columns and ("nranks" in columns or "ranks" in columns)
    return wanted and time_column(columns) is not None


IMPORTER = Importer("tidy_collectives", _recognises, _read)
