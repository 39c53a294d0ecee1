"""Tidy tables of kernels: op, phase, dtype, shapes, time_ms; see `kernel_cases` for how a shape becomes a layer.

A row whose operation is a layer of the oracle becomes a measurement of that layer's microbenchmark, so that it fits
like one of our own. A row that is none (a batched product, a recurrent layer, an operation with a text for a shape)
keeps its operation's name as microbenchmark and its cells as case. `bwd` of a convolution or a linear layer is
backward-data and backward-weight together: it gets a microbenchmark of its own (`conv_backward`), because it must
never be added to, or fitted with, the split ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from oracle.errors import BadInput
from oracle.execution import Execution
from oracle.pricing import LayerCall
from profiler.case import Case
from profiler.importers.base import Importer, Item, Log
from profiler.importers.kernel_cases import RAW_PHASES, Unusable, call_of, execution_of
from profiler.importers.source import Source
from profiler.importers.tidy import Cells, head_columns, rows, time_column
from profiler.measurement import Environment, Measurement

_IDENTITY = ("source", "software")
_NOT_A_SHAPE = frozenset(
    """
    source gpu device software op phase dtype layout row_id calib main_kernel n_kernels how_measured trace_step op_index
    transform_ms time_ms time_us time_s time_ns
    """.split()  # noqa: SIM905 - a column of quoted names is harder to read
)
FASTEST_FLOP_PER_S = 1e16
OUT_OF_MEMORY_MS = 1e7
"""What some tables write where the device had not enough memory."""
REMEMBERED = 10_000


def _read(source: Source, log: Log) -> Iterator[Item]:
    environments: dict[tuple[tuple[str, str], ...], Environment] = {}
    for row in rows(source, log):
        about = tuple((name, row.values[name]) for name in _IDENTITY if name in row.values)
        if len(environments) > REMEMBERED:
            environments.clear()
        environment = environments.setdefault(about, Environment(dict(about), {}))
        try:
            measured = _measured(row, environment, log)
        except BadInput as error:
            log.drop(row.line, row.text, str(error))
            continue
        log.take()
        yield measured


def _measured(row: Cells, environment: Environment, log: Log) -> Measurement:
    """The measurement of a row.

    Raises:
        BadInput: the row cannot be used; the text says why.
    """
    if row.seconds >= OUT_OF_MEMORY_MS * 1e-3:
        raise Unusable("the mark of a device that was out of memory")
    execution = execution_of(row)
    call = call_of(row)
    if call is None:
        micro, case, phase = _as_it_is(row)
    else:
        _check_rate(call, execution, row.seconds)
        both = row.text_of("phase") in ("bwd", "backward") and call.layer.kind in ("conv", "linear")
        micro = f"{call.layer.kind}_backward" if both else call.layer.kind
        case, phase = Case(call, execution).to_dict(), "backward" if both else str(call.phase)
    return Measurement(
        micro=micro,
        case=case,
        phase=phase,
        execution=_kernel_key(execution),
        device_s=(row.seconds,),
        host_s=(),
        inner=1,
        device=row.text_of("gpu", "device") or log.assumptions.device or "unknown",
        environment=environment,
        run_id=log.run_id,
        taken_at="",
        stopped="imported",
        flags=(*row.flags, *_converted(row)),
    )


@lru_cache(maxsize=256)
def _kernel_key(execution: Execution) -> str:
    return execution.kernel_key


def _as_it_is(row: Cells) -> tuple[str, dict[str, object], str]:
    """A row that is no layer: its cells are its case."""
    case: dict[str, object] = {}
    for name, text in row.values.items():
        if name not in _NOT_A_SHAPE:
            number = row.whole(name)
            case[name] = number if number is not None else text[:500]
    if not case:
        raise Unusable("no shape")
    return row.text_of("op")[:100], case, RAW_PHASES[row.text_of("phase")]


def _check_rate(call: LayerCall, execution: Execution, seconds: float) -> None:
    rate = call.layer.work(call.phase, call.samples, execution).flop / seconds
    if rate > FASTEST_FLOP_PER_S:
        raise Unusable(f"{rate:.3g} FLOP/s is faster than any device")


def _converted(row: Cells) -> tuple[str, ...]:
    """Whether a conversion of the layout is inside the time."""
    text = row.text_of("transform_ms")
    return ("layout-converted",) if text not in ("", "0", "0.0") or "converted" in row.text_of("layout") else ()


def _recognises(head: str) -> bool:
    columns = head_columns(head)
    return {"op", "phase", "dtype"} <= set(columns) and time_column(columns) is not None


IMPORTER = Importer("tidy_kernels", _recognises, _read)
