"""Network calibrations: their named constants, how they are stored, and the JSON that carries them elsewhere.

The format `stepgauge-network-1` is one object with `format`, `created_at` and the fields of
`calibration.link_values.LinkCalibration`: `name`, `fabric`, `curves` (each with `key`, `sizes_bytes`, `seconds`,
`alpha_beta`, `pieces`, `smooth`, `held_out_error`, `repeat_log_sd`, `rank_ratio`), `laws`, `contention`, `overlap`,
`overheads`, `spread`, `notes`. Seconds and bytes; what the fields mean is in that module. Files from before `overlap`,
`overheads` and a key's `form` were there are read as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from calibration.link_values import NORMAL_80, AffinePiece, CurveKey, LinkCalibration, Measured
from db.networks import Network, NetworkConstant
from db.reading import Reader
from oracle.errors import BadInput

FORMAT = "stepgauge-network-1"

_LONGEST_NAME = 200
_EVERYWHERE = CurveKey("", 0, 0)


def named_constants(known: LinkCalibration) -> Iterator[NetworkConstant]:
    """Every constant of a network that has a name: of its curves and laws in ranks, and of all of it."""
    for curve in known.curves:
        key = curve.key
        where = f"{_place(key)}.{key.dtype}{_form(key.form)}"
        yield from _of_piece(where, key, curve.alpha_beta)
        if len(curve.pieces) > 1:
            for number, piece in enumerate(curve.pieces, start=1):
                yield from _of_piece(f"{where}.{piece.label or f'piece{number}'}", key, piece)
    for law in known.laws:
        key = CurveKey(law.collective, 0, 0, law.dtype, law.environment)
        for branch in law.branches:
            where = f"{law.collective}.{law.ranks_per_node}per_node.{law.dtype}{_form(law.form)}.law.{branch.name}"
            yield _constant(f"{where}.start_s", key, branch.start_s, "s")
            yield _constant(f"{where}.round_s", key, branch.round_s, "s")
            yield _constant(f"{where}.s_per_byte", key, branch.s_per_byte, "s/B")
    yield from _of_company(known)
    yield _constant("spread.half_80", _EVERYWHERE, known.spread.half_80, "1")
    yield _constant("spread.half_90", _EVERYWHERE, known.spread.half_90, "1")


def _of_company(known: LinkCalibration) -> Iterator[NetworkConstant]:
    """What other groups, kernels and the framework make of a transfer."""
    for item in known.contention:
        where = f"contention.{'between_nodes' if item.between_nodes else 'inside_node'}.{item.concurrent}groups"
        yield replace(_constant(where, _EVERYWHERE, item.factor, "1"), lo=item.lo, hi=item.hi)
    for overlap in known.overlap:
        key = CurveKey(overlap.collective, overlap.ranks, overlap.nodes, environment=overlap.environment)
        where = f"overlap.{_place(key)}.{overlap.kernel.replace(' ', '_')}"
        yield _measured(f"{where}.of_kernels", key, overlap.of_kernels, "1")
        yield _measured(f"{where}.of_collective", key, overlap.of_collective, "1")
    for overhead in known.overheads:
        key = CurveKey(overhead.collective, overhead.ranks, overhead.nodes, overhead.dtype, overhead.environment)
        yield _measured(f"{_place(key)}.{key.dtype}.framework_s", key, overhead.seconds, "s")


def _place(key: CurveKey) -> str:
    return f"{key.collective}.{key.ranks}ranks.{key.nodes}nodes"


def _form(form: str) -> str:
    """`.pattern_one_way`: part of a constant's name, empty for plain calls."""
    return f".{re.sub('[^a-z0-9]+', '_', form)}" if form else ""


def _measured(name: str, key: CurveKey, value: Measured, unit: str) -> NetworkConstant:
    return replace(_constant(name, key, value.value, unit), lo=value.lo, hi=value.hi)


def _of_piece(where: str, key: CurveKey, piece: AffinePiece) -> Iterator[NetworkConstant]:
    yield _constant(f"{where}.alpha_s", key, piece.alpha_s, "s", piece.alpha_log_sd)
    yield _constant(f"{where}.s_per_byte", key, piece.s_per_byte, "s/B", piece.beta_log_sd)


def _constant(name: str, key: CurveKey, value: float, unit: str, log_sd: float | None = None) -> NetworkConstant:
    lo = hi = None
    if log_sd is not None and value > 0:
        lo, hi = value * math.exp(-NORMAL_80 * log_sd), value * math.exp(NORMAL_80 * log_sd)
    return NetworkConstant(
        name=name,
        collective=key.collective,
        ranks=key.ranks,
        nodes=key.nodes,
        dtype=key.dtype,
        environment=key.environment,
        job=key.job,
        value=value,
        unit=unit,
        lo=lo,
        hi=hi,
    )


def stored_form(known: LinkCalibration, created_at: str) -> Network:
    """A network calibration as the store keeps it."""
    return Network(known.name, known.fabric, created_at, known.to_dict(), tuple(named_constants(known)))


def link_calibration(network: Network) -> LinkCalibration:
    """The network calibration in what the store keeps.

    Raises:
        BadInput: it was tampered with.
    """
    return LinkCalibration.from_dict(network.content)


def network_names(store: Reader) -> set[str]:
    """The names of all networks of a store."""
    return {summary.name for summary in store.networks()}


def to_json(network: Network) -> str:
    """A network as JSON text, format `stepgauge-network-1`."""
    return json.dumps({"format": FORMAT, "created_at": network.created_at, **network.content}, indent=1)


def from_document(document: Mapping[str, Any], name: str | None) -> Network:
    """Read what `to_json` wrote, under its own name or another.

    Raises:
        BadInput: a field is missing, of a wrong type or impossible.
    """
    known = LinkCalibration.from_dict(document)
    if name is not None:
        known = replace(known, name=name)
    if not known.name.strip() or len(known.name) > _LONGEST_NAME:
        raise BadInput(f"a network's name has 1 to {_LONGEST_NAME} characters")
    try:
        created_at = datetime.fromisoformat(str(document["created_at"])).isoformat(timespec="seconds")
    except (KeyError, ValueError):
        raise BadInput("a network needs 'created_at', a time in ISO 8601") from None
    return stored_form(known, created_at)
