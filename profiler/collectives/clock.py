"""Moments on the clock of a device: on CUDA an event in the current stream, on a CPU the host's clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Mark:
    """A moment.

    Args:
        at_s: on the host's clock.
        event: on the device's own clock, recorded in the stream that was current; None on a CPU.
    """

    at_s: float
    event: Any = None

    def until(self, later: Mark) -> float:
        """Seconds to another moment, negative if that came before; both must have passed."""
        if self.event is None:
            return later.at_s - self.at_s
        return float(self.event.elapsed_time(later.event)) * 1e-3

    def wait(self) -> None:
        """Return when it has passed."""
        if self.event is not None:
            self.event.synchronize()


def mark(device: torch.device) -> Mark:
    """This moment."""
    if device.type != "cuda":
        return Mark(time.perf_counter())
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return Mark(time.perf_counter(), event)
