"""Watches the state of a device while it is measured: a few readings a second, and a summary of every visit.

    with sampling(backend) as sampler:
        with sampler.window() as window:
            ...  # measure
        window.summary.flags, window.summary.values

On an NVIDIA device a thread asks NVML for clocks, power, temperature and the reasons why clocks are low; ctypes gives
the interpreter back during each question, so the measuring thread waits for none of them. Whatever is short enough to
fall between two readings still moves the driver's counters of violations, which are read at both ends of a window. The
end is read at once after the work, while the clocks are still as the work left them: one reading in front of the work
would tell of what ran before it (Avarok-Cybersecurity/atlas#1197).

A CPU says less: the system counts how often it slowed down for heat, and how much time the hypervisor gave to others.

Samples under a lowered clock are kept and flagged. A power cap under matrix products is normal on devices of 700 W and
is therefore a flag of its own; clock and power are stored beside it, so that a reader can judge.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from oracle.errors import StepgaugeError
from profiler.backends.base import Backend
from profiler.machine_state import stolen_s, throttle_count
from profiler.measurement import Measurement
from profiler.nvml import DeviceKey, find_device, key_of, open_nvml
from profiler.nvml_state import DeviceState, StateReader
from profiler.this_machine import own_cores

EVERY_S = 0.25
"""Time between two readings of the thread: a reading takes about a millisecond of the driver."""

KEPT = 4096
"""Readings that are kept: a quarter of an hour of them, far beyond any visit."""

ENERGY_S = 0.5
"""The shortest time over which the energy counter says something: it moves every 10 to 100 ms."""

STOLEN = 0.1
"""Share of a window that the hypervisor gave to others, from which its samples are flagged."""

SLOWDOWNS = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
    "reliability",
)
"""Reasons that no healthy device has for long."""

POWER_CAPS = ("software power cap", "board limit")
SETTINGS = ("applications clocks setting", "sync boost", "display clock setting")

POWER = "power_mean_w"
CLOCK_REASONS = "clock_reasons"
"""Values of a summary; a window without reasons was not watched."""

HELD = 0.01
"""Share of a window in which power or heat held the clocks down, from which its samples are flagged."""

_WATCHED = (
    "sm_clock_hz",
    "memory_clock_hz",
    "power_w",
    "gpu_temperature_c",
    "reasons",
    "energy_j",
    "power_violation_s",
    "thermal_violation_s",
)


@dataclass(frozen=True)
class Reading:
    """The state at one moment; None where nothing says it.

    Args:
        at_s: `time.monotonic()`.
        sm_clock_hz, memory_clock_hz, power_w, temperature_c: now.
        reasons: why the clock is below its highest.
        energy_j, power_violation_s, thermal_violation_s: counters.
        throttle_count: how often CPUs slowed down for heat; stolen_s: time that the hypervisor gave to others.
    """

    at_s: float
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] | None = None
    energy_j: float | None = None
    power_violation_s: float | None = None
    thermal_violation_s: float | None = None
    throttle_count: float | None = None
    stolen_s: float | None = None

    @property
    def idle(self) -> bool:
        """Whether its clock is that of a device with nothing to do."""
        return "idle" in (self.reasons or ())


@dataclass(frozen=True)
class Summary:
    """What was seen in a window, between a reading at its start and one at its end.

    Args:
        readings: how many there were in it.
        flags: what a reader has to know of the samples: `throttled` (heat, power brake or a fault held the clock down),
            `power-capped` (the power limit did), `clocks-set` (a setting did), `unwatched` (nobody says whether
            something did), `stolen` (the hypervisor ran others).
        values: what was seen, as text, for `Environment.state`.
    """

    readings: int = 0
    flags: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def added_to(self, measurement: Measurement) -> Measurement:
        """The measurement that was taken in this window, with its flags and its state."""
        environment = measurement.environment
        if self.values:
            environment = replace(environment, state={**environment.state, **self.values})
        # The samples themselves may have said so already.
        flags = tuple(dict.fromkeys((*measurement.flags, *self.flags)))
        return replace(measurement, flags=flags, environment=environment)


@dataclass
class Window:
    """A time in which something is measured; `summary` holds from its end on."""

    summary: Summary = field(default_factory=Summary)


Read = Callable[[], Reading]


class StateSampler:
    """Takes readings at the ends of windows and, while its thread runs, in between.

    Args:
        read: takes a reading; None where there is nothing to watch, then every summary is empty.
        cores: over which stolen time is spread.
        has_reasons: whether this kind of device says why its clock is low; one that then does not is flagged.
    """

    def __init__(self, read: Read | None, cores: int = 1, has_reasons: bool = False) -> None:
        self._read = read
        self._cores = cores
        self._has_reasons = has_reasons
        self._readings: deque[Reading] = deque(maxlen=KEPT)
        self._lock = threading.Lock()  # one question at a time

    @contextmanager
    def running(self, every_s: float = EVERY_S) -> Iterator[StateSampler]:
        """Take readings in a thread until the exit."""
        done = threading.Event()
        thread = threading.Thread(target=self._run, args=(done, every_s), name="stepgauge-state", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join()

    def _run(self, done: threading.Event, every_s: float) -> None:
        while self._read is not None and not done.wait(every_s):
            with self._lock:
                self._readings.append(self._read())

    def _now(self, read: Read) -> Reading:
        with self._lock:
            return read()

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Watch what is done inside; the result holds a summary after it."""
        window = Window()
        if self._read is None:
            yield window
            return
        first = self._now(self._read)
        yield window
        last = self._now(self._read)
        between = [reading for reading in tuple(self._readings) if first.at_s < reading.at_s < last.at_s]
        summary = summarise(first, (*between, last), self._cores)
        if self._has_reasons and CLOCK_REASONS not in summary.values:
            summary = replace(summary, flags=(*summary.flags, "unwatched"))
        window.summary = summary


