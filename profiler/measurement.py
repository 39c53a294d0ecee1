"""A measurement is raw samples plus what was asked and the environment they were taken in. Standard library only."""

from __future__ import annotations

import hashlib
import json
import secrets
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


def new_run_id(now: datetime) -> str:
    """A name for a run that begins now, in UTC; names sort by time."""
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class Environment:
    """What makes a number reproducible.

    Args:
        identity: what must match for a constant to be reused (device, driver, libraries, threads...).
        state: what was so at the time (load, clocks, temperature...).
        notes: what could not be read, and what would spoil a calibration.
    """

    identity: Mapping[str, str]
    state: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def validity_key(self) -> str:
        """A short hash of the identity: constants hold only where it is the same."""
        text = json.dumps(dict(self.identity), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Measurement:
    """Raw samples of one case.

    Args:
        micro: the microbenchmark, such as `conv`.
        case: what was asked, as JSON values (for a kernel: `layer` and `samples`).
        phase: the phase of its kernels, or the collective.
        execution: `Execution.kernel_key`, or `update_key` for updates.
        device_s: raw samples of the device's clock, in order, in seconds per call.
        host_s: seconds of the host for the same samples: the time to enqueue on an accelerator; on a CPU, where the
            calling thread does the work, the CPU time that this thread was given.
        inner: calls per sample (short kernels are timed in batches).
        device: the device's name.
        environment: where it was taken.
        run_id: the run that it belongs to.
        taken_at: UTC, ISO 8601.
        stopped: which rule ended the sampling.
        flags: what a reader has to know (`noisy`, `throttled`, `launch-bound`, `preempted`...).
    """

    micro: str
    case: Mapping[str, Any]
    phase: str
    execution: str
    device_s: tuple[float, ...]
    host_s: tuple[float, ...]
    inner: int
    device: str
    environment: Environment
    run_id: str
    taken_at: str
    stopped: str
    flags: tuple[str, ...] = ()

    @property
    def median_s(self) -> float:
        """The median of the device's samples, in seconds."""
        return statistics.median(self.device_s)

    @property
    def case_key(self) -> str:
        """One text for equal cases."""
        case = json.dumps(self.case, sort_keys=True)
        return f"{self.micro}/{self.phase}/{self.execution}/{case}"
