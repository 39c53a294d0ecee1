"""What all ranks of a run take from rank 0, through the store that they share, before they measure.

The name of the run tells the files of one run from those of another; a resumed run keeps its own. The key of host names
is that of the user on rank 0's node, since one host must have one digest on every rank also where home folders differ.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from profiler.collectives.places import RankPlace
from profiler.collectives.records import read_rank_file
from profiler.collectives.settings import CollectiveSettings
from profiler.importers.base import host_digest
from profiler.measurement import Measurement, new_run_id

Remember = Callable[[Mapping[str, str]], None]
"""Told the names of hosts by their digests, to keep them where only this user reads them."""

_RUN = "run"


def settings_of_run(settings: CollectiveSettings, place: RankPlace, store: Any, file: Path) -> CollectiveSettings:
    """The settings with the run's name and key as rank 0 has them.

    Args:
        settings: of this rank.
        place: of this rank.
        store: the store of all ranks.
        file: of this rank; what is in it names a run that is resumed.

    Raises:
        RuntimeError: rank 0 does not answer.
    """
    if place.rank == 0:
        run_id = settings.run_id or _run_in(file) or new_run_id(datetime.now(UTC))
        store.set(_RUN, json.dumps([run_id, settings.host_key.hex()]))
    run_id, key = json.loads(store.get(_RUN))
    return replace(settings, run_id=run_id, host_key=bytes.fromhex(key))


def _run_in(file: Path) -> str | None:
    entries = read_rank_file(file, []) if file.is_file() else ()
    return next((entry.run_id for entry in entries if isinstance(entry, Measurement)), None)


def name_hosts(place: RankPlace, store: Any, key: bytes, remember: Remember) -> None:
    """Wait until every rank has come, and let rank 0 remember the names of their hosts.

    Names go nowhere else and into no file of measurements.

    Raises:
        RuntimeError: a rank does not come.
    """
    keys = [f"name/{rank}" for rank in range(place.ranks)]
    store.set(keys[place.rank], platform.node())
    store.wait(keys)
    if place.rank == 0:
        names = {store.get(key).decode(errors="replace") for key in keys}
        remember({host_digest({name}, key): name for name in sorted(names)})
