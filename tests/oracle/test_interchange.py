"""Calibrations survive being written and read; damaged ones are refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.constants import (
    LARGEST_LOG_SD,
    LONGEST_NAME,
    POSSIBLE,
    ROOFLINE_ONLY,
    UNITS,
    Calibration,
    Constant,
    KernelFit,
    MeasuredShape,
)
from oracle.errors import BadInput
from oracle.estimate import DRAWS
from oracle.execution import ATTENTIONS, MEMORY_FORMATS, OPTIMIZERS, PRECISIONS, UPDATES, Execution
from oracle.interchange import FORMAT, LONGEST_TEXT, WITHOUT_ARRAYS, calibration_from_json, calibration_to_json
from oracle.layer import Phase
from oracle.layers import Elementwise, Linear
from oracle.stored_array import StoredArray

Make = Callable[..., Calibration]


def _refused(text: str | bytes) -> str:
    """The one line with which a text is refused."""
    with pytest.raises(BadInput) as caught:
        calibration_from_json(text)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500
    return message


def _edited(calibration: Calibration, path: tuple[str | int, ...], edit: Callable[[Any, Any], None]) -> str:
    """The calibration's text after `edit(container, last step of the path)`."""
    document = json.loads(calibration_to_json(calibration))
    at = document
    for step in path[:-1]:
        at = at[step]
    edit(at, path[-1])
    return json.dumps(document)


def _remove(at: Any, step: Any) -> None:
    del at[step]


def _put(value: object) -> Callable[[Any, Any], None]:
    def edit(at: Any, step: Any) -> None:
        at[step] = value

    return edit


def test_a_calibration_survives_its_text(make_calibration: Make) -> None:
    text = calibration_to_json(make_calibration())
    assert calibration_from_json(text) == make_calibration()
    assert calibration_from_json(text.encode()) == make_calibration()
    assert calibration_from_json(json.dumps(json.loads(text), indent=7)) == make_calibration()


def test_the_format_before_residual_models_is_read(make_calibration: Make) -> None:
    document = json.loads(calibration_to_json(make_calibration()))
    document["format"] = WITHOUT_ARRAYS
    del document["counts"]["arrays"]
    for fit in document["fits"]:
        del fit["arrays"]
    assert calibration_from_json(json.dumps(document)) == make_calibration()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("numbers", [1.0], "fits[0].arrays[0]: array x has 1 numbers, not the (2,) of its shape"),
        ("numbers", [1.0, None], "fits[0].arrays[0]: array x is not written as a list of float64"),
        ("numbers", [[1.0, 2.0]], "fits[0].arrays[0]: array x is not written as a list of float64"),
        ("shape", [-1, -2], "fits[0].arrays[0]: array x has the shape (-1, -2)"),
        ("shape", [2.0], "fits[0].arrays[0].shape is 2.0, not a whole number"),
        ("dtype", "complex128", "fits[0].arrays[0]: array x is of 'complex128'"),
    ],
)
def test_a_damaged_array_is_refused_with_its_place(make_calibration: Make, key: str, value: object, says: str) -> None:
    first, *others = make_calibration().fits
    stored = replace(first, arrays=(StoredArray.of("x", np.array([1.0, 2.0])),))
    text = _edited(make_calibration(fits=(stored, *others)), ("fits", 0, "arrays", 0, key), _put(value))
    assert says in _refused(text)


def test_every_constant_stands_on_a_line_of_its_own(make_calibration: Make) -> None:
    lines = calibration_to_json(make_calibration()).splitlines()
    assert sum('"quantity": ' in line for line in lines) == 6
    assert all('"draws": ' in line for line in lines if '"quantity": ' in line)


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
zero_or_more = st.floats(min_value=0, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
counts = st.integers(1, 2**31 - 1)
log_sds = st.floats(0, LARGEST_LOG_SD)
times = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.isoformat())


def executions(phase: Phase) -> st.SearchStrategy[str]:
    """Keys of executions that go with a phase."""
    execution = st.builds(
        Execution,
        precision=st.sampled_from(list(PRECISIONS)),
        memory_format=st.sampled_from(MEMORY_FORMATS),
        optimizer=st.sampled_from(list(OPTIMIZERS)),
        attention=st.sampled_from(ATTENTIONS),
        update=st.sampled_from(UPDATES),
        graph=st.booleans(),
    )
    return execution.map(lambda found: found.update_key if phase is Phase.UPDATE else found.kernel_key)