def summarise(first: Reading, readings: Sequence[Reading], cores: int = 1) -> Summary:
    """Put the readings of a window together.

    Args:
        first: before the work: its counters are taken, and not its clock, which is that of a waiting device.
        readings: during the work, and one right after it.
        cores: over which stolen time is spread.
    """
    busy = [reading for reading in readings if not reading.idle] or list(readings)
    seen = tuple(dict.fromkeys(reason for reading in busy for reason in reading.reasons or () if reason != "idle"))
    elapsed_s = max(readings[-1].at_s - first.at_s, 1e-9)
    shares = {
        "power_held_share": _growth(first, readings[-1], "power_violation_s") / elapsed_s,
        "heat_held_share": _growth(first, readings[-1], "thermal_violation_s") / elapsed_s,
        "stolen_share": _growth(first, readings[-1], "stolen_s") / (elapsed_s * cores),
    }
    slowed = _growth(first, readings[-1], "throttle_count") > 0 or shares["heat_held_share"] > HELD
    found = {
        "throttled": slowed or bool(set(seen) & set(SLOWDOWNS)),
        "power-capped": shares["power_held_share"] > HELD or bool(set(seen) & set(POWER_CAPS)),
        "clocks-set": bool(set(seen) & set(SETTINGS)),
        "stolen": shares["stolen_share"] > STOLEN,
    }
    values = {
        **_spread("sm_clock", "hz", [reading.sm_clock_hz for reading in busy]),
        **_spread("memory_clock", "hz", [reading.memory_clock_hz for reading in busy]),
        **_spread("gpu_temperature", "c", [reading.temperature_c for reading in busy]),
        **_power(first, busy),
    }
    if any(reading.reasons is not None for reading in readings):
        values[CLOCK_REASONS] = ", ".join(seen) or "none"
    values |= {name: f"{share:.3f}" for name, share in shares.items() if share > 0}
    return Summary(len(readings), tuple(name for name, holds in found.items() if holds), values)


