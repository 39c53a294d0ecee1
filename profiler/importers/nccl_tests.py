"""nccl-tests and rccl-tests, as they print on a terminal, of every age since 2018.

The layout is read from the table's own head: `bytes N type op` (NCCL 1), `size count type [redop] [root]` with an
`error` (to 2022) or a `#wrong` (since), columns of `-I` after each placement. Where the head is cut off, a row of
eight numbers after the type has no root and one of nine has. See `nccl_lines` for prefixes and `nccl_judge` for checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from profiler.importers.base import Importer, Item, Log
from profiler.importers.collectives import DTYPES, collective_name
from profiler.importers.environments import allowed
from profiler.importers.nccl_choices import Choices
from profiler.importers.nccl_judge import judge
from profiler.importers.nccl_lines import STAMP, pieces
from profiler.importers.nccl_run import RankLine, Result, Row, Run
from profiler.importers.printed import printed
from profiler.importers.source import Source

_RESULT = ("time", "algbw", "busbw")
_REDOPS = frozenset(("sum", "prod", "max", "min", "avg", "mulsum", "all", "none"))
_COMMAND = re.compile(r"\b([a-z_]+)_perf(?:_mpi)?\b")
_PARAMS = re.compile(
    r"(nThread|nGpus|minBytes|maxBytes|step|warmup iters|agg iters|iters|validation|graph|blocking):? (\S{1,18})(?!\S)"
)
_RANK = re.compile(
    r"Rank\s+(\d{1,8})\s+(?:Group\s+(\d{1,8})\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+(\d{1,8})\s+\[([0-9a-fA-Fx:.]+)\]\s*(.*)"
)
_ROOT = re.compile(r"-?[0-9]{1,9}")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_FAILED = re.compile(
    r"(?:Test )?(?:NCCL|CUDA|MPI) failure|Test failure|Test timeout|NCCL WARN Cuda failure", re.IGNORECASE
)
_VERSIONS = (
    ("tool_version", re.compile(r"(?:nccl|rccl)-tests:? [Vv]ersion:? (\S{1,60})")),
    ("library", re.compile(r"\b((?:NCCL|RCCL) version \d\S*)")),
    ("library", re.compile(r"compiled with (NCCL \S+)")),
)
_REDUCED = re.compile(r"Reducing maxBytes to (\d{1,18})\b")
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]+)(?: set by environment to |=)(\S+)")
_COLUMNS = re.compile(r"\b(?:size|bytes)\s.{0,400}\btime\s+algbw\s+busbw\b")
_END = re.compile(r"^[\s#\d:\[\],]*Out of bounds values\s*:", re.MULTILINE)
_KNOWN = re.compile(r"out-of-place|\(elements\)|Using devices|Avg bus bandwidth|Collective test concluded|^[\s#]*$")
_PLACEHOLDER = re.compile(r"\bX{2,}(?:\.X+)?\b")


@dataclass
class _Stream:
    """One process's output: its current run and the row that is being put together."""

    run: Run = field(default_factory=Run)
    pending: list[str] = field(default_factory=list)
    pending_line: int = 0
    preamble: int = 0


