"""What holds a projection: the limits and bottlenecks of ParaDL (HPDC 2021, Table V), each with a computed remedy.

A limit (L) is inherent to the strategy, a bottleneck (B) comes from the framework or the system. The phases are those
of ParaDL: FB forward and backward, GE gradient exchange, WU weight update. Each finding has its share (of the step, or
of what a device holds), says in words why it is so large, and names changes that the same engine was asked to compute:
a remedy is a projection, not advice from experience. Remedies that would not fit, that leave the share as it is, or
that lower a share of the step by making the step longer, are not named. ParaDL's table is extended by three lines that
its measurements could not show: the part of kernels that does not shrink with the batch, what a device waits for the
host that enqueues its kernels, and the waiting of a synchronous step for its slowest device.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.case import Case
from oracle.detectors import DETECTORS, THE_STEP, Detector

REMEDIES = 2
"""How many remedies are named at most, those with the most samples/s first."""


@dataclass(frozen=True)
class Remedy:
    """A change that was computed.

    Args:
        text: what is changed.
        share: what the bottleneck's share then is.
        speedup: samples/s over those without the change.
    """

    text: str
    share: float
    speedup: float


@dataclass(frozen=True)
class Bottleneck:
    """One thing that holds a projection.

    Args:
        name: what it is, as in ParaDL's Table V.
        category: communication, memory, compute or scaling.
        kind: `L` where it is inherent to the strategy, `B` where it is of the framework or system.
        phase: FB, GE, WU, or several of them.
        share: of the step, or of what `of` says; 0 where it takes nothing yet.
        of: what the share is of.
        why: the reason, in words.
        remedies: changes that lower the share.
    """

    name: str
    category: str
    kind: str
    phase: str
    share: float
    of: str
    why: str
    remedies: tuple[Remedy, ...] = ()

    @property
    def text(self) -> str:
        """The whole finding in one line."""
        share = f"{self.share:.0%} of {self.of}, " if self.share else ""
        cures = [f"{item.text} would bring it to {item.share:.0%} ({item.speedup:.2f}x samples/s)" for item in
                 self.remedies]  # fmt: skip
        return f"{self.name}: {share}{self.why}" + "".join(f"; {cure}" for cure in cures)


def find_bottlenecks(case: Case) -> tuple[Bottleneck, ...]:
    """What holds a projection: shares of the step first, the largest first, then memory and scaling.

    Args:
        case: a job that its strategy can spread over its devices; whether it fits is no matter.
    """
    found = [_found(detector, case) for detector in DETECTORS]
    shares = [item for item in found if item is not None]
    return (*sorted(shares, key=lambda item: (item.of != THE_STEP, -item.share)), *_scaling(case))


def _found(detector: Detector, case: Case) -> Bottleneck | None:
    share = detector.share(case)
    if share < detector.smallest:
        return None
    remedies = _remedies(detector, case, share)
    fields = (detector.name, detector.category, detector.kind, detector.phase)
    return Bottleneck(*fields, share, detector.of, detector.why(case), remedies)


def _remedies(detector: Detector, case: Case, share: float) -> tuple[Remedy, ...]:
    found: dict[str, Remedy] = {}
    for what in detector.changes:
        changed = case.changed(what)
        if changed is None or changed[1].projection.reason:
            continue
        text, other = changed
        after, speedup = detector.share(other), other.samples_per_s() / case.samples_per_s()
        if after < 0.95 * share and (speedup > 1 or detector.of != THE_STEP):
            found[text] = Remedy(text, after, speedup)
    best = sorted(found.values(), key=lambda item: -item.speedup)
    return tuple(best[:REMEDIES])


def _scaling(case: Case) -> tuple[Bottleneck, ...]:
    limit = case.strategy.limit(case.job)
    if case.job.devices == 1 or 2 * case.job.devices <= limit.max_devices:
        return ()
    why = f"{limit.max_devices} devices are the most, because {limit.reason}"
    return (Bottleneck("number of devices", "scaling", "L", "all", 0.0, THE_STEP, why),)
