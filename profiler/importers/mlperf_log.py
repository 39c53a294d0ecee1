"""MLPerf training logs (`:::MLLOG {json}`): seconds per step from the blocks that a run marks.

A block of training says how many samples had been seen at its start and its end; with the global batch that is a
number of steps, and the stamps are in ms. A block shorter than `LEAST_MS` or with a broken number of steps says
nothing. Blocks contain data loading and logging, and the first one contains start-up: it is flagged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from profiler.importers.base import Fact, Importer, Item, Log, Verdict
from profiler.importers.json_stream import json_line
from profiler.importers.source import Source
from profiler.measurement import Environment, Measurement

MARK = ":::MLLOG "
LEAST_MS = 100
LONGEST_MS = 1e9
_FACTS = (
    "global_batch_size",
    "gradient_accumulation_steps",
    "opt_name",
    "train_samples",
    "submission_benchmark",
    "seed",
)


class _Log:
    """What was said so far."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.start: tuple[float, float] | None = None
        self.blocks = 0


def _read(source: Source, log: Log) -> Iterator[Item]:
    state = _Log()
    ended = False
    for number, line in source.lines():
        _, mark, text = line.partition(MARK)
        values = json_line(text) if mark else None
        if not isinstance(values, dict):
            if line.strip():
                log.skip(number, line, "no entry of the log, or a broken one")
            continue
        key = values.get("key")
        ended = ended or key == "run_stop"
        if key == "block_start":
            state.start = _at(values)
        elif key == "block_stop":
            yield from _block(number, line, values, state, log)
        elif key in _FACTS:
            state.known.setdefault(str(key), _short(values.get("value")))
    if not ended:
        log.warn("the log has no run_stop: an excerpt, or a run that was cut off")
        log.judge(Verdict.INCOMPLETE)
    facts = {name: value for name, value in state.known.items() if isinstance(value, str | int | float)}
    if facts:
        yield Fact("run", str(facts.get("submission_benchmark", "unnamed")), facts)


def _at(values: Mapping[str, Any]) -> tuple[float, float] | None:
    """Stamp in ms and samples seen."""
    metadata = values.get("metadata")
    samples = metadata.get("samples_count") if isinstance(metadata, dict) else None
    stamp: Any = values.get("time_ms")
    numbers = [float(value) for value in (stamp, samples) if isinstance(value, int | float) and 0 <= value < 1e15]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def _short(value: object) -> object:
    return value[:200] if isinstance(value, str) else value


def _block(number: int, line: str, values: Mapping[str, Any], state: _Log, log: Log) -> Iterator[Measurement]:
    start, end = state.start, _at(values)
    state.start = None
    batch = state.known.get("global_batch_size")
    if start is None or end is None or type(batch) is not int or not 0 < batch < 1e9:
        log.drop(number, line, "a block without start, samples or global batch")
        return
    milliseconds, steps = end[0] - start[0], (end[1] - start[1]) / batch
    if not LEAST_MS <= milliseconds < LONGEST_MS or steps < 1 or steps != round(steps):
        log.drop(number, line, f"{steps:g} steps in {milliseconds:g} ms say nothing")
        return
    state.blocks += 1
    log.take()
    case: dict[str, Any] = {"model": str(state.known.get("submission_benchmark", "unknown")), "global_batch": batch}
    if log.assumptions.ranks:
        case["devices"] = log.assumptions.ranks
    yield Measurement(
        micro="step",
        case=case,
        phase="step",
        execution="",
        device_s=(milliseconds * 1e-3 / steps,),
        host_s=(),
        inner=int(steps),
        device=log.assumptions.device or "unknown",
        environment=Environment({"tool": "MLPerf training"}, {}),
        run_id=log.run_id,
        taken_at="",
        stopped="imported",
        flags=("first-block",) if state.blocks == 1 else (),
    )


def _recognises(head: str) -> bool:
    return MARK + '{"' in head


IMPORTER = Importer("mlperf_log", _recognises, _read)