class _Reader:
    """Feeds lines to streams and hands out runs as they end."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.streams: dict[str, _Stream] = {}
        self.command: str | None = None
        self.variables: dict[str, str] = {}
        self.tool = "nccl-tests"
        self.choices = Choices()

    def feed(self, number: int, line: str) -> Iterator[Item]:
        """Take one line; yields what the runs that it ends hold."""
        parts, message = pieces(line)
        if message:
            self._message(number, line, message, parts[0].stream)
        for stream_name, text in parts:
            if not text.strip():
                continue
            yield from self._piece(number, text, self.streams.setdefault(stream_name, _Stream()))

    def finish(self) -> Iterator[Item]:
        """Hand out the runs that the end of the file ends."""
        for stream in self.streams.values():
            yield from self._end(stream)

    def _message(self, number: int, line: str, message: str, stream_name: str) -> None:
        stream = self.streams.setdefault(stream_name, _Stream())
        if _FAILED.search(message):
            stream.run.failure = stream.run.failure or message[-100:]
        elif not self._about(message, stream.run) and not self.choices.feed(message):
            self.log.skip(number, line, "a message of NCCL")

    def _piece(self, number: int, text: str, stream: _Stream) -> Iterator[Item]:
        tokens = text.split()
        if tokens[0][0].isdecimal() or (stream.pending and tokens[0][0] in "-N"):
            self._tokens(number, text, stream)
            return
        if self._begins(text, stream.run):
            yield from self._end(stream)
        if not self._head(text, stream.run) and not self._end_mark(text, stream.run):
            self._other(number, text, stream)

    def _begins(self, text: str, run: Run) -> bool:
        """Whether a line belongs to the head of a run while the current one already has rows or an end."""
        head = (
            "nThread" in text or "Collective test starting" in text or _is_columns(text) or _VERSIONS[0][1].search(text)
        )
        return bool(head) and bool(run.rows or run.ended or run.failure or run.malformed)

    def _head(self, text: str, run: Run) -> bool:
        """Read a line of a run's head."""
        if "nThread" in text:
            run.params.update(_PARAMS.findall(text))
            run.heads += 1
        elif match := _RANK.search(text):
            rank, group, host, device, bus, name = match.groups()
            run.rank_lines.append(RankLine(int(rank), int(group or 0), host, int(device), bus.lower(), name.strip()))
        elif "Collective test starting" in text:
            run.collective = _named(text)
        elif _is_columns(text):
            run.columns = _columns(text)
        elif match := _REDUCED.search(text):
            run.max_bytes = int(match[1])
        else:
            return self._about(text, run)
        return True

    def _about(self, text: str, run: Run) -> bool:
        """Versions and variables."""
        for name, pattern in _VERSIONS:
            if match := pattern.search(text):
                run.versions[name] = match[1]
                if "rccl" in text.lower():
                    self.tool = "rccl-tests"
                return True
        variables = allowed(_VARIABLE.findall(text))
        self.variables.update(variables)
        return bool(variables)

    def _end_mark(self, text: str, run: Run) -> bool:
        """Read a line of a run's end."""
        if match := _BOUNDS.search(text):
            run.ended = True
            if match[2] == "FAILED":
                run.failure = f"{match[1]} results out of bounds"
            return True
        if _FAILED.search(text):
            run.failure = run.failure or text.strip()[:100]
            return True
        return bool(_KNOWN.search(text))

    def _other(self, number: int, text: str, stream: _Stream) -> None:
        if named := _named(text):
            self.command = named
        elif _PLACEHOLDER.search(text) or (any(word in DTYPES for word in text.split()[1:5]) and "time" not in text):
            stream.run.malformed += 1
            self.log.drop(number, text, "a row that nccl-tests does not print: a placeholder or a hand-made table")
        else:
            self.log.skip(number, text, "no line of nccl-tests")

    def _tokens(self, number: int, text: str, stream: _Stream) -> None:
        """Add a part of a row; a row is complete when it has as many numbers as its head says."""
        tokens = STAMP.sub(" ", text).split() if "-" in text and ":" in text else text.split()
        if len(tokens) > 2 and tokens[2] in DTYPES and tokens[0].isdecimal() and tokens[1].isdecimal():
            self._cut_off(stream)
            stream.pending, stream.pending_line = tokens, number
            stream.preamble = 4 if len(tokens) > 3 and tokens[3] in _REDOPS else 3
        elif stream.pending:
            stream.pending += tokens
        else:
            self._stray(number, text, tokens, stream)
            return
        self._complete(stream, whole_line=stream.pending_line == number)

    def _stray(self, number: int, text: str, tokens: list[str], stream: _Stream) -> None:
        if any(word in DTYPES for word in tokens):
            why = "columns that nccl-tests does not print: a hand-made table"
        elif _PLACEHOLDER.search(text):
            why = "a placeholder"
        elif all(printed(word) or word == "N/A" for word in tokens):
            why = "a part of a row without its size"
        else:
            self.log.skip(number, text, "no line of nccl-tests")
            return
        stream.run.malformed += 1
        self.log.drop(number, text, why)

    def _complete(self, stream: _Stream, *, whole_line: bool) -> None:
        tokens, start = stream.pending, stream.preamble
        columns = stream.run.columns
        width = _width(columns)
        values = tokens[start:]
        rooted = _has_root(columns, values, 2 * width, whole_line=whole_line)
        wanted = 2 * width + rooted
        if len(values) < wanted:
            return
        text = " ".join(tokens)
        row = _row(tokens, start, rooted, width, stream.pending_line) if len(values) == wanted else None
        if row is None:
            stream.run.malformed += 1
            self.log.drop(stream.pending_line, text, "not the numbers that the table's head announces")
        else:
            stream.run.rows.append(row)
        stream.pending = []

    def _cut_off(self, stream: _Stream) -> None:
        if stream.pending:
            stream.run.malformed += 1
            self.log.drop(
                stream.pending_line, " ".join(stream.pending), "a part of a row: its other numbers are missing"
            )
            stream.pending = []

    def _end(self, stream: _Stream) -> Iterator[Item]:
        self._cut_off(stream)
        run, stream.run = stream.run, Run()
        run.collective = run.collective or self.command
        run.variables = dict(self.variables)
        stream.run.versions = dict(run.versions)  # a loop in a shell prints the version of the library once
        tool = " ".join([self.tool, *([run.versions["tool_version"]] if "tool_version" in run.versions else [])])
        for part in split_cycles(run):
            yield from judge(part, tool, self.log, self.choices.about)


