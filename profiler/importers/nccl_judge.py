"""From a run of nccl-tests, text or JSON, to measurements: every row is checked, and what fails is dropped with why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from profiler.importers.base import Log, Verdict
from profiler.importers.collectives import DTYPES, Setting, transfer_measurement
from profiler.importers.environments import SIZES
from profiler.importers.nccl_run import (
    Row,
    Run,
    choose_ranks,
    device_name,
    find_collective,
    find_nodes,
    identity,
    range_warning,
    result_error,
    row_error,
    shares_device,
    stated_ranks,
)
from profiler.measurement import Environment, Measurement

FEW_ITERATIONS = 5
SLOW_START_BYTES = 1 << 26
PLACEMENTS = ("out of place", "in place")

Extra = Callable[[str, int], dict[str, str]]
"""(collective, bytes) -> further keys of a case, such as the algorithm that NCCL said it chose."""


def judge(run: Run, tool: str, log: Log, extra: Extra) -> Iterator[Measurement]:
    """The measurements of a run.

    Args:
        run: everything that was read of it.
        tool: nccl-tests or rccl-tests, with its version where it is known.
        log: hears of every row that is left out.
        extra: further keys for the case of a row.
    """
    if run.empty:
        return
    verdict = _verdict(run, log)
    log.judge(verdict)
    if not run.rows:
        return
    setting, why = _setting(run, tool, verdict, log)
    if setting is None:
        for row in run.rows:
            log.drop(row.line, row.text, why)
        return
    log.ranks.add(setting.ranks)
    slow = _slow_start(run)
    for row in run.rows:
        flags = ("first-row-slow",) if slow is row else ()
        yield from _row(row, run.iterations or 1, setting, log, {**extra(setting.collective, row.size), "flags": flags})


def _verdict(run: Run, log: Log) -> Verdict:
    if run.failure:
        log.warn(f"the run failed: {run.failure}")
        return Verdict.FAILED
    warning = range_warning(run)
    if warning:
        log.warn(warning)
    if not run.columns:
        log.warn("the head of the table is missing")
    if not run.ended:
        log.warn("the end of the table is missing: the run was cut off")
    whole = run.columns and run.ended and run.rows and not warning
    return Verdict.COMPLETE if whole else Verdict.INCOMPLETE


def is_mixed(run: Run) -> bool:
    """Whether two runs wrote into one stream: several heads before the rows, and sizes that do not rise.

    A build without MPI starts N tests of one process each instead of one of N (NVIDIA/nccl-tests#107).
    """
    firsts = [line.rank for line in run.rank_lines].count(0)
    if max(run.heads, firsts) < 2:
        return False
    sizes = [row.size for row in run.rows if row.size]
    return any(after <= before for before, after in pairwise(sizes))


def _setting(run: Run, tool: str, verdict: Verdict, log: Log) -> tuple[Setting | None, str]:
    """What the rows share, or why none of them can be taken."""
    if is_mixed(run):
        return None, "two runs wrote into one stream: which row is whose cannot be known (a build without MPI?)"
    collective = run.collective or find_collective(run, run.rows) or log.assumptions.collective
    if collective is None:
        return None, "the log does not say which collective it measured; name it"
    ranks, warning = choose_ranks(run, collective, log.assumptions.ranks)
    if warning:
        log.warn(warning)
    if ranks is None:
        return None, warning or "the log does not say how many ranks took part; give their number"
    stated, whole = stated_ranks(run)
    flags = _flags(run, verdict, log)
    nodes = find_nodes(run, ranks) if stated == ranks or not whole else None
    environment = Environment(
        identity(run, tool, log.assumptions.host_key),
        {
            **{name: value for name, value in run.params.items() if name not in ("minBytes", "maxBytes", "step")},
            **{name: value for name, value in run.variables.items() if name in SIZES},
        },
    )
    device = device_name(run) or log.assumptions.device or "unknown"
    if device == "unknown":
        log.warn("the log does not name the device")
    nodes = nodes if nodes is not None else log.assumptions.nodes
    return Setting(collective, ranks, nodes, device, environment, log.run_id, run.taken_at, flags), ""


def _flags(run: Run, verdict: Verdict, log: Log) -> tuple[str, ...]:
    """What a reader has to know of every row of a run."""
    flags = [] if verdict is Verdict.COMPLETE else [f"run-{verdict}"]
    if run.iterations is not None and run.iterations < FEW_ITERATIONS:
        flags.append("few-iterations")
        log.warn(f"few iterations: each time is the mean of {run.iterations}")
    if "+" in device_name(run):
        flags.append("mixed-devices")
        log.warn(f"mixed devices: {device_name(run)}")
    if shares_device(run):
        flags.append("shared-device")
        log.warn("two ranks on one device: the number of ranks is not the number of devices")
    if any(line.group > 0 for line in run.rank_lines):
        flags.append("split-groups")
        log.warn("several groups ran at once: bandwidths are per group")
    return tuple(flags)


def _slow_start(run: Run) -> Row | None:
    """The first row where it may hold the set-up of connections: large, and far slower per byte than the second."""
    if len(run.rows) < 2 or run.rows[0].size < SLOW_START_BYTES:
        return None
    first, second = (row.results[0].algbw for row in run.rows[:2])
    return run.rows[0] if first and second and first.value < 0.6 * second.value else None


def _row(row: Row, inner: int, setting: Setting, log: Log, extra: dict[str, object]) -> Iterator[Measurement]:
    why = row_error(row, setting.collective, setting.ranks)
    if why:
        log.drop(row.line, row.text, why)
        return
    taken = 0
    errors: list[str] = []
    for in_place, result in enumerate(row.results):
        why = result_error(row, result, setting.collective, setting.ranks, setting.device)
        if why or result.time_us is None:
            errors.append(f"{PLACEMENTS[in_place]}: {why}")
            continue
        taken += 1
        seconds = result.time_us.value * 1e-6
        dtype = DTYPES[row.dtype][0]
        yield transfer_measurement(setting, row.size, dtype, seconds, inner, in_place=bool(in_place), **extra)
    if taken:
        log.take()
        for error in errors:
            log.drop_part(row.line, row.text, error)
    else:
        log.drop(row.line, row.text, "; ".join(dict.fromkeys(errors)))
