"""Start the ranks of one machine, watch them, and end all of them when one is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from oracle.errors import RankLost
from profiler.collectives.places import RankPlace
from profiler.collectives.settings import CollectiveSettings
from profiler.collectives.watch import connect, told
from profiler.run import Progress
from profiler.this_machine import usable_cores

_POLL_S = 0.2
_GRACE_S = 1.0
"""Between the first sign of a failure and the judgement: the cause may show a moment after its consequence."""

_TERMINATE_S = 3.0
_STORE_WAIT_S = 10.0


def run_here(settings: CollectiveSettings, progress: Progress) -> None:
    """Run all ranks on this machine until they have finished.

    Raises:
        RankLost: one was killed, hangs or failed; the text names it. All have ended then.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_STORE_WAIT_S))
    places = [RankPlace(rank, settings.ranks, rank, "127.0.0.1", server.port, False) for rank in range(settings.ranks)]
    store = connect(places[0], _STORE_WAIT_S)
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(place.rank) for place in places]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for place, log in zip(places, logs, strict=True):
                processes.append(_start(settings, place, log))
            _wait(processes, store, logs, progress)
        finally:
            _end(processes)


def _start(settings: CollectiveSettings, place: RankPlace, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "profiler.collectives.rank", settings.to_json(), json.dumps(asdict(place))]
    with log.open("wb") as errors:
        return subprocess.Popen(  # noqa: S603 - our own module with our own arguments
            command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=_environment(settings.ranks)
        )


def _environment(ranks: int) -> Mapping[str, str]:
    """Ours, so that the child finds this package, and with threads that do not fight over the cores."""
    threads = str(max(1, usable_cores() // ranks))
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONPATH": path}


def _wait(processes: Sequence[subprocess.Popen[bytes]], store: Any, logs: Sequence[Path], progress: Progress) -> None:
    shown = b""
    while any(process.poll() is None for process in processes):
        if told(store) or any(process.poll() for process in processes):
            break
        if store.check(["progress"]) and (current := bytes(store.get("progress"))) != shown:
            shown = current
            progress(*json.loads(current))
        time.sleep(_POLL_S)
    if told(store) or any(process.poll() for process in processes):
        time.sleep(_GRACE_S)
        raise RankLost(_cause([process.poll() for process in processes], told(store), logs))


def _cause(codes: Sequence[int | None], said: str | None, logs: Sequence[Path]) -> str:
    """Why the run ended: a signal explains more than what the other ranks saw of it."""
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            return f"rank {rank} was killed by {_signal_name(-code)}"
    if said:
        return said
    rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
    lines = logs[rank].read_text(errors="replace").strip().splitlines()
    return f"rank {rank} ended with status {code}: {lines[-1][:300] if lines else 'it said nothing'}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (out of memory?)" if name == "SIGKILL" else name


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End every process that still runs; one that is stopped cannot hear anything but SIGKILL."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    give_up_s = time.monotonic() + _TERMINATE_S
    while any(process.poll() is None for process in processes) and time.monotonic() < give_up_s:
        time.sleep(_POLL_S / 4)
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdin:
            process.stdin.close()