@st.composite
def arrays(draw: st.DrawFn) -> StoredArray:
    rows = draw(
        st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=2), max_size=3)
    )
    return StoredArray.of(draw(words), np.array(rows, dtype=np.float64).reshape(-1, 2))


@st.composite
def fits(draw: st.DrawFn) -> KernelFit:
    phase = draw(st.sampled_from(Phase))
    key = (draw(words), phase, draw(executions(phase)))
    stored = tuple(draw(st.lists(arrays(), max_size=2, unique_by=lambda array: array.name)))
    quantities = [quantity for quantity in UNITS if stored or quantity not in ROOFLINE_ONLY]
    constants = []
    for quantity in draw(st.lists(st.sampled_from(quantities), min_size=1, max_size=3, unique=True)):
        possible = st.floats(*POSSIBLE[quantity])
        lo, value, hi = sorted(draw(st.lists(possible, min_size=3, max_size=3)))
        draws = [value, *draw(st.lists(positive, min_size=2, max_size=2))]
        drawn = tuple((draws * DRAWS)[:DRAWS])
        constants.append(Constant(*key, quantity, value, UNITS[quantity], lo, hi, drawn))
    flop, moved = (sorted(draw(st.lists(zero_or_more, min_size=2, max_size=2))) for _ in range(2))
    spread = (draw(zero_or_more), draw(log_sds))
    work = (flop[0], flop[1], moved[0], moved[1])
    return KernelFit(*key, tuple(constants), draw(counts), draw(counts), *spread, *work, stored)


layers = st.one_of(
    st.builds(Linear, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans()),
    st.builds(Elementwise, st.just("relu"), st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple)),
)
shapes = st.sampled_from(Phase).flatmap(
    lambda phase: st.builds(
        MeasuredShape, layers, st.just(phase), counts, executions(phase), st.floats(1e-12, 1e9), log_sds, counts
    )
)
calibrations = st.builds(
    Calibration,
    name=words,
    device=words,
    created_at=times,
    environment=st.dictionaries(words, st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    validity_key=words,
    fits=st.lists(fits(), max_size=3, unique_by=lambda fit: fit.key).map(tuple),
    shapes=st.lists(shapes, max_size=3, unique_by=lambda shape: shape.key).map(tuple),
    common_sd=log_sds,
    notes=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=2).map(tuple),
)


@settings(max_examples=40, deadline=None)
@given(calibrations)
def test_any_calibration_survives_its_text_exactly(calibration: Calibration) -> None:
    assert calibration_from_json(calibration_to_json(calibration)) == calibration


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_mutated_text_is_read_or_refused_but_never_breaks(make_calibration: Make, data: st.DataObject) -> None:
    text = calibration_to_json(make_calibration())
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    scraps = st.sampled_from(["", "0", "-", "1e999", "null", "true", '"', "[", "]", "{", "}", ",", "NaN", "\x00", "é"])
    mutated = text[:start] + data.draw(scraps | st.text(max_size=4)) + text[end:]
    with suppress(BadInput):
        calibration_from_json(mutated)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.data(), json_values)
def test_any_value_in_any_place_is_read_or_refused(make_calibration: Make, data: st.DataObject, value: object) -> None:
    document = json.loads(calibration_to_json(make_calibration()))
    at = document
    while True:
        steps = list(at) if isinstance(at, dict) else list(range(len(at)))
        step = data.draw(st.sampled_from(steps))
        if not isinstance(at[step], dict | list) or not at[step] or data.draw(st.integers(0, 3)) == 0:
            break
        at = at[step]
    at[step] = value
    with suppress(BadInput):
        calibration_from_json(json.dumps(document))


