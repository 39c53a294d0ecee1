"""Takes a line of a launcher's output apart: prefixes, tags, NCCL's own messages, colours; what is left is nccl-tests.

Launchers put the rank in front of a line (`srun -l`: `0: `, mpirun: `[1,0]<stdout>:`, `[0] `, pdsh: `node01: `,
kubectl: `[pod/...]`, a date), and some put it inside a row, because nccl-tests prints a row in three calls. So a line
becomes pieces, each with the stream that it came from; a row is put together from the pieces of one stream.
NCCL's messages (`host:pid:tid [0] NCCL INFO ...`) run to the end of their line wherever they begin.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PREFIXED = re.compile(r"[:\[<\x1b\xa0]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DATE = re.compile(
    r"^\s*(?:"
    r"\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)?(?:\s+(?:stdout|stderr)\s+[FP])?"
    r"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?"
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d+ [\d:]{8}(?: [A-Z]{2,4})? \d{4}"
    r")\s?"
)
_POD = re.compile(r"^\s*\[pod/([^\]\s]+)\]\s?")
_LABEL = re.compile(r"^\s*(\d+):(?:\s|$)|^\s*([A-Za-z][\w.\-]*):\s(?=\s*[#\d])")
_TAG = re.compile(
    r"(?:\[(?:[\w.@-]+@)?\d+,(\d+)\])?<std(?:out|err)>:\s?|\[(?:[\w.@-]+@)?\d+,(\d+)\]:\s?|\[(\d+)\](?=\s|$)"
)
MESSAGE = re.compile(
    r"(?:\[?\d{4}-\d\d-\d\d[ T][\d:.]+\]? ?)?(?:[A-Za-z][\w.\-]{0,253}:\d{1,10}:\d{1,10} )?"
    r"\[\d{1,6}\] (?:\S{1,253}:\d{1,6} )?NCCL (?:INFO|WARN|TRACE)\b.*"
)
# A message that begins right behind the preamble of a row: its host's name is glued to the last word.
_GLUED = re.compile(
    r"^([^a-z]*\d+\s+\d+\s+(?:\w+\s+)?"
    r"(?:half|float|double|bfloat16|u?int(?:8|32|64)|f8e[45]m[23]|sum|prod|max|min|avg|mulsum|none))[A-Za-z]"
)
STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?")


class Piece(NamedTuple):
    """A part of a line and the stream that it belongs to (empty without a prefix)."""

    stream: str
    text: str


def pieces(line: str) -> tuple[list[Piece], str]:
    """The parts of a line, and the NCCL message that was on it (or an empty text).

    >>> pieces("[0]   8  2  float  sum  -1[0]  38.6  0.00  0.00  0")[0]
    [Piece(stream='0', text='   8  2  float  sum  -1'), Piece(stream='0', text='  38.6  0.00  0.00  0')]
    >>> pieces("0: #  size")[0]
    [Piece(stream='0', text='#  size')]
    """
    if not _PREFIXED.search(line):
        return [Piece("", line)], ""
    line = _COLOUR.sub("", line.replace("\xa0", " ")).rstrip("\r")
    message = ""
    if "NCCL" in line and (found := MESSAGE.search(line)):
        start = found.start()
        if (glued := _GLUED.match(line)) and start < glued.end(1):
            start = glued.end(1)
        message, line = line[start:], line[:start]
    stream, line = _front(line)
    return _split(stream, line), message


def _front(line: str) -> tuple[str, str]:
    """Take dates, pods and labels off the front; what names a process is its stream."""
    names: list[str] = []
    for pattern in (_POD, _DATE, _LABEL):
        if match := pattern.match(line):
            names += [group for group in match.groups() if group]
            line = line[match.end() :]
    return ".".join(names), line


def _split(stream: str, line: str) -> list[Piece]:
    """Cut at every tag of a launcher; text after a tag belongs to that tag's process."""
    parts: list[Piece] = []
    start = 0
    current = stream
    for match in _TAG.finditer(line):
        if line[start : match.start()].strip():
            parts.append(Piece(current, line[start : match.start()]))
        tag = next((group for group in match.groups() if group), "")
        current = ".".join(name for name in (stream, tag) if name)
        start = match.end()
    if line[start:].strip() or not parts:
        parts.append(Piece(current, line[start:]))
    return parts
