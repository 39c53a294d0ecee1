"""Every error that stepgauge raises on purpose.

StepgaugeError            the base: the command line prints its text on one line and exits with 2
|- BadInput               a value or a file that cannot be used as it is
|  |- OutOfRange          a number outside what is possible; the text says what is
|  `- UnknownName         a name in no table; the text lists the known ones and the closest
|- NotCalibrated          the calibration has no constants for what was asked
|- MissingDependency      an optional library that this command needs is not installed
|- NoDevice               the device that was asked for is not in this machine or cannot be used
|- OutOfMemory            what was asked does not fit into the device's memory
|- RankLost               a process that measures with others died, hangs or cannot go on
`- StoreError             the database cannot be opened, read or written
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StepgaugeError(Exception):
    """The base of every error that stepgauge raises on purpose."""


class BadInput(StepgaugeError):
    """A value or a file that cannot be used as it is."""


class OutOfRange(BadInput):
    """A number outside what is possible; the text says what is."""


class UnknownName(BadInput):
    """A name that is in no table.

    >>> print(UnknownName("strategy", "dta", ["serial", "data"]))
    unknown strategy 'dta'; did you mean 'data'? known: serial, data
    >>> str(UnknownName("strategy", "DATA", ["data"])).partition(" known")[0]
    "unknown strategy 'DATA'; did you mean 'data'?"
    """

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = list(known)
        plain = {item.casefold(): item for item in known}
        close = difflib.get_close_matches(name.casefold(), plain, n=1)
        hint = f" did you mean '{plain[close[0]]}'?" if close else ""
        super().__init__(f"unknown {what} '{name}';{hint} known: {', '.join(known) or 'none'}")


class NotCalibrated(StepgaugeError):
    """The calibration has no constants for what was asked."""


class MissingDependency(StepgaugeError):
    """An optional library that this command needs is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; pip install 'stepgauge[{extra}]'")


class NoDevice(StepgaugeError):
    """The device that was asked for is not in this machine or cannot be used; the text says why."""


class OutOfMemory(StepgaugeError):
    """What was asked does not fit into the device's memory."""


class RankLost(StepgaugeError):
    """A process that measures with others died, hangs or cannot go on; the text names it and says why."""


class StoreError(StepgaugeError):
    """The database cannot be opened, read or written."""