def _places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every key of every object, but only the first item of each list."""
    if isinstance(value, dict):
        return [place for key in value for place in ((*path, key), *_places(value[key], (*path, key)))]
    return _places(value[0], (*path, 0)) if isinstance(value, list) and value else []


def test_every_missing_key_is_refused_and_named(make_calibration: Make) -> None:
    document = json.loads(calibration_to_json(make_calibration()))
    # An environment has whatever keys it has, and a layer's fields may have defaults.
    places = [place for place in _places(document) if not {"environment", "layer"} & set(place[:-1])]
    assert len(places) == 42
    for place in places:
        assert str(place[-1]) in _refused(_edited(make_calibration(), place, _remove)), place


@pytest.mark.parametrize(
    ("path", "edit", "says"),
    [
        (
            ("fits", 0, "constants", 1),
            _remove,
            "fits[0] (conv2d.forward, fp32/channels_first) lacks its constant 'flop",
        ),
        (("fits", 0, "quantities", 1), _remove, "has the constants launch_s, flop_per_s, bytes_per_s; its quantities"),
        (("fits", 1), _remove, "has 2 fits, but calibration.counts.fits says 3"),
        (("shapes", 3), _remove, "has 3 shapes, but calibration.counts.shapes says 4"),
        (("fits", 0, "constants", 1, "quantity"), _put("launch_s"), "is no quantity with its unit"),
        (
            ("fits", 0, "constants", 1, "value"),
            _put("2e12"),
            "fits[0].constants[1].value is '2e12', not a finite number",
        ),
        (("fits", 0, "constants", 1, "value"), _put(True), "value is True, not a finite number"),
        (
            ("fits", 0, "constants", 1, "value"),
            _put(-1.0),
            "conv2d.forward.flop_per_s has a value that is not a positive",
        ),
        (("fits", 0, "constants", 1, "value"), _put(0), "is not a positive number"),
        (("fits", 0, "constants", 1, "value"), _put(9e12), "lies outside its own interval"),
        (("fits", 0, "constants", 1, "value"), _put(math.nan), "NaN is not a number that can be used"),
        (("fits", 0, "constants", 1, "draws", 3), _put(-math.inf), "-Infinity is not a number"),
        (("fits", 0, "constants", 1, "draws", 3), _put(None), "fits[0].constants[1].draws[3] is None"),
        (("fits", 0, "constants", 1, "draws", 3), _remove, "has 63 draws, not 64"),
        (("fits", 0, "constants"), _put([]), "lacks its constant 'launch_s'"),
        (("fits", 0, "phase"), _put("forwards"), "unknown phase at fits[0].phase 'forwards'; did you mean 'forward'"),
        (("fits", 0, "execution"), _put("fp32"), "fits[0].execution is 'fp32': 'fp32' is no execution"),
        (("fits", 0, "execution"), _put("fp31/channels_first"), "unknown precision 'fp31'; did you mean 'fp32'"),
        (("fits", 0, "execution"), _put("fp32/channels_first/fast"), "unknown option of an execution 'fast'"),
        (("fits", 0, "execution"), _put("fp32/sgd_momentum"), "unknown memory format 'sgd_momentum'"),
        (("fits", 2, "phase"), _put("forward"), "fits[2].execution is 'fp32/sgd_momentum': unknown memory format"),
        (("shapes", 0, "execution"), _put("quux"), "shapes[0].execution is 'quux'"),
        (("shapes", 2, "execution"), _put("fp32/channels_first"), "shapes[2].execution is 'fp32/channels_first'"),
        (("fits", 0, "shapes"), _put(2.5), "fits[0].shapes is 2.5, not a whole number"),
        (("fits", 0, "shapes"), _put(-2), "fits[0].shapes is -2, not a whole number from 0"),
        (("fits", 0, "shapes"), _put(10**17), "not a whole number from 0"),
        (("fits", 0, "shapes"), _put(10**4000), "has 4001 digits"),
        (("fits", 0, "flop_lo"), _put(1e300), "range of work that is empty"),
        (("fits", 0, "family"), _put("a\nb"), "not a text of printable characters"),
        (("fits", 0, "extra"), _put(1), "fits[0] has an unknown key 'extra'"),
        (("shapes", 0, "layer", "kind"), _put("con"), "shapes[0]: unknown layer kind 'con'"),
        (("shapes", 0, "layer", "extents"), _put([]), "shapes[0]: "),
        (("shapes", 3, "layer", "shape"), _put([]), "shapes[3]: shape of a elementwise layer has no axes"),
        (("shapes", 0, "seconds"), _put(0.0), "shapes[0]: a measured conv shape has a time"),
        (("shapes", 0, "count"), _put(0), "no repeats"),
        (("name",), _put(""), "calibration.name is ''"),
        (("name",), _put("x" * (LONGEST_NAME + 1)), f"at most {LONGEST_NAME} characters"),
        (("name",), _put("\x1b[31mred"), "not a text of printable characters"),
        (("notes",), _put("not a list"), "calibration.notes is 'not a list', not a list"),
        (("notes",), _put(["\ud800"]), "not Unicode"),
        (("environment", "python"), _put(3), "calibration.environment.python is 3, not a text"),
        (("common_sd",), _put(-0.1), "drift"),
        (("format",), _put("stepgauge-calibration-3"), "this stepgauge reads 'stepgauge-calibration-2'"),
        (("format",), _put(None), "the format is None"),
    ],
)
def test_an_edited_calibration_is_refused_with_the_place(
    make_calibration: Make, path: tuple[str | int, ...], edit: Callable[[Any, Any], None], says: str
) -> None:
    assert says in _refused(_edited(make_calibration(), path, edit))


def test_doubled_constants_keys_fits_and_shapes_are_refused(make_calibration: Make) -> None:
    text = calibration_to_json(make_calibration())

    def double(at: Any, step: Any) -> None:
        at.append(at[step])

    assert "has the constants launch_s, flop_per_s, bytes_per_s, launch_s; its quantities are" in _refused(
        _edited(make_calibration(), ("fits", 0, "constants", 0), double)
    )
    assert "has the constants of elementwise.forward.fp32/channels_first twice" in _refused(
        _edited(make_calibration(), ("fits", 1), double)
    )
    assert "has forward of" in _refused(_edited(make_calibration(), ("shapes", 0), double))
    assert "the key 'value' occurs twice" in _refused(text.replace('"value": ', '"value": 1.0, "value": ', 1))


def test_a_text_cut_anywhere_is_refused(make_calibration: Make) -> None:
    text = calibration_to_json(make_calibration()).rstrip()
    for end in range(0, len(text), 97):
        assert "not JSON, or cut off" in _refused(text[:end])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON, or cut off: Expecting value at line 1, column 1"),
        ("[]", f"there is no 'format': '{FORMAT}'"),
        ("{}", "there is no 'format'"),
        ("3", "there is no 'format'"),
        ('{"format": "stepgauge-calibration-2"}', "calibration has no 'name'"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * 900 + "]" * 900, "not a calibration"),
        (b"\x7fELF\x02\x01\x01\x00\xff", "is not UTF-8 text"),
        (b"SQLite format 3\x00", "not JSON"),
        ("\x00\x01", "not JSON"),
        (" " * (LONGEST_TEXT + 1), "characters; at most"),
        (f'{{"format": {"9" * 5000}}}', "has 5000 digits"),
        ('{"format": 1e999}', "the format is inf"),
        ('{"format": "' + "x" * 10_000 + '"}', "the format is 'xxx"),
        ('{"' + "k" * 10_000 + '": 1, "' + "k" * 10_000 + '": 2}', "occurs twice"),
    ],
)
def test_what_is_not_a_calibration_is_refused(text: str | bytes, says: str) -> None:
    assert says in _refused(text)


def test_a_number_too_large_for_a_float_is_refused(make_calibration: Make) -> None:
    text = calibration_to_json(make_calibration()).replace("1700000000000.0", "1e999", 1)
    assert "fits[0].constants[1].value is inf, not a finite number" in _refused(text)


def test_a_whole_number_may_stand_for_a_float(make_calibration: Make) -> None:
    text = calibration_to_json(make_calibration()).replace("1700000000000.0", "1700000000000", 1)
    assert calibration_from_json(text) == make_calibration()


def test_a_constant_belongs_to_its_fit(make_calibration: Make) -> None:
    first, second, _ = make_calibration().fits
    with pytest.raises(BadInput, match="belongs to another fit"):
        replace(first, constants=second.constants)
