"""Calibrations as they are read from their rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from db.plain_sql import Ask, Row, json_text, json_value
from oracle.constants import Calibration, Constant, KernelFit, MeasuredShape
from oracle.errors import UnknownName
from oracle.layer import Layer, Phase
from oracle.layers import layer_from_dict
from oracle.stored_array import StoredArray

PROFILE = "profile"
"""The command of a run that times the layers of single models."""

Key = tuple[str, Phase, str]
"""Family, phase and execution of a fit."""


@dataclass(frozen=True)
class CalibrationSummary:
    """A calibration in one line.

    Args:
        constants, shapes: how many it has.
        median_held_out_error, worst_held_out_error: over its fits, as a fraction of the time; None without fits.
        environment: the identity that it was measured in.
    """

    name: str
    device: str
    created_at: str
    constants: int
    shapes: int
    median_held_out_error: float | None
    worst_held_out_error: float | None
    environment: dict[str, str]


def calibration_id(ask: Ask, name: str) -> int | None:
    """The key of the calibration of a name, or None."""
    found = ask("SELECT id FROM calibration WHERE name = :name", name=name)
    return found[0]["id"] if found else None


def known_id(ask: Ask, name: str) -> int:
    """The key of the calibration of a name.

    Raises:
        UnknownName: there is none.
    """
    found = calibration_id(ask, name)
    if found is None:
        raise UnknownName("calibration", name, [row["name"] for row in ask("SELECT name FROM calibration")])
    return found


def find_calibration(ask: Ask, name: str) -> Calibration:
    """The calibration of that very name, each kind of its parts in the order in which it was stored.

    Raises:
        UnknownName: there is none.
        BadInput, KeyError, TypeError, ValueError: rows that no calibration can have left behind.
    """
    found = known_id(ask, name)
    (head,) = ask("SELECT * FROM calibration WHERE id = :id", id=found)
    by_fit: defaultdict[Key, list[Constant]] = defaultdict(list)
    for row in ask("SELECT * FROM constant WHERE calibration_id = :id ORDER BY id", id=found):
        by_fit[_key(row)].append(_constant(row))
    models: defaultdict[Key, list[StoredArray]] = defaultdict(list)
    for row in ask("SELECT * FROM kernel_array WHERE calibration_id = :id ORDER BY id", id=found):
        models[_key(row)].append(_array(row))
    fits = ask("SELECT * FROM kernel_fit WHERE calibration_id = :id ORDER BY id", id=found)
    shapes = ask("SELECT * FROM measured_shape WHERE calibration_id = :id ORDER BY id", id=found)
    layer = _layers()
    return Calibration(
        name=head["name"],
        device=head["device"],
        created_at=head["created_at"],
        environment=json_value(head["environment"]),
        validity_key=head["validity_key"],
        fits=tuple(_fit(row, by_fit[_key(row)], models[_key(row)]) for row in fits),
        shapes=tuple(_shape(row, layer) for row in shapes),
        common_sd=head["common_sd"],
        notes=tuple(json_value(head["notes"])),
    )


def _key(row: Row) -> Key:
    return row["family"], Phase(row["phase"]), row["execution"]


def _constant(row: Row) -> Constant:
    family, phase, execution = _key(row)
    return Constant(
        family=family,
        phase=phase,
        execution=execution,
        quantity=row["quantity"],
        value=row["value"],
        unit=row["unit"],
        lo=row["lo"],
        hi=row["hi"],
        draws=tuple(json_value(row["draws"])),
    )


def _array(row: Row) -> StoredArray:
    numbers = bytes(row["numbers"])  # some drivers of servers give a view of them
    return StoredArray(row["name"], row["dtype"], tuple(json_value(row["shape"])), numbers)


def _fit(row: Row, constants: Sequence[Constant], arrays: Sequence[StoredArray]) -> KernelFit:
    family, phase, execution = _key(row)
    return KernelFit(
        family=family,
        phase=phase,
        execution=execution,
        constants=tuple(constants),
        shapes=row["shapes"],
        samples=row["samples"],
        held_out_error=row["held_out_error"],
        residual_sd=row["residual_sd"],
        flop_lo=row["flop_lo"],
        flop_hi=row["flop_hi"],
        bytes_lo=row["bytes_lo"],
        bytes_hi=row["bytes_hi"],
        arrays=tuple(arrays),
    )


def _layers() -> Callable[[Row], Layer]:
    """Reads the layers of measured shapes, each once: a layer is measured in several phases, on many samples."""
    known: dict[str, Layer] = {}

    def layer(row: Row) -> Layer:
        text = json_text(row["layer"])
        if text not in known:
            known[text] = layer_from_dict(json_value(text))
        return known[text]

    return layer


def _shape(row: Row, layer: Callable[[Row], Layer]) -> MeasuredShape:
    return MeasuredShape(
        layer=layer(row),
        phase=Phase(row["phase"]),
        samples=row["samples"],
        execution=row["execution"],
        seconds=row["median_s"],
        log_sd=row["log_sd"],
        count=row["n"],
    )


def all_calibrations(ask: Ask) -> list[CalibrationSummary]:
    """All calibrations, in the order in which they were stored."""
    from statistics import median  # what reads one calibration does without

    errors: defaultdict[int, list[float]] = defaultdict(list)
    for row in ask("SELECT calibration_id, held_out_error FROM kernel_fit"):
        errors[row["calibration_id"]].append(row["held_out_error"])
    constants = _counts(ask("SELECT calibration_id FROM constant"))
    shapes = _counts(ask("SELECT calibration_id FROM measured_shape"))
    return [
        CalibrationSummary(
            name=head["name"],
            device=head["device"],
            created_at=head["created_at"],
            constants=constants[head["id"]],
            shapes=shapes[head["id"]],
            median_held_out_error=median(errors[head["id"]]) if errors[head["id"]] else None,
            worst_held_out_error=max(errors[head["id"]], default=None),
            environment=json_value(head["environment"]),
        )
        for head in ask("SELECT * FROM calibration ORDER BY id")
    ]


def _counts(rows: Iterable[Row]) -> Counter[int]:
    return Counter(row["calibration_id"] for row in rows)


def newest_calibration(ask: Ask) -> str | None:
    """The name of the newest calibration, of those first that no profile of single models went into."""
    query = """
        SELECT name FROM calibration
        ORDER BY
            CASE WHEN id IN (
                SELECT calibration_run.calibration_id FROM calibration_run
                JOIN run ON run.id = calibration_run.run_id
                WHERE run.command = :profile
            ) THEN 1 ELSE 0 END,
            created_at DESC,
            id
    """
    found = ask(query, profile=PROFILE)
    return found[0]["name"] if found else None


def runs_of(ask: Ask, name: str) -> list[str]:
    """The ids of the runs that a calibration was fitted from, oldest first.

    Raises:
        UnknownName: there is no such calibration.
    """
    query = "SELECT run_id FROM calibration_run WHERE calibration_id = :id ORDER BY run_id"
    return [row["run_id"] for row in ask(query, id=known_id(ask, name))]
