"""What a look at a machine gives: findings, each with a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "refuse", "fail"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        level: `ok`; `warn`, what is measured holds under this condition only, which a calibration notes; `refuse`,
            something else would be measured, so that calibrating needs --force; `fail`, measuring is impossible.
        subject: what was looked at.
        text: what was found.
        remedy: what to do about it; empty where nothing is to be done.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""
