"""Opens a file as a bounded stream of text: plain or gzip, never more of it in memory than a line or a chunk.

Every limit is checked where bytes come in, so that an importer cannot forget it: the size after decompression (a
gzip bomb of 2 MB unpacks to 2 GB), the length of a line, and NUL bytes, which no text has. The content is read
twice, once for its digest and the limits, once by the importer; so a hostile file is refused before anything of it
has been taken.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from oracle.errors import BadInput
from oracle.units import format_bytes
from profiler.importers.base import Limits

CHUNK_BYTES = 1 << 20
HEAD_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Source:
    """One file that was found to be text within the limits.

    Args:
        path: where it is.
        limits: what it may cost.
        sha256: of the content after decompression.
        head: its first characters, for recognition.
    """

    path: Path
    limits: Limits
    sha256: str
    head: str

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number (from 1) and text of each line, without its end.

        Raises:
            BadInput: a line is longer than the limit, or the file cannot be read.
        """
        limit = self.limits.line_bytes
        with _open(self.path) as stream:
            number = 0
            while line := stream.readline(limit + 1):
                number += 1
                if len(line) > limit:
                    raise BadInput(f"{self.path.name}: line {number} is longer than {format_bytes(limit)}")
                text = line.decode("utf-8", errors="replace")
                yield number, text.lstrip("\ufeff").rstrip("\r\n") if number == 1 else text.rstrip("\r\n")

    def chunks(self) -> Iterator[str]:
        """The text in pieces, for documents that have no lines worth the name."""
        with _open(self.path) as stream:
            reader = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace")
            while text := reader.read(CHUNK_BYTES):
                yield text


def open_source(path: Path | str, limits: Limits) -> Source:
    """Check a file against the limits and find its digest.

    Raises:
        BadInput: it cannot be read, is no plain file, is binary, is empty or exceeds a limit.
    """
    path = Path(path)
    digest, size, head = hashlib.sha256(), 0, b""
    _check_kind(path, limits)
    with _open(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            size += len(chunk)
            if size > limits.file_bytes:
                raise BadInput(
                    f"{path.name} holds more than {format_bytes(limits.file_bytes)}; raise the limit to read it"
                )
            if b"\0" in chunk:
                raise BadInput(f"{path.name} is a binary file; logs and tables are text")
            if len(head) < HEAD_BYTES:
                head += chunk[: HEAD_BYTES - len(head)]
            digest.update(chunk)
    if not size:
        raise BadInput(f"{path.name} is empty")
    return Source(path, limits, digest.hexdigest(), head.decode("utf-8", errors="replace").lstrip("\ufeff"))


def _check_kind(path: Path, limits: Limits) -> None:
    """Refuse what is no plain file (a pipe never ends) or is too large before a byte of it is read."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path.name or path}: {_why(error)}") from None
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{path.name or path} is no plain file")
    if status.st_size > limits.file_bytes:
        limit = format_bytes(limits.file_bytes)
        raise BadInput(f"{path.name} has {format_bytes(status.st_size)}, above the limit of {limit}")


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """The content of a file, decompressed where it is gzip by its first bytes."""
    try:
        with path.open("rb") as plain:
            compressed = plain.read(2) == _GZIP
            plain.seek(0)
            if not compressed:
                yield plain
                return
            with gzip.GzipFile(fileobj=plain) as unpacked:
                yield cast(BinaryIO, unpacked)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"cannot read {path.name}: {_why(error)}") from None


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
