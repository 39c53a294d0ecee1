"""One process at a time works on a run.

The claim is a lock of the operating system, which ends with the process however that ends: a run that was killed can
be resumed at once, and one that is still being measured cannot be resumed beside itself. It holds on this machine,
which is where the device is.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oracle.errors import BadInput


@contextmanager
def claimed(run_id: str) -> Iterator[None]:
    """Hold a run for this process.

    Raises:
        BadInput: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; a second process is then not noticed
        yield
        return
    path = Path(tempfile.gettempdir()) / f"stepgauge-{getpass.getuser()}-{run_id}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"run {run_id} is being measured by another process; wait for it, or end it") from None
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
