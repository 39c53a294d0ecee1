"""One rank as a process: `python -m profiler.collectives.rank SETTINGS PLACE`, both as JSON; starts from `launch`.

Nothing of it outlives the process that started it: that one holds the other end of this process's standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

from oracle.errors import RankLost, StepgaugeError
from profiler.collectives.joining import Remember, name_hosts, settings_of_run
from profiler.collectives.places import RankPlace
from profiler.collectives.records import RankFile, rank_path
from profiler.collectives.settings import CollectiveSettings
from profiler.collectives.watch import Watch, all_done, all_started, connect, start_wait_s, tell
from profiler.run import Progress

LOST = 3
"""Exit status of a rank that ended because of another."""

_LINGER_S = 10.0
_MORE_S = 5.0


def take_part(settings: CollectiveSettings, place: RankPlace, progress: Progress, remember: Remember) -> None:
    """Be one rank of a run, until it is over.

    Args:
        settings: of the run; without a `run_id` rank 0 chooses one.
        place: of this rank.
        progress: called on rank 0.
        remember: called on rank 0 with the names of all hosts.

    A run that cannot go on ends this process from its watching thread, because the main one may be stuck in a call
    that nobody answers.

    Raises:
        StepgaugeError: this rank cannot go on; the others have been told.
    """
    with _told_of_failure(settings, place) as store:
        file = RankFile(rank_path(settings.folder, place.rank), settings.resume)
        settings = settings_of_run(settings, place, store, file.path)
        name_hosts(place, store, settings.host_key, remember)
        all_started(store)
        from profiler.collectives.member import RankRun

        RankRun(settings, place, store, file, progress).run()
        file.close()


@contextlib.contextmanager
def _told_of_failure(settings: CollectiveSettings, place: RankPlace) -> Any:
    """Signs of life around a run, and a word to all others where it fails here."""
    start_s = start_wait_s(place.ranks)
    store, own = connect(place, start_s), connect(_guest(place), start_s)
    watch = Watch(own, place, settings.silence_s, lambda cause: _exit(cause, LOST), start_s)
    watch.start()
    try:
        yield store
    except StepgaugeError as error:
        tell(store, f"rank {place.rank}: {error}")
        raise
    except OSError as error:
        cause = f"rank {place.rank} cannot write {error.filename or rank_path(settings.folder, place.rank)}"
        cause += f": {error.strerror or error}"
        tell(store, cause)
        raise RankLost(cause) from None
    except RuntimeError as error:
        _give_up(error, store, watch)
    watch.end()
    if place.holds_store:
        give_up_s = time.monotonic() + _LINGER_S
        while not all_done(store, place.ranks) and time.monotonic() < give_up_s:
            time.sleep(0.1)


def _guest(place: RankPlace) -> RankPlace:
    return RankPlace(place.rank, place.ranks, place.local_rank, place.address, place.port, False, place.attempt)


def _give_up(error: RuntimeError, store: Any, watch: Watch) -> None:
    """Wait whether the watch finds out which rank is to blame (it then ends this process); else blame the call."""
    first_line = str(error).strip().partition("\n")[0]
    for pause_s in (0.0, watch.silence_s + _MORE_S):
        time.sleep(pause_s)
        if time.monotonic() - watch.last_contact_s > watch.silence_s:
            # Nothing more can be said to the others, who notice it themselves.
            raise RankLost(f"the store of all ranks, held on the node of rank 0, does not answer ({first_line})")
    cause = f"rank {watch.place.rank} cannot go on: {first_line}"
    tell(store, cause)
    raise RankLost(cause)


def _exit(cause: str, status: int) -> None:
    """End this process at once, also where its main thread never returns."""
    sys.stderr.write(f"{cause}\n")
    sys.stderr.flush()
    os._exit(status)


def _end_with_parent() -> None:
    def wait() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os._exit(LOST)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def main() -> None:
    """Be the rank that the arguments say."""
    _end_with_parent()
    settings, place = CollectiveSettings.from_json(sys.argv[1]), RankPlace(**json.loads(sys.argv[2]))
    reported = connect(_guest(place), start_wait_s(place.ranks))

    def progress(done: int, total: int, text: str) -> None:
        reported.set("progress", json.dumps([done, total, text]))

    try:
        take_part(settings, place, progress, lambda names: None)  # the process that started this one knows its host
    except StepgaugeError as error:
        _exit(str(error), LOST)
    sys.stderr.flush()
    os._exit(0)  # no teardown of process groups: it may wait for ranks that are gone already


if __name__ == "__main__":
    main()