def split_cycles(run: Run) -> list[Run]:
    """The runs that one head has: `-N` repeats the table, and rows of several runs are pasted without their heads.

    A size that falls back to the first one starts a new cycle. One other fall is a paste of two runs; more are two
    runs that write into one stream, and their heads are counted as two so that `judge` refuses them.
    """
    sizes = [row.size for row in run.rows]
    falls = [k for k in range(1, len(sizes)) if sizes[k] < sizes[k - 1]]
    if not falls:
        return [run]
    if sum(sizes[k] != sizes[0] for k in falls) > 1:
        run.heads = max(run.heads, 2)
        return [run]
    edges = [0, *falls, len(sizes)]
    parts = []
    for start, end in pairwise(edges):
        part = Run(**{**vars(run), "rows": run.rows[start:end]})
        parts.append(part)
    return parts


def _named(text: str) -> str | None:
    for word in _COMMAND.findall(text):
        if name := collective_name(word):
            return name
    return None


def _is_columns(text: str) -> bool:
    return len(text) < 1000 and bool(_COLUMNS.search(text))


def _columns(text: str) -> tuple[str, ...]:
    """The names of the columns; those of NCCL 1 by their later names."""
    old = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
    return tuple(old.get(name, name) for name in text.replace("#wrong", "wrong").replace("#", " ").split())


def _width(columns: tuple[str, ...]) -> int:
    """Numbers of one placement: four, more with `-I`."""
    times = [k for k, name in enumerate(columns) if name == "time"]
    return times[1] - times[0] if len(times) == 2 else 4


def _has_root(columns: tuple[str, ...], values: list[str], pair: int, *, whole_line: bool) -> bool:
    """Whether the first number is a root. Without a head: by how many there are, or by being the only whole one."""
    if columns:
        return "root" in columns
    if whole_line and len(values) >= pair:
        return len(values) != pair
    return bool(values) and _ROOT.fullmatch(values[0]) is not None


def _row(tokens: list[str], start: int, rooted: bool, width: int, line: int) -> Row | None:
    values = tokens[start + rooted :]
    root = tokens[start] if rooted else None
    if (root is not None and not _ROOT.fullmatch(root)) or max(len(tokens[0]), len(tokens[1])) > 20:
        return None
    results = [_result(values[k : k + 4]) for k in (0, width)]
    if results[0] is None or results[1] is None:
        return None
    return Row(
        line=line,
        text=" ".join(tokens),
        size=int(tokens[0]),
        count=int(tokens[1]),
        dtype=tokens[2],
        redop=tokens[3] if start == 4 else None,
        root=int(root) if root is not None else None,
        results=(results[0], results[1]),
    )


def _result(texts: list[str]) -> Result | None:
    numbers = [printed(text) for text in texts]
    if None in numbers and any(
        number is None and text.upper() not in ("N/A", "NAN", "-NAN", "INF")
        for number, text in zip(numbers, texts, strict=True)
    ):
        return None
    wrong = numbers[3]
    return Result(numbers[0], numbers[1], numbers[2], wrong.value if wrong else None)


def _recognises(head: str) -> bool:
    if _COLUMNS.search(head) or _END.search(head) or ("nThread" in head and "minBytes" in head):
        return True
    return any(_looks_like_row(line) for line in head.splitlines()[:2000])


def _looks_like_row(line: str) -> bool:
    words = [word for piece in pieces(line)[0] for word in piece.text.split()]
    return len(words) >= 7 and words[2] in DTYPES and words[0].isdecimal() and words[1].isdecimal()


def _read(source: Source, log: Log) -> Iterator[Item]:
    reader = _Reader(log)
    for number, line in source.lines():
        yield from reader.feed(number, line)
    yield from reader.finish()


IMPORTER = Importer("nccl_tests", _recognises, _read)
