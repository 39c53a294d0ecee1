"""Reads a JSON document member by member, so that a trace of a gigabyte needs the memory of one event.

The standard decoder does the decoding; this module only finds where a value begins and gives it text until the value
is complete. A value that is cut off, or that exceeds the limit, ends the stream with an error of its own, so that an
importer may keep what came before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from oracle.errors import BadInput
from oracle.units import format_bytes
from profiler.importers.source import Source

_BLANK = " \t\r\n"


class CutOff(BadInput):
    """The document ends, or stops being JSON, inside of a value."""


class _Text:
    """The unread text of a document."""

    def __init__(self, source: Source) -> None:
        self._chunks = source.chunks()
        self._limit = source.limits.value_bytes
        self._name = source.path.name
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        chunk = next(self._chunks, "")
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)

    def peek(self) -> str:
        """The next character that is not blank, or an empty text at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self.more():
                return ""

    def expect(self, characters: str) -> str:
        """Consume one of the characters."""
        found = self.peek()
        if not found or found not in characters:
            raise CutOff(f"{self._name} is no JSON, or cut off: {' or '.join(characters)} expected")
        self._at += 1
        return found

    def value(self) -> Any:
        """Decode the next value.

        Raises:
            CutOff: the file ends inside of it, or it is no JSON.
            BadInput: it is nested too deep or longer than the limit.
        """
        self.peek()
        tried = 0
        while True:
            value, length = self._decode()
            # A number at the end of what was read may go on in the next piece.
            if length and (self._at + length < len(self._text) or not self.more()):
                self._at += length
                return value
            tried = self._longer(tried)

    def _decode(self) -> tuple[Any, int]:
        """The value that begins here and its length; length 0 where the text ends inside of it."""
        try:
            value, end = self._decoder.raw_decode(self._text, self._at)
        except RecursionError:
            raise BadInput(f"{self._name}: a JSON value is nested too deep") from None
        except ValueError:
            return None, 0
        return value, end - self._at

    def _longer(self, tried: int) -> int:
        """Read at least twice as much before the next try, so that the work stays linear; the length so far."""
        while True:
            known = len(self._text) - self._at
            if known > self._limit:
                raise BadInput(f"{self._name}: a JSON value is longer than {format_bytes(self._limit)}")
            if not self.more():
                raise CutOff(f"{self._name} is no JSON, or cut off inside of a value")
            if len(self._text) >= 2 * tried:
                return len(self._text)


def members(source: Source, streamed: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """The members of a document that is one object: (name, value).

    Args:
        source: the document.
        streamed: names whose value is an array that is handed out element by element.

    Raises:
        CutOff: the document ends too early or is no JSON; what came before was complete.
        BadInput: a value exceeds a limit.
    """
    text = _Text(source)
    text.expect("{")
    if text.peek() == "}":
        return
    while True:
        name = text.value()
        if not isinstance(name, str):
            raise CutOff(f"{source.path.name} is no JSON: a name expected")
        text.expect(":")
        if name in streamed and text.peek() == "[":
            for value in _elements(text):
                yield name, value
        else:
            yield name, text.value()
        if text.expect(",}") == "}":
            return


def _elements(text: _Text) -> Iterator[Any]:
    text.expect("[")
    if text.peek() == "]":
        text.expect("]")
        return
    while True:
        yield text.value()
        if text.expect(",]") == "]":
            return


def json_line(line: str) -> Any:
    """One line as a JSON value; None where it is none.

    Raises:
        BadInput: it is nested too deep.
    """
    try:
        return json.loads(line)
    except RecursionError:
        raise BadInput("a line of JSON is nested too deep") from None
    except ValueError:
        return None