def _growth(first: Reading, last: Reading, name: str) -> float:
    """How far a counter went; 0 where it is not known at both ends, or began anew."""
    before, after = getattr(first, name), getattr(last, name)
    return 0.0 if before is None or after is None else max(0.0, after - before)


def _spread(name: str, unit: str, values: Sequence[float | None]) -> dict[str, str]:
    known = [value for value in values if value is not None]
    if not known:
        return {}
    spread = {"min": min(known), "median": median(known), "max": max(known)}
    return {f"{name}_{which}_{unit}": f"{value:.10g}" for which, value in spread.items()}


def _power(first: Reading, busy: Sequence[Reading]) -> dict[str, str]:
    """Mean power, by the energy counter where the window is long enough for it."""
    last = busy[-1]
    elapsed_s = last.at_s - first.at_s
    joules = _growth(first, last, "energy_j")
    if joules and elapsed_s >= ENERGY_S:
        return {POWER: f"{joules / elapsed_s:.4g}"}
    known = [reading.power_w for reading in busy if reading.power_w is not None]
    return {POWER: f"{fmean(known):.4g}"} if known else {}


def mean_power_w(measurements: Iterable[Measurement]) -> float | None:
    """Mean power of a device while it ran what was measured, each visit by its time; None where it was not seen.

    Args:
        measurements: with the states that a sampler added to them.
    """
    joules, seconds = 0.0, 0.0
    for measurement in measurements:
        power_w = measurement.environment.state.get(POWER)
        if power_w is not None:
            visit_s = sum(measurement.device_s) * measurement.inner
            joules += float(power_w) * visit_s
            seconds += visit_s
    return joules / seconds if seconds else None


@contextmanager
def sampling(backend: Backend, library: Any = None, every_s: float = EVERY_S) -> Iterator[StateSampler]:
    """Watch the device of a backend.

    Args:
        backend: what is measured.
        library: what to take for `pynvml`.
        every_s: time between two readings.
    """
    if backend.name == "cpu":
        cores = own_cores()
        yield StateSampler(lambda: read_cpu(cores), len(cores))
    elif backend.name == "cuda":
        with watching(_key(backend), library, every_s) as sampler:
            yield sampler
    else:
        yield StateSampler(None)


def _key(backend: Backend) -> DeviceKey:
    """The key of the CUDA device that a backend drives through torch."""
    import torch

    device = getattr(backend, "torch_device", None)
    return key_of(torch.cuda.get_device_properties(device))


@contextmanager
def watching(key: DeviceKey, library: Any = None, every_s: float = EVERY_S) -> Iterator[StateSampler]:
    """Watch an NVIDIA device; where NVML does not work, every window is flagged `unwatched`.

    Args:
        key: of the device.
        library: what to take for `pynvml`.
        every_s: time between two readings.
    """
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(open_nvml(library))
            reader = StateReader(nvml, find_device(nvml, key), _WATCHED)
        except StepgaugeError:  # the environment's notes say why
            sampler = StateSampler(lambda: Reading(time.monotonic()), has_reasons=True)
        else:
            sampler = StateSampler(lambda: _reading(reader.read()), has_reasons=True)
            stack.enter_context(sampler.running(every_s))
        yield sampler


def read_cpu(cores: frozenset[int]) -> Reading:
    """A reading of some of this machine's cores."""
    return Reading(time.monotonic(), throttle_count=throttle_count(), stolen_s=stolen_s(cores))


def _reading(state: DeviceState) -> Reading:
    return Reading(
        at_s=time.monotonic(),
        sm_clock_hz=state.sm_clock_hz,
        memory_clock_hz=state.memory_clock_hz,
        power_w=state.power_w,
        temperature_c=state.gpu_temperature_c,
        reasons=state.reasons,
        energy_j=state.energy_j,
        power_violation_s=state.power_violation_s,
        thermal_violation_s=state.thermal_violation_s,
    )
