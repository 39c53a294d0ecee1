"""Imports one file: recognises its format by its content and reads it with the importer of that format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from oracle.errors import BadInput
from profiler.importers import PROBING
from profiler.importers.base import Assumptions, Fact, Importer, ImportReport, ImportResult, Item, Limits, Log, Verdict
from profiler.importers.source import Source, open_source
from profiler.measurement import Measurement


def importers() -> Iterator[Importer]:
    """Every importer, in the order of probing."""
    for name in PROBING:
        importer = import_module(f"profiler.importers.{name}").IMPORTER
        if not isinstance(importer, Importer):
            raise TypeError(f"IMPORTER of profiler.importers.{name} is no Importer")
        yield importer


def recognise(source: Source) -> Importer:
    """The importer whose format the file has.

    Raises:
        BadInput: no importer knows it.
    """
    for importer in importers():
        if importer.recognises(source.head):
            return importer
    raise BadInput(f"{source.path.name} has none of the known formats: {', '.join(sorted(PROBING))}")


def content_sha256(path: Path | str, limits: Limits = Limits()) -> str:
    """The digest that `ImportReport.sha256` will have: ask the store for it, and the same file twice adds nothing.

    Raises:
        BadInput: the file cannot be read or exceeds a limit.
    """
    return open_source(path, limits).sha256


def stream_file(
    path: Path | str, take: Callable[[Item], None], assume: Assumptions = Assumptions(), limits: Limits = Limits()
) -> ImportReport:
    """Read one file and hand over every measurement and fact as it comes, so that none has to stay in memory.

    Args:
        path: a log, a table or a document; plain or gzip.
        take: what to do with each result. Rows that were handed over stay valid when a later line is refused; who
            stores them does so in one transaction.
        assume: what the caller knows and the file may not say.
        limits: what the file may cost.

    Raises:
        BadInput: the file cannot be read, exceeds a limit or has no known format.
    """
    source = open_source(path, limits)
    log = Log(limits=limits, assumptions=assume, run_id=f"import-{source.sha256[:16]}")
    importer = recognise(source)
    for item in importer.read(source, log):
        take(item)
    if not log.rows_taken + log.rows_dropped:
        log.judge(Verdict.INCOMPLETE)
    return log.report(importer.name, source.sha256)


def import_file(path: Path | str, assume: Assumptions = Assumptions(), limits: Limits = Limits()) -> ImportResult:
    """Read one file.

    Args:
        path: a log, a table or a document; plain or gzip.
        assume: what the caller knows and the file may not say.
        limits: what the file may cost.

    Returns:
        Measurements, facts and the report on what was taken and what was not. All measurements carry the run id
        `import-` and the first 16 digits of the content's digest.

    Raises:
        BadInput: the file cannot be read, exceeds a limit or has no known format.
    """
    measurements: list[Measurement] = []
    facts: list[Fact] = []

    def take(item: Item) -> None:
        if len(measurements) + len(facts) >= limits.results:
            raise BadInput(f"{Path(path).name} holds more than {limits.results} results; raise the limit to read it")
        if isinstance(item, Measurement):
            measurements.append(item)
        else:
            facts.append(item)

    report = stream_file(path, take, assume, limits)
    return ImportResult(report, tuple(measurements), tuple(facts))
