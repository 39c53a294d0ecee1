r"""Calibrations as JSON, to carry them between machines and stores: the format `stepgauge-calibration-2`.

One object with exactly these keys:

    format        "stepgauge-calibration-2"
    name, device, created_at, validity_key    texts
    environment   object of texts
    common_sd     number
    notes         list of texts
    counts        {"fits": how many, "constants": how many, "arrays": how many, "shapes": how many}
    fits          list of {family, phase, execution, shapes, samples, held_out_error, residual_sd, flop_lo, flop_hi,
                  bytes_lo, bytes_hi, quantities, constants, arrays}
    shapes        list of {layer, phase, samples, execution, seconds, log_sd, count}

`quantities` lists the quantities of the fit's `constants`, in order; a constant is {quantity, value, unit, lo, hi,
draws} and takes family, phase and execution from its fit. `arrays` are
{name, dtype, shape, numbers} of the residual model over a roofline (`calibration.stored_model` says what they are) and
empty where the constants add up; `numbers` is a flat list of numbers or texts, the last axis fastest. `layer` is what
`Layer.to_dict` gives. Numbers are in SI and written with all their digits, so that reading gives back the very same
values.

Reading is strict, because a calibration that lost a constant still predicts, only wrongly: a key that is missing,
unknown or doubled, a value of another type, NaN or infinity, an execution that does not go with its phase, and fits,
constants or shapes that do not match `quantities` and `counts` are refused with the place where they stand. There is no
checksum: a number may be edited by hand on purpose, except in a fit with arrays, whose model has to reproduce its
canary predictions when it is used.

`stepgauge-calibration-1`, which had no arrays, is read as well.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from oracle.constants import Calibration, Constant, KernelFit, MeasuredShape
from oracle.errors import BadInput, UnknownName
from oracle.execution import execution_from_key
from oracle.layer import Phase
from oracle.layers import layer_from_dict
from oracle.plain_json import without_doubled_keys
from oracle.stored_array import StoredArray

FORMAT = "stepgauge-calibration-2"
"""What the key `format` says."""

WITHOUT_ARRAYS = "stepgauge-calibration-1"
"""The format before residual models."""

LONGEST_TEXT = 64 * 2**20
"""Characters that are read at most: some three times what a hundred families with 200 shapes each take."""

LONGEST_WHOLE_NUMBER = 18
"""Digits of a whole number at most: what a signed 64-bit number holds. Larger ones are written as 1e21."""

_HEAD_TEXTS = ("name", "device", "created_at", "validity_key")
_FIT_NUMBERS = ("held_out_error", "residual_sd", "flop_lo", "flop_hi", "bytes_lo", "bytes_hi")


def calibration_to_json(calibration: Calibration) -> str:
    """Write a calibration as text that `calibration_from_json` reads back exactly."""
    document = {
        "format": FORMAT,
        **{key: getattr(calibration, key) for key in _HEAD_TEXTS},
        "environment": dict(calibration.environment),
        "common_sd": float(calibration.common_sd),
        "notes": list(calibration.notes),
        "counts": _counts(calibration),
        "fits": [_fit_to_dict(fit) for fit in calibration.fits],
        "shapes": [_shape_to_dict(shape) for shape in calibration.shapes],
    }
    return _written(document, "") + "\n"


def calibration_from_json(text: str | bytes) -> Calibration:
    """Read what `calibration_to_json` wrote.

    Args:
        text: the whole file; bytes must be UTF-8.

    Raises:
        BadInput: one line that says what is wrong and where.
    """
    try:
        return _calibration(_parsed(text))
    except RecursionError:
        raise BadInput("not a calibration: lists or objects are nested too deeply") from None
    except BadInput as error:
        # Names and values in the message come from the file: keep them on one line and short.
        line = " ".join(str(error).split())
        shown = "".join(char if char.isprintable() else "?" for char in line)
        raise BadInput(shown if len(shown) <= 400 else f"{shown[:400]}...") from None


def _counts(calibration: Calibration) -> dict[str, int]:
    return {
        "fits": len(calibration.fits),
        "constants": len(calibration.constants),
        "arrays": sum(len(fit.arrays) for fit in calibration.fits),
        "shapes": len(calibration.shapes),
    }


def _fit_to_dict(fit: KernelFit) -> dict[str, Any]:
    return {
        "family": fit.family,
        "phase": str(fit.phase),
        "execution": fit.execution,
        "shapes": fit.shapes,
        "samples": fit.samples,
        **{key: float(getattr(fit, key)) for key in _FIT_NUMBERS},
        "quantities": [constant.quantity for constant in fit.constants],
        "constants": [
            {
                "quantity": constant.quantity,
                "value": float(constant.value),
                "unit": constant.unit,
                "lo": float(constant.lo),
                "hi": float(constant.hi),
                "draws": [float(draw) for draw in constant.draws],
            }
            for constant in fit.constants
        ],
        "arrays": [
            {"name": a.name, "dtype": a.dtype, "shape": list(a.shape), "numbers": a.to_list()} for a in fit.arrays
        ],
    }


def _shape_to_dict(shape: MeasuredShape) -> dict[str, Any]:
    return {
        "layer": shape.layer.to_dict(),
        "phase": str(shape.phase),
        "samples": shape.samples,
        "execution": shape.execution,
        "seconds": float(shape.seconds),
        "log_sd": float(shape.log_sd),
        "count": shape.count,
    }


def _written(value: Any, indent: str) -> str:
    """JSON with every innermost object on a line of its own, so that a file of them can be read and compared."""
    deeper = f"{indent} "
    if isinstance(value, dict) and any(_holds_objects(item) for item in value.values()):
        items = [f"{deeper}{json.dumps(key)}: {_written(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and _holds_objects(value):
        return "[\n" + ",\n".join(deeper + _written(item, deeper) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def _parsed(text: str | bytes) -> Any:
    if len(text) > LONGEST_TEXT:
        raise BadInput(f"a calibration of {len(text)} characters; at most {LONGEST_TEXT} are read")
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(
            decoded, object_pairs_hook=without_doubled_keys, parse_constant=_no_number, parse_int=_whole_number
        )
    except UnicodeDecodeError as error:
        raise BadInput(f"not a calibration: byte {error.start} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"not JSON, or cut off: {error.msg} at line {error.lineno}, column {error.colno}") from None


def _whole_number(text: str) -> int:
    if len(text) > LONGEST_WHOLE_NUMBER:
        raise BadInput(f"the whole number {text[:LONGEST_WHOLE_NUMBER]}... has {len(text)} digits; write it as 1e21")
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise BadInput(f"{text} is not a number that can be used")


class _Object:
    """A JSON object that has exactly the given keys, and where it stands; its methods check types."""

    def __init__(self, value: object, where: str, keys: Sequence[str]) -> None:
        self.where = where
        self.values = _of_type(value, dict, where, "an object")
        missing = [key for key in keys if key not in self.values]
        if missing:
            raise BadInput(f"{where} has no {missing[0]!r}")
        unknown = sorted(set(self.values) - set(keys))
        if unknown:
            raise BadInput(f"{where} has an unknown key {_short(unknown[0])}")

    def at(self, key: str) -> str:
        """Where a value of this object stands."""
        return f"{self.where}.{key}"

    def text(self, key: str) -> str:
        """A text on one line, not empty."""
        text = _text(self.values[key], self.at(key))
        if not text or not text.isprintable():
            raise BadInput(f"{self.at(key)} is {_short(text)}, not a text of printable characters on one line")
        return text

    def texts(self, key: str) -> list[str]:
        """A list of any texts."""
        return [_text(item, f"{self.at(key)}[{i}]") for i, item in enumerate(self.items(key))]

    def items(self, key: str) -> list[Any]:
        """A list of anything."""
        items: list[Any] = _of_type(self.values[key], list, self.at(key), "a list")
        return items

    def integer(self, key: str) -> int:
        """A whole number that any database can hold, not negative."""
        value: int = _of_type(self.values[key], int, self.at(key), "a whole number")
        if not 0 <= value < 2**31:
            raise BadInput(f"{self.at(key)} is {_short(value)}, not a whole number from 0 to {2**31 - 1}")
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        return _number(self.values[key], self.at(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        return tuple(_number(item, f"{self.at(key)}[{i}]") for i, item in enumerate(self.items(key)))

    def phase(self) -> Phase:
        """The phase under the key `phase`."""
        name = self.text("phase")
        if name not in list(Phase):
            raise UnknownName(f"phase at {self.at('phase')}", name, Phase)
        return Phase(name)

    def execution(self) -> str:
        """The execution under the key `execution`, one that goes with the phase."""
        key = self.text("execution")
        try:
            execution_from_key(key, update=self.phase() is Phase.UPDATE)
        except BadInput as error:
            raise BadInput(f"{self.at('execution')} is {_short(key)}: {error}") from None
        return key


def _short(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _of_type(value: object, wanted: type, where: str, what: str) -> Any:
    if type(value) is not wanted:  # also keeps true and false from being whole numbers
        raise BadInput(f"{where} is {_short(value)}, not {what}")
    return value


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise BadInput(f"{where} is {_short(value)}, not a finite number")
    return float(value)


def _text(value: object, where: str) -> str:
    text: str = _of_type(value, str, where, "a text")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise BadInput(f"{where} is {_short(text)}, which is not Unicode text")
    return text


def _calibration(document: object) -> Calibration:
    if not isinstance(document, dict) or "format" not in document:
        raise BadInput(f"not a calibration: there is no 'format': {FORMAT!r}")
    if document["format"] not in (FORMAT, WITHOUT_ARRAYS):
        raise BadInput(f"the format is {_short(document['format'])}; this stepgauge reads {FORMAT!r}")
    extra = ("arrays",) if document["format"] == FORMAT else ()
    keys = ("format", *_HEAD_TEXTS, "environment", "common_sd", "notes", "counts", "fits", "shapes")
    head = _Object(document, "calibration", keys)
    environment: Mapping[str, Any] = _of_type(head.values["environment"], dict, head.at("environment"), "an object")
    calibration = Calibration(
        name=head.text("name"),
        device=head.text("device"),
        created_at=head.text("created_at"),
        environment={
            _text(key, head.at("environment")): _text(value, f"{head.at('environment')}.{key}")
            for key, value in environment.items()
        },
        validity_key=head.text("validity_key"),
        fits=tuple(_fit(item, f"fits[{i}]", extra) for i, item in enumerate(head.items("fits"))),
        shapes=tuple(_shape(item, f"shapes[{i}]") for i, item in enumerate(head.items("shapes"))),
        common_sd=head.number("common_sd"),
        notes=tuple(head.texts("notes")),
    )
    found = {key: count for key, count in _counts(calibration).items() if key in extra or key != "arrays"}
    counts = _Object(head.values["counts"], head.at("counts"), tuple(found))
    for key, count in found.items():
        if counts.integer(key) != count:
            raise BadInput(f"the calibration has {count} {key}, but {counts.at(key)} says {counts.integer(key)}")
    return calibration


def _fit(value: object, where: str, extra: tuple[str, ...]) -> KernelFit:
    keys = ("family", "phase", "execution", "shapes", "samples", *_FIT_NUMBERS, "quantities", "constants", *extra)
    fields = _Object(value, where, keys)
    family, phase, execution = fields.text("family"), fields.phase(), fields.execution()
    constants = [
        _constant(item, f"{where}.constants[{i}]", (family, phase, execution))
        for i, item in enumerate(fields.items("constants"))
    ]
    named = f"{where} ({family}.{phase}, {execution})"
    promised, found = fields.texts("quantities"), [constant.quantity for constant in constants]
    lacking = Counter(promised) - Counter(found)
    if lacking:
        raise BadInput(f"{named} lacks its constant {_short(next(iter(lacking)))}")
    if promised != found:
        raise BadInput(f"{named} has the constants {', '.join(found)}; its quantities are {', '.join(promised)}")
    return KernelFit(
        family=family,
        phase=phase,
        execution=execution,
        constants=tuple(constants),
        shapes=fields.integer("shapes"),
        samples=fields.integer("samples"),
        **{key: fields.number(key) for key in _FIT_NUMBERS},
        arrays=tuple(
            _array(item, f"{where}.arrays[{i}]") for i, item in enumerate(fields.items("arrays") if extra else ())
        ),
    )


def _array(value: object, where: str) -> StoredArray:
    fields = _Object(value, where, ("name", "dtype", "shape", "numbers"))
    shape = tuple(_of_type(item, int, fields.at("shape"), "a whole number") for item in fields.items("shape"))
    try:
        return StoredArray.of_list(fields.text("name"), fields.text("dtype"), shape, fields.items("numbers"))
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def _constant(value: object, where: str, fit: tuple[str, Phase, str]) -> Constant:
    fields = _Object(value, where, ("quantity", "value", "unit", "lo", "hi", "draws"))
    family, phase, execution = fit
    return Constant(
        family=family,
        phase=phase,
        execution=execution,
        quantity=fields.text("quantity"),
        value=fields.number("value"),
        unit=fields.text("unit"),
        lo=fields.number("lo"),
        hi=fields.number("hi"),
        draws=fields.numbers("draws"),
    )


def _shape(value: object, where: str) -> MeasuredShape:
    fields = _Object(value, where, ("layer", "phase", "samples", "execution", "seconds", "log_sd", "count"))
    layer = _of_type(fields.values["layer"], dict, fields.at("layer"), "an object")
    try:
        return MeasuredShape(
            layer=layer_from_dict(layer),
            phase=fields.phase(),
            samples=fields.integer("samples"),
            execution=fields.execution(),
            seconds=fields.number("seconds"),
            log_sd=fields.number("log_sd"),
            count=fields.integer("count"),
        )
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
