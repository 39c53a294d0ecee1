"""What the fit of a network found, as plain numbers: curves, laws in ranks, contention, overlap, overhead, spread.

A curve belongs to one (collective, ranks, nodes, dtype, environment, job, form). Two environments are never one curve:
NCCL versions, variables and node sets change times by factors, and an average of two networks is the price of neither.
A *job* is one run on one set of nodes inside an environment: its curves stay apart as well, but they may serve as the
scales of one series (every rank count of a scaling study is its own job), and several jobs at one scale show what a
repeat does. A *form* is how the same collective was called: the pattern of a send and receive, what lay between calls,
which library called NCCL.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from oracle.errors import BadInput

NORMAL_80 = 1.2815515655446004
"""Standard deviations that an 80 % interval of a normal distribution reaches to each side."""

FEW_MEASUREMENTS = 5
"""Below so many measurements a quantile of them is none."""


def _check(numbers: Iterable[float], where: str, *, above_zero: bool = False) -> None:
    for number in numbers:
        if not (math.isfinite(number) and (number > 0 if above_zero else number >= 0)):
            raise BadInput(f"{where} holds {number}; it takes finite numbers {'above' if above_zero else 'from'} zero")


@dataclass(frozen=True)
class AffinePiece:
    """t = alpha_s + s_per_byte * bytes: one protocol and algorithm of a collective, or the Hockney model of all of it.

    Args:
        alpha_s: seconds of an empty message.
        s_per_byte: seconds that every further byte of the whole buffer takes.
        alpha_log_sd, beta_log_sd: standard error of the logarithm of each; None where the sizes do not identify it.
        label: NCCL's own `ALGORITHM/PROTOCOL`, where a log names it.
    """

    alpha_s: float
    s_per_byte: float
    alpha_log_sd: float | None = None
    beta_log_sd: float | None = None
    label: str = ""

    def __post_init__(self) -> None:
        numbers = (self.alpha_s, self.s_per_byte, self.alpha_log_sd or 0.0, self.beta_log_sd or 0.0)
        _check(numbers, f"the affine piece {self.label}".strip())

    def seconds(self, size_bytes: float) -> float:
        """Time of one message of `size_bytes`, in seconds.

        >>> AffinePiece(1e-5, 1e-9).seconds(1e4)
        2e-05
        """
        return self.alpha_s + self.s_per_byte * size_bytes


@dataclass(frozen=True, order=True)
class CurveKey:
    """What a curve belongs to.

    Args:
        collective: a canonical name such as all_reduce.
        ranks: devices that take part.
        nodes: machines that they sit on; 0 where nobody wrote it down.
        dtype: the type of the items.
        environment: what may never be merged (NCCL version, variables, cluster).
        job: the run on one set of nodes; may be empty.
        form: how it was called, such as `pattern=one_way`; empty for plain calls back to back.
    """

    collective: str
    ranks: int
    nodes: int
    dtype: str = ""
    environment: str = ""
    job: str = ""
    form: str = ""

    @property
    def ranks_per_node(self) -> int:
        """Devices of each node; 0 where the nodes are unknown or unequal."""
        return 0 if not self.nodes or self.ranks % self.nodes else self.ranks // self.nodes

    @property
    def text(self) -> str:
        """How messages name it."""
        nodes = f"{self.nodes} node{'s' if self.nodes != 1 else ''}" if self.nodes else "unknown nodes"
        what = f"{self.collective} of {self.ranks} ranks on {nodes}"
        parts = (what, self.dtype, self.form, self.environment, self.job)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class LinkCurve:
    """Time against message size of one `CurveKey`.

    Args:
        key: what it belongs to.
        sizes_bytes: the measured sizes (whole buffer), ascending and distinct.
        seconds: the median time of each.
        alpha_beta: the Hockney model with relative weights: the explanation that people know, not the price.
        pieces: the lower envelope of these is the fitted curve; ordered by alpha.
        smooth: whether the envelope alone prices it, since it foretold left-out sizes better than interpolation did.
        held_out_error: mean |predicted / measured - 1| of sizes left out of the fit; None where there are too few.
        repeat_log_sd: spread of repeats of one size, sd of ln(seconds); None where nothing was repeated.
        rank_ratio: median over sizes of (slowest rank / median rank); None where ranks were not kept apart.
    """

    key: CurveKey
    sizes_bytes: tuple[float, ...]
    seconds: tuple[float, ...]
    alpha_beta: AffinePiece
    pieces: tuple[AffinePiece, ...]
    smooth: bool = False
    held_out_error: float | None = None
    repeat_log_sd: float | None = None
    rank_ratio: float | None = None

    def __post_init__(self) -> None:
        where = f"the curve of {self.key.text}"
        if len(self.sizes_bytes) < 2 or len(self.sizes_bytes) != len(self.seconds):
            raise BadInput(f"{where} needs at least two sizes and a time for each")
        if not all(a < b for a, b in zip(self.sizes_bytes, self.sizes_bytes[1:], strict=False)):
            raise BadInput(f"{where} has sizes that do not ascend")
        if not self.pieces:
            raise BadInput(f"{where} has no pieces")
        _check((*self.sizes_bytes, *self.seconds), where, above_zero=True)
        _check([x for x in (self.held_out_error, self.repeat_log_sd, self.rank_ratio) if x is not None], where)


@dataclass(frozen=True)
class Branch:
    """One algorithm of the joint law: t = start_s + round_s * rounds(p, N) + s_per_byte * share(p, N) * bytes."""

    name: str
    start_s: float
    round_s: float
    s_per_byte: float

    def __post_init__(self) -> None:
        _check((self.start_s, self.round_s, self.s_per_byte), f"the branch '{self.name}' of a law in ranks")


@dataclass(frozen=True)
class RankLaw:
    """How a series of curves between nodes grows with ranks: the joint law over sizes and ranks.

    Args:
        collective, dtype, environment, ranks_per_node, form: the series.
        branches: the algorithms; the fastest is taken, as NCCL does.
        ranks: the scales it was fitted on.
    """

    collective: str
    dtype: str
    environment: str
    ranks_per_node: int
    branches: tuple[Branch, ...]
    ranks: tuple[int, ...]
    form: str = ""


@dataclass(frozen=True)
class Measured:
    """A constant that was measured several times.

    Args:
        value: the median.
        lo, hi: hold 80 % of the measurements; with fewer than five, all of them.
        n: how many.
    """

    value: float
    lo: float
    hi: float
    n: int

    def __post_init__(self) -> None:
        _check((self.hi - self.value, self.value - self.lo), "the interval of a constant")

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured:
        """From at least one measurement.

        >>> Measured.of([1.0, 3.0, 2.0])
        Measured(value=2.0, lo=1.0, hi=3.0, n=3)
        """
        edges = (0.1, 0.9) if len(values) >= FEW_MEASUREMENTS else (0.0, 1.0)
        lo, value, hi = np.quantile(values, [edges[0], 0.5, edges[1]])
        return cls(float(value), float(lo), float(hi), len(values))

    @property
    def log_sd(self) -> float:
        """Standard deviation of ln(value), from the interval of a positive constant."""
        return math.log(self.hi / self.lo) / (2 * NORMAL_80)


@dataclass(frozen=True)
class Contention:
    """By how much `concurrent` groups on the same links stretch the per-byte part of each other's time.

    Args:
        between_nodes: whether the links are those between nodes.
        concurrent: groups at the same time.
        factor: of time at bandwidth-bound sizes; 1 = they do not meet.
        lo, hi: 80 % interval over sizes and curves; None where nobody kept it.
    """

    between_nodes: bool
    concurrent: int
    factor: float
    lo: float | None = None
    hi: float | None = None

    def __post_init__(self) -> None:
        if self.concurrent < 2:
            raise BadInput(f"contention is between at least two groups, not {self.concurrent}")
        _check((self.factor, self.lo or self.factor, self.hi or self.factor), "a contention factor", above_zero=True)

    @property
    def half(self) -> float:
        """Half-width of the 80 % interval in ln(factor)."""
        return 0.5 * math.log(self.hi / self.lo) if self.hi and self.lo else 0.0


@dataclass(frozen=True)
class Overlap:
    """By how much a collective and a kernel slow one another down where they run at the same time.

    Args:
        collective, ranks, nodes, environment: of the collective.
        kernel: what ran beside it, with its size.
        of_kernels: time of the kernel beside the collective over its time alone.
        of_collective: time of the collective beside the kernel over its time alone.
    """

    collective: str
    ranks: int
    nodes: int
    environment: str
    kernel: str
    of_kernels: Measured
    of_collective: Measured

    def __post_init__(self) -> None:
        _check((self.of_kernels.lo, self.of_collective.lo), f"the overlap with {self.kernel}", above_zero=True)


@dataclass(frozen=True)
class Overhead:
    """What torch.distributed adds to a small collective, in seconds: its time less that of the same NCCL through CuPy.

    Args:
        collective, ranks, nodes, dtype, environment: of both curves.
        seconds: at each small size that both have.
    """

    collective: str
    ranks: int
    nodes: int
    dtype: str
    environment: str
    seconds: Measured


@dataclass(frozen=True)
class Spread:
    """How far sizes that were left out lay from their curve, pooled over a fabric.

    Args:
        half_80, half_90: half-widths of the 80 and 90 % interval, in units of `link_curves.doubt`.
        residuals: how many they come from; 0 where defaults stand in.
    """

    half_80: float
    half_90: float
    residuals: int

    def __post_init__(self) -> None:
        _check((self.half_80, self.half_90), "the spread of a fabric", above_zero=True)
        if self.half_90 < self.half_80:
            raise BadInput("the 90 % interval of a fabric is narrower than its 80 % interval")


ASSUMED_SPREAD = Spread(0.25, 0.4, 0)
"""That of a fabric with too few sizes to leave any out."""


@dataclass(frozen=True)
class LinkCalibration:
    """Everything known of one fabric. Immutable: a second import of a cluster is a new calibration.

    Args:
        name: what people call it.
        fabric: the devices and links, in words.
        curves: one for each key.
        laws: of the series with enough scales.
        contention: measured factors.
        overlap: measured factors.
        overheads: of torch.distributed, where CuPy was measured too.
        spread: pooled over the curves.
        notes: what the fit wants said whenever it is used.
    """

    name: str
    fabric: str
    curves: tuple[LinkCurve, ...]
    laws: tuple[RankLaw, ...] = ()
    contention: tuple[Contention, ...] = ()
    spread: Spread = ASSUMED_SPREAD
    notes: tuple[str, ...] = ()
    overlap: tuple[Overlap, ...] = ()
    overheads: tuple[Overhead, ...] = ()

    def __post_init__(self) -> None:
        if not self.curves:
            raise BadInput(f"calibration '{self.name}' has no curves")
        key, count = Counter(curve.key for curve in self.curves).most_common(1)[0]
        if count > 1:
            raise BadInput(f"calibration '{self.name}' has the curve of {key.text} twice")

    @property
    def environments(self) -> tuple[str, ...]:
        """The environments it holds, sorted."""
        return tuple(sorted({curve.key.environment for curve in self.curves}))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` gives an equal calibration back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LinkCalibration:
        """Read what `to_dict` wrote.

        Raises:
            BadInput: a field is missing, unknown, of a wrong type or impossible.
        """
        try:
            return cls(
                name=str(values["name"]),
                fabric=str(values["fabric"]),
                curves=tuple(_curve(item) for item in values["curves"]),
                laws=tuple(_law(item) for item in values["laws"]),
                contention=tuple(Contention(**item) for item in values["contention"]),
                spread=Spread(**values["spread"]),
                notes=tuple(str(note) for note in values["notes"]),
                overlap=tuple(_overlap(item) for item in values.get("overlap", ())),
                overheads=tuple(
                    Overhead(**{**item, "seconds": Measured(**item["seconds"])}) for item in values.get("overheads", ())
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"this is no calibration of links: {type(error).__name__} {error}") from None


def _curve(values: Mapping[str, Any]) -> LinkCurve:
    parts = {
        **values,
        "key": _key(values["key"]),
        "sizes_bytes": tuple(map(float, values["sizes_bytes"])),
        "seconds": tuple(map(float, values["seconds"])),
        "alpha_beta": AffinePiece(**values["alpha_beta"]),
        "pieces": tuple(AffinePiece(**piece) for piece in values["pieces"]),
    }
    return LinkCurve(**parts)


def _key(values: Mapping[str, Any]) -> CurveKey:
    texts = {name: str(values[name]) for name in ("collective", "dtype", "environment", "job")}
    texts["form"] = str(values.get("form", ""))  # what was exported before forms were told apart has none
    return CurveKey(ranks=int(values["ranks"]), nodes=int(values["nodes"]), **texts)


def _law(values: Mapping[str, Any]) -> RankLaw:
    branches = tuple(Branch(**branch) for branch in values["branches"])
    return RankLaw(**{**values, "branches": branches, "ranks": tuple(map(int, values["ranks"]))})


def _overlap(values: Mapping[str, Any]) -> Overlap:
    factors = {name: Measured(**values[name]) for name in ("of_kernels", "of_collective")}
    return Overlap(**{**values, **factors})
