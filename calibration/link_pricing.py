"""A `LinkCalibration` as the oracle's `TransferTimer`. NumPy only.

A transfer says its group and tier; a series says its ranks and nodes. Tier 0 is the inside of a node as far as the
calibration has curves that large; everything else lies between nodes. Groups between nodes that share their links with
others (`concurrent` above 1) are taken for one device of each node, where such curves were measured, others for full
nodes. Where only the inside of nodes and one device of each were measured, the collective is composed as a hierarchy:
reduce-scatter inside, the share of each device between, all-gather inside (Jia et al., 2018; Cho et al., 2019); its
parts follow one another, so it is an upper estimate where a library pipelines them.

Of the forms in which a collective was called, the one with the most scales answers, and among equals the one that is
most like a training step: kernels between calls, then a pause, then back to back; a send and receive as an exchange or
around a ring before one way alone, because halos exchange and it is never less. CuPy answers only where torch cannot.

Concurrent groups stretch the bandwidth-bound part t - alpha by the measured factor; between and beyond measured numbers
of groups the factor grows in a straight line from 1. Where no contention was measured the links are taken to be shared
out evenly (ParaDL's phi), and the price counts as extrapolated.

Draws: a price is scattered by a row of 64 numbers that depends on the fabric, the collective, its scale and, to one
half, on its size to the next power of two: sizes of one curve are wrong together more often than not. The row is bent
so that its 80 and 90 % intervals are the measured ones, which have heavier tails than a normal distribution. The
middle is the median, and the mean of the draws lies above it, as it does for times on a network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.draws import standard_rows
from calibration.link_overlap import slowdown_of
from calibration.link_rows import canonical
from calibration.link_series import Answer, LinkSeries
from calibration.link_values import NORMAL_80, CurveKey, LinkCalibration, LinkCurve, RankLaw
from oracle.errors import BadInput, NotCalibrated, OutOfRange, UnknownName
from oracle.estimate import DRAWS, Floats
from oracle.pricing import Method, Prices, Slowdown, Transfer

_NORMAL_90 = 1.6448536269514722
_COMMON = np.sqrt(0.5)
_SHARED_OUT_HALF = 0.4
_COMPOSED_HALF = 0.25

COMPOSED: dict[str, tuple[tuple[str, bool], ...]] = {
    "all_reduce": (("reduce_scatter", False), ("all_reduce", True), ("all_gather", False)),
    "all_gather": (("all_gather", True), ("all_gather", False)),
    "reduce_scatter": (("reduce_scatter", False), ("reduce_scatter", True)),
    "broadcast": (("broadcast", True), ("broadcast", False)),
}
"""Collective -> its parts in a hierarchy: which collective, and whether it runs between nodes (else inside)."""

_Layout = tuple[str, int]
"""Collective and ranks per node; 0 for the inside of one node, -1 where nodes are unknown."""

_INSIDE, _UNKNOWN = 0, -1


@dataclass(frozen=True)
class _Place:
    """What transfers have in common that are priced together."""

    collective: str
    group: int
    tier: int
    concurrent: int


class LinkTimer:
    """Prices transfers on the calibrated network in one environment.

    Args:
        calibration: what is known of the fabric.
        environment: which of its environments; may be left out where there is one.
        dtype: of the items, preferred where a collective was measured with several.

    Raises:
        BadInput: there are several environments and none was chosen.
        UnknownName: no such environment.
    """

    def __init__(self, calibration: LinkCalibration, environment: str | None = None, dtype: str | None = None) -> None:
        self.calibration = calibration
        self.environment = _chosen(calibration, environment)
        self._overlap = [item for item in calibration.overlap if item.environment == self.environment]
        mine = [curve for curve in calibration.curves if curve.key.environment == self.environment]
        laws = [law for law in calibration.laws if law.environment == self.environment]
        self._series = {
            layout: _series(curves, laws, calibration, dtype) for layout, curves in _by_layout(mine).items()
        }
        inside = [curve.key.ranks for curve in mine if curve.key.nodes == 1]
        self.ranks_per_node = max([*inside, *(curve.key.ranks_per_node for curve in mine)], default=1)

    def price(self, transfers: Sequence[Transfer]) -> Prices:
        """Seconds of each transfer, all its messages together; see `oracle.pricing.TransferTimer`.

        Raises:
            OutOfRange: a size, group or count that no transfer has.
            NotCalibrated: nothing is known of this collective at this place.
        """
        middle, draws = np.zeros(len(transfers)), np.zeros((len(transfers), DRAWS))
        methods = [Method.FITTED] * len(transfers)
        by_place: dict[_Place, list[int]] = defaultdict(list)
        for index, transfer in enumerate(transfers):
            _check(transfer)
            place = _Place(canonical(transfer.collective), transfer.group, transfer.tier, transfer.concurrent)
            by_place[place].append(index)
        for place, members in by_place.items():
            if place.group == 1:
                continue
            sizes = np.array([float(transfers[index].bytes) for index in members])
            messages = np.array([float(transfers[index].messages) for index in members])
            answer = self._answer(place, sizes)
            seconds = messages * np.exp(answer.log_s)
            middle[members] = np.where(sizes > 0, seconds, 0.0)
            draws[members] = middle[members][:, None] * np.exp(self._scatter(place, sizes, answer))
            for index, method in zip(members, methods_of(answer), strict=True):
                methods[index] = method
        return Prices(middle, draws, tuple(methods))

    def slowdown(self, transfers: Sequence[Transfer]) -> Slowdown:
        """By how much kernels and these transfers slow one another down; see `oracle.pricing.TransferTimer`."""
        moving = [transfer for transfer in transfers if transfer.group > 1]
        between = any(transfer.tier > 0 or transfer.group > self.ranks_per_node for transfer in moving)
        names = {canonical(transfer.collective) for transfer in moving}
        where = f"overlap/{self.calibration.fabric}/{self.environment}"
        return slowdown_of(self._overlap, names, between, where)

    def at(self, collective: str, ranks: int, nodes: int, sizes_bytes: Floats) -> Answer:
        """What is known of a collective on so many nodes, which need not be full ones; 0 for unknown nodes.

        Raises:
            NotCalibrated: nothing is known of this collective at this place.
        """
        known = nodes > 0 and ranks % nodes == 0
        layout = _INSIDE if nodes == 1 else ranks // nodes if known else _UNKNOWN
        series = self._series.get((collective, layout))
        if series is not None:
            return series.read(ranks, sizes_bytes)
        inside = nodes == 1 or (nodes == 0 and ranks <= self.ranks_per_node)
        return self._answer(_Place(collective, ranks, 0 if inside else 1, 1), sizes_bytes)

    def _answer(self, place: _Place, sizes: Floats) -> Answer:
        sizes = np.maximum(sizes, 1.0)
        series = self._direct(place)
        answer = series.read(place.group, sizes) if series else self._composed(place, sizes)
        if series is None or place.concurrent == 1:
            return answer
        return self._stretched(answer, series.key.nodes != 1, place.concurrent)

    def _direct(self, place: _Place) -> LinkSeries | None:
        """The series that prices the place, or None where it has to be composed."""
        if place.tier == 0 and place.group <= self.ranks_per_node:
            inside = self._series.get((place.collective, _INSIDE)) or self._series.get((place.collective, _UNKNOWN))
            if inside is None:
                raise self._missing(place)
            return inside
        layouts = [layout for name, layout in self._series if name == place.collective and layout != _INSIDE]
        if not layouts:
            return None
        fits = [layout for layout in layouts if layout > 0 and place.group % layout == 0 and place.group > layout]
        if place.concurrent > 1 and 1 in fits:
            return self._series[(place.collective, 1)]
        if max(layouts) == 1 and self._can_compose(place):
            return None
        return self._series[(place.collective, max(fits or layouts))]

    def _can_compose(self, place: _Place) -> bool:
        full = place.group > self.ranks_per_node > 1 and place.group % self.ranks_per_node == 0
        return full and place.concurrent == 1 and place.collective in COMPOSED

    def _composed(self, place: _Place, sizes: Floats) -> Answer:
        """A hierarchy of the inside of nodes and one device of each."""
        if not self._can_compose(place):
            raise self._missing(place)
        local, nodes = self.ranks_per_node, place.group // self.ranks_per_node
        parts = []
        for collective, between in self._parts(place):
            series = self._series.get((collective, 1 if between else _INSIDE))
            if series is None:
                raise self._missing(place)
            if not between:
                parts.append(series.read(local, sizes))
                continue
            share = sizes if collective == "broadcast" else sizes / local
            parts.append(self._stretched(series.read(nodes, share), True, local))
        log_s = np.log(np.sum([np.exp(part.log_s) for part in parts], axis=0))
        widest_80 = np.max([part.half_80 for part in parts], axis=0)
        widest_90 = np.max([part.half_90 for part in parts], axis=0)
        nothing, everything = np.zeros(len(sizes), dtype=np.bool_), np.ones(len(sizes), dtype=np.bool_)
        alpha = sum(part.alpha_s for part in parts)
        return _widened(Answer(log_s, widest_80, widest_90, nothing, everything, alpha), _COMPOSED_HALF)

    def _parts(self, place: _Place) -> tuple[tuple[str, bool], ...]:
        """The parts of a hierarchy; an all_reduce inside stands for its two halves where those were not measured."""
        parts = COMPOSED[place.collective]
        inside = [collective for collective, between in parts if not between]
        if place.collective == "all_reduce" and not all((name, _INSIDE) in self._series for name in inside):
            return (("all_reduce", False), ("all_reduce", True))
        return parts

    def _stretched(self, answer: Answer, between: bool, concurrent: int) -> Answer:
        """What concurrent groups on the same links make of a price."""
        measured = [c for c in self.calibration.contention if c.between_nodes == between]
        known = {c.concurrent: c.factor for c in measured}
        if concurrent in known:
            factor = known[concurrent]
        elif known:
            factor = 1 + float(np.median([(f - 1) / (n - 1) for n, f in known.items()])) * (concurrent - 1)
        else:
            factor = float(concurrent)
        seconds = np.exp(answer.log_s)
        alpha = np.minimum(answer.alpha_s, seconds)
        stretched = Answer(
            log_s=np.log(alpha + factor * (seconds - alpha)),
            half_80=answer.half_80,
            half_90=answer.half_90,
            measured=np.zeros_like(answer.measured),
            extrapolated=answer.extrapolated | (not known),
            alpha_s=answer.alpha_s,
        )
        shared = max((c.half for c in measured), default=_SHARED_OUT_HALF)
        return _widened(stretched, shared * (1 - alpha / seconds))

    def _scatter(self, place: _Place, sizes: Floats, answer: Answer) -> Floats:
        """ln(draw / middle), shape (n, DRAWS), with the intervals of the answer."""
        where = f"links/{self.calibration.fabric}/{self.environment}/{place.collective}/{place.group}/{place.tier}"
        common = standard_rows(where, 1)[0]
        buckets = np.round(np.log2(np.maximum(sizes, 1.0))).astype(int)
        own = {bucket: standard_rows(f"{where}/{bucket}", 1)[0] for bucket in np.unique(buckets)}
        rows = _COMMON * (common + np.array([own[bucket] for bucket in buckets]))
        rows /= rows.std(axis=1, keepdims=True)
        return _bent(rows, answer)

    def _missing(self, place: _Place) -> NotCalibrated:
        known = sorted({f"{name} {_layout_text(layout)}" for name, layout in self._series})
        where = "inside one node" if place.tier == 0 else "between nodes"
        return NotCalibrated(
            f"calibration '{self.calibration.name}' has no {place.collective} of {place.group} devices {where}; "
            f"it has {', '.join(known)}"
        )


def _bent(rows: Floats, answer: Answer) -> Floats:
    """Standard normal rows stretched so that their central 80 and 90 % reach the half-widths of the answer."""
    size = np.abs(rows)
    near, far = answer.half_80[:, None], answer.half_90[:, None]
    slope = (far - near) / (_NORMAL_90 - NORMAL_80)
    reach = np.where(size <= NORMAL_80, near * size / NORMAL_80, near + slope * (size - NORMAL_80))
    bent: Floats = np.sign(rows) * reach
    return bent


def _widened(answer: Answer, half: Floats | float) -> Answer:
    return Answer(
        log_s=answer.log_s,
        half_80=np.hypot(answer.half_80, half),
        half_90=np.hypot(answer.half_90, 1.2835 * half),
        measured=answer.measured,
        extrapolated=answer.extrapolated,
        alpha_s=answer.alpha_s,
    )


def methods_of(answer: Answer) -> Iterable[Method]:
    """How each price of an answer is known."""
    for measured, outside in zip(answer.measured, answer.extrapolated, strict=True):
        if outside:
            yield Method.EXTRAPOLATED
        else:
            yield Method.MEASURED if measured else Method.FITTED


def _check(transfer: Transfer) -> None:
    possible: tuple[tuple[str, float, Callable[[float], bool]], ...] = (
        ("bytes", transfer.bytes, lambda value: 0 <= value < np.inf),
        ("group", transfer.group, lambda value: value >= 1),
        ("concurrent", transfer.concurrent, lambda value: value >= 1),
        ("messages", transfer.messages, lambda value: value >= 0),
    )
    for what, value, fine in possible:
        if not fine(value):
            raise OutOfRange(f"the {what} of a {transfer.collective} cannot be {value}")


def _chosen(calibration: LinkCalibration, environment: str | None) -> str:
    known = calibration.environments
    if environment is None:
        if len(known) > 1:
            raise BadInput(
                f"calibration '{calibration.name}' holds {len(known)} environments; choose one: {', '.join(known)}"
            )
        return known[0]
    if environment not in known:
        raise UnknownName("environment", environment, known)
    return environment


def _by_layout(curves: Iterable[LinkCurve]) -> dict[_Layout, list[LinkCurve]]:
    found: dict[_Layout, list[LinkCurve]] = defaultdict(list)
    for curve in curves:
        key = curve.key
        layout = _INSIDE if key.nodes == 1 else key.ranks_per_node or _UNKNOWN
        found[(key.collective, layout)].append(curve)
    return dict(found)


def _series(
    curves: Sequence[LinkCurve], laws: Sequence[RankLaw], calibration: LinkCalibration, dtype: str | None
) -> LinkSeries:
    """The curves of one layout in one dtype (the wanted one, else that with the most scales) and one form."""
    dtypes = sorted({curve.key.dtype for curve in curves})
    name = dtype if dtype in dtypes else max(dtypes, key=lambda item: _scales(curves, lambda key: key.dtype == item))
    curves = [curve for curve in curves if curve.key.dtype == name]
    forms = sorted({curve.key.form for curve in curves}, key=_preference)
    form = max(forms, key=lambda item: _scales(curves, lambda key: key.form == item))
    own = [curve for curve in curves if curve.key.form == form]
    key = own[0].key
    mine = (key.collective, name, key.ranks_per_node, form)
    law = next(
        (law for law in laws if (law.collective, law.dtype, law.ranks_per_node, law.form) == mine and key.nodes > 1),
        None,
    )
    return LinkSeries(own, law, calibration.spread)


def _scales(curves: Sequence[LinkCurve], wanted: Callable[[CurveKey], bool]) -> int:
    """At how many scales the wanted curves were measured."""
    return len({curve.key.ranks for curve in curves if wanted(curve.key)})


def _preference(form: str) -> tuple[bool, bool, int]:
    """Among forms measured at equally many scales the least comes first; see the module."""
    spacing = form.partition("spacing=")[2]
    return ("api=" in form, "one_way" in form, 2 if not spacing else int(spacing.startswith("pause")))


def _layout_text(layout: int) -> str:
    if layout == _INSIDE:
        return "inside one node"
    return "on unknown nodes" if layout == _UNKNOWN else f"between nodes ({layout} per node)"
