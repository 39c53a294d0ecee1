"""Price every row of a table of collectives or kernels, and score the prices where rows carry a time.

Errors are |predicted / measured - 1|; an interval holds when lo <= measured <= hi; its half-width is sqrt(hi / lo) - 1,
since intervals are even in the logarithm. Nothing is pooled over groups.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.features import family
from calibration.link_lookup import LinkLookup
from calibration.link_pricing import methods_of
from calibration.link_rows import canonical
from calibration.link_sources import FABRIC_KEYS, label
from calibration.link_values import CurveKey
from calibration.step_factor import of_kernels_alone
from calibration.timers import CalibratedTimer
from db.reading import Reader
from oracle.constants import Calibration
from oracle.errors import BadInput, NotCalibrated
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.pricing import LayerCall
from profiler.importers.collectives import DTYPES, collective_name
from profiler.importers.kernel_cases import Unusable, call_of, execution_of
from profiler.importers.tidy import Cells
from profiler.importers.tidy_collectives import IDENTITY
from service.network_pricing import environment_of
from service.networks import link_calibration
from service.predicting import find_calibration
from service.row_tables import RowPrice, RowTable, kept_rows, read_table, write_priced

_TOO_LARGE = "the shape is so large that its price is no finite number"
_WORD = re.compile(r"[^\W_]+")

Priced = dict[int, RowPrice | str]
"""Line of a row -> its price, or why it has none."""


@dataclass(frozen=True)
class PriceRequest:
    """Price the rows of a table.

    Args:
        file: a CSV of collectives or kernels, plain or gzip.
        calibration: of a device, for kernels; None takes the newest.
        network: of a network, for collectives.
        environment: of the network, for rows that name none.
        out: where to write the rows with their prices, or None.
        where: `COLUMN=VALUE`, `COLUMN<=NUMBER`...; only such rows are priced.
        by: columns that make the groups of the scores; empty for collective or op.
    """

    file: Path
    calibration: str | None = None
    network: str | None = None
    environment: str | None = None
    out: Path | None = None
    where: tuple[str, ...] = ()
    by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """How the prices of one group of rows with a time compare to it; all but `rows` as fractions."""

    group: str
    rows: int
    mape: float
    median: float
    p90: float
    coverage: float
    half_width: float


@dataclass(frozen=True)
class PriceResult:
    """Priced rows.

    Args:
        rows: that were asked; priced: that have a price.
        unpriced: reason -> rows.
        methods: how prices are known -> rows.
        scores: of each group that has times.
        out: the written file, or an empty text.
    """

    name: str
    rows: int
    priced: int
    unpriced: dict[str, int]
    methods: dict[str, int]
    scores: tuple[Score, ...]
    out: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def price_table(store: Reader, request: PriceRequest) -> PriceResult:
    """Price the rows of a table and score them.

    Raises:
        BadInput: the table cannot be read or the result not written; collectives without a network; no row has a price.
        UnknownName: no such calibration or network.
    """
    table = read_table(request.file)
    rows = kept_rows(table, request.where)
    by = request.by or ("collective" if table.is_of_collectives else "op",)
    for column in by:
        if column not in table.columns:
            raise BadInput(f"--by takes columns of the table ({', '.join(table.columns)}), not '{column}'")
    name, priced = _priced(store, request, table, rows)
    if not any(isinstance(found, RowPrice) for found in priced.values()):
        raise BadInput(_no_price(request.file.name, name, priced))
    prices = [(row, found if isinstance(found := priced[row.line], RowPrice) else None) for row in rows]
    if request.out is not None:
        write_priced(request.out, table, prices)
    return PriceResult(
        name=name,
        rows=len(rows),
        priced=sum(price is not None for _, price in prices),
        unpriced=_reasons(priced),
        methods=dict(Counter(price.method for _, price in prices if price is not None).most_common()),
        scores=tuple(scores(prices, by)),
        out="" if request.out is None else str(request.out),
    )


def _reasons(priced: Priced) -> dict[str, int]:
    """Why rows have no price, and how many, the most frequent first."""
    return dict(Counter(found for found in priced.values() if isinstance(found, str)).most_common())


def _no_price(file: str, name: str, priced: Priced) -> str:
    """Why a whole table has no price: its most frequent reason."""
    reasons = _reasons(priced)
    if not reasons:
        return f"{file} has no rows"
    (reason, count), others = next(iter(reasons.items())), len(reasons) - 1
    more = f" ({count} of them), and {others} further reason{'s' * (others > 1)}" if others else ""
    return f"'{name}' prices none of the {len(priced)} rows of {file}: {reason}{more}"


def _priced(store: Reader, request: PriceRequest, table: RowTable, rows: Sequence[Cells]) -> tuple[str, Priced]:
    if not table.is_of_collectives:
        calibration = find_calibration(store, request.calibration)
        return calibration.name, price_kernels(calibration, rows)
    if request.network is None:
        raise BadInput(f"{request.file.name} holds collectives: name the --network that prices them")
    known = link_calibration(store.network(request.network))
    return known.name, price_collectives(LinkLookup(known, environment_of(known, request.environment)), rows)


def price_collectives(lookup: LinkLookup, rows: Iterable[Cells]) -> Priced:
    """The price of every row of a table of collectives, all rows of one curve together."""
    found: Priced = {}
    by_key: dict[CurveKey, list[Cells]] = defaultdict(list)
    for row in rows:
        try:
            _check_owner(row, lookup.known.fabric, ("gpu", "device", *FABRIC_KEYS))
            by_key[lookup.placed(_key(row))].append(row)
        except (BadInput, NotCalibrated) as error:
            found[row.line] = str(error)
    for key, members in by_key.items():
        try:
            answer = lookup.read(key, np.array([float(row.whole("bytes") or 0) for row in members]))
        except NotCalibrated as error:
            found |= {row.line: str(error) for row in members}
            continue
        seconds, reach = np.exp(answer.log_s), np.exp(answer.half_80)
        for place, (row, method) in enumerate(zip(members, methods_of(answer), strict=True)):
            middle, factor = float(seconds[place]), float(reach[place])
            found[row.line] = RowPrice(middle, middle / factor, middle * factor, str(method))
    return found


def _key(row: Cells) -> CurveKey:
    """The curve that a row asks for.

    Raises:
        BadInput: it names no collective, size or ranks.
    """
    name, ranks, nodes = collective_name(row.text_of("collective")), row.whole("nranks"), row.whole("nnodes") or 0
    if name is None:
        raise BadInput(f"unknown collective '{row.text_of('collective')[:40]}'")
    if not row.whole("bytes"):
        raise BadInput("no whole number of bytes")
    if ranks is None or ranks < 2 or nodes > ranks:
        raise BadInput("fewer than two ranks, no number of ranks, or more nodes than ranks")
    dtype = DTYPES.get(row.text_of("dtype").lower(), ("", 0))[0]
    settings = {name: row.values[name] for name in IDENTITY if name in row.values and name not in FABRIC_KEYS}
    return CurveKey(canonical(name), ranks, nodes, dtype, label(settings))


def _check_owner(row: Cells, owner: str, columns: Iterable[str]) -> None:
    """Refuse a row that says it is of something else than the calibration is of.

    Whole words are compared: `V100` is a Tesla V100-PCIE-32GB, but `A10` is no NVIDIA A100-SXM4-80GB.
    """
    known = set(_WORD.findall(owner))
    for column in columns:
        if not set(_WORD.findall(row.text_of(column))) <= known:
            raise BadInput(f"{column} {row.text_of(column)[:60]} is not what was calibrated")


def price_kernels(calibration: Calibration, rows: Iterable[Cells]) -> Priced:
    """The price of every row of a table of kernels, all rows of one kernel family together."""
    found: Priced = {}
    by_kernels: dict[tuple[Execution, str, Phase], list[tuple[Cells, LayerCall]]] = defaultdict(list)
    for row in rows:
        try:
            _check_owner(row, calibration.device, ("gpu", "device"))
            call = call_of(row)
            if call is None:
                raise Unusable(f"{row.text_of('op')[:40]} is no layer of the oracle")
            execution = execution_of(row)
            call.layer.work(call.phase, call.samples, execution)  # refuses what would end the pricing of all rows
            by_kernels[execution, family(call.layer, call.phase), call.phase].append((row, call))
        except BadInput as error:
            found[row.line] = str(error)
    for (execution, _, _), members in by_kernels.items():
        timer = CalibratedTimer(of_kernels_alone(calibration), execution)
        prices = _kernel_prices(timer, [call for _, call in members])
        found |= {row.line: price for (row, _), price in zip(members, prices, strict=True)}
    return found


def _kernel_prices(timer: CalibratedTimer, calls: Sequence[LayerCall]) -> Sequence[RowPrice | str]:
    """The prices of calls of one kernel family: each, or the reason why there is none."""
    with np.errstate(over="ignore", invalid="ignore"):  # said below, row by row
        try:
            prices = timer.price(calls)
        except NotCalibrated as error:
            return [str(error)] * len(calls)
        lows, highs = np.quantile(prices.draws_s, [0.1, 0.9], axis=1)
    columns = zip(prices.middle_s.tolist(), lows.tolist(), highs.tolist(), prices.methods, strict=True)
    return [
        RowPrice(middle, low, high, str(method)) if math.isfinite(middle + low + high) else _TOO_LARGE
        for middle, low, high, method in columns
    ]


def scores(priced: Sequence[tuple[Cells, RowPrice | None]], by: Sequence[str]) -> Iterator[Score]:
    """The score of each group of rows that have a time and a price."""
    groups: dict[str, list[tuple[float, RowPrice]]] = defaultdict(list)
    for row, price in priced:
        if price is not None and row.seconds > 0:
            groups[", ".join(row.text_of(column) for column in by)].append((row.seconds, price))
    for group, members in sorted(groups.items()):
        measured = np.array([seconds for seconds, _ in members])
        middle, lo, hi = np.array([(price.seconds, price.lo_s, price.hi_s) for _, price in members]).T
        errors = np.abs(middle / measured - 1)
        yield Score(
            group=group,
            rows=len(members),
            mape=float(errors.mean()),
            median=float(np.median(errors)),
            p90=float(np.quantile(errors, 0.9)),
            coverage=float(((lo <= measured) & (measured <= hi)).mean()),
            half_width=float(np.median(np.sqrt(hi / lo) - 1)),
        )
