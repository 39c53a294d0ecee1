"""Tidy tables of training steps: model, n_gpus, how it is split (dp, tp, pp), batches, step_ms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from profiler.importers.base import Importer, Item, Log
from profiler.importers.printed import printed
from profiler.importers.source import Source
from profiler.importers.tidy import Cells, head_columns, rows, time_column, whole
from profiler.measurement import Environment, Measurement

_WHOLE = {
    "n_gpus": "devices",
    "devices": "devices",
    "nnodes": "nodes",
    "nodes": "nodes",
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "local_batch": "local_batch",
    "global_batch": "global_batch",
    "seq": "seq",
    "hidden": "hidden",
    "heads": "heads",
    "layers": "layers",
}
_TEXTS = ("placement", "strategy")
_IDENTITY = ("source", "cluster", "software")


def _read(source: Source, log: Log) -> Iterator[Item]:
    for row in rows(source, log):
        case, why = _case(row)
        if why:
            log.drop(row.line, row.text, why)
            continue
        log.take()
        yield Measurement(
            micro="step",
            case=case,
            phase="step",
            execution="",
            device_s=(row.seconds,),
            host_s=(),
            inner=1,
            device=row.text_of("gpu", "device") or log.assumptions.device or "unknown",
            environment=Environment({name: row.values[name] for name in _IDENTITY if name in row.values}, {}),
            run_id=log.run_id,
            taken_at="",
            stopped="imported",
            flags=row.flags,
        )


def _case(row: Cells) -> tuple[dict[str, Any], str]:
    """What was run, and why it cannot be taken (or an empty text)."""
    case: dict[str, Any] = {"model": row.text_of("model")}
    for column, name in _WHOLE.items():
        if column in row.values:
            value = whole(row.values[column])
            if not value:
                return {}, f"{column} '{row.values[column][:40]}' is no positive whole number"
            case[name] = value
    case |= {name: row.values[name] for name in _TEXTS if name in row.values}
    if sync := row.text_of("sync_ms"):
        number = printed(sync)
        if number is None:
            return {}, f"sync_ms '{sync[:40]}' is no number"
        case["sync_s"] = number.value * 1e-3
    if not case["model"] or "devices" not in case:
        return {}, "no model, or no number of devices"
    split = case.get("dp", 1) * case.get("tp", 1) * case.get("pp", 1)
    if {"dp", "tp", "pp"} <= set(case) and split != case["devices"]:
        return {}, f"dp x tp x pp is {split}, not {case['devices']} devices"
    return case, ""


def _recognises(head: str) -> bool:
    columns = head_columns(head)
    wanted = "model" in columns and ("n_gpus" in columns or "devices" in columns)
    return wanted and time_column(columns) is not None and "op" not in columns


IMPORTER = Importer("tidy_steps", _recognises, _read)
