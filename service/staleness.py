"""Whether a calibration still holds: how old it is, and what has changed since on the machine that it is of.

Constants hold as long as the identity of their environment does. A prediction runs anywhere, so the identity can be
compared only where the machine seems to be the calibrated one: the same CPU with the same cores, or an NVIDIA device of
the same name. There the versions are compared that can be had without loading torch; `validate`, which measures here
anyway, compares the whole identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from profiler.installed import Installed

STALE_DAYS = 90
"""Age from which a calibration is called old: drivers, clocks and cooling change."""


def stale_notes(environment: Mapping[str, str], created_at: str, here: Installed) -> tuple[str, ...]:
    """Why a calibration may not hold any more.

    Args:
        environment: the identity that it was measured in.
        created_at: when, ISO 8601 with its zone.
        here: this machine.
    """
    notes = changes(environment, here.versions) if _is_of(environment, here) else ()
    age = datetime.now(UTC) - datetime.fromisoformat(created_at)
    if age.days >= STALE_DAYS:
        notes += (f"the calibration is {age.days} days old; measure again before you rely on it",)
    return notes


def _is_of(environment: Mapping[str, str], here: Installed) -> bool:
    """Whether an environment may be that of this machine."""
    if "gpu" in environment:
        # An instance (MIG) is called by its device's name and its size.
        return any(environment["gpu"].startswith(name) for name in here.gpus)
    return environment.get("cpu") == here.cpu and environment.get("cores") == str(here.cores)


def changes(environment: Mapping[str, str], now: Mapping[str, str], names: Iterable[str] = ()) -> tuple[str, ...]:
    """What of an identity has changed since a calibration.

    Args:
        environment: the identity that it was measured in.
        now: of today.
        names: what to compare; by default what both of them know.
    """
    return tuple(
        f"stale: {name} was {environment.get(name, 'unknown')} when this was calibrated, "
        f"now it is {now.get(name, 'unknown')}; calibrate again"
        for name in sorted(names or environment.keys() & now.keys())
        if environment.get(name) != now.get(name)
    )
