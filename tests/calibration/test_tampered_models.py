"""A stored kernel model whose arrays were edited is refused in one line, and says nothing wrong."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.array_checks import LARGEST_SCORE
from calibration.family_fit import fit_best, shape_quantities
from calibration.quantities import Processor, Quantities
from calibration.stored_model import CANARIES, read_model
from calibration.trees import Trees
from db.store import Store
from oracle.constants import Calibration, KernelFit, MeasuredShape
from oracle.errors import BadInput, StepgaugeError
from oracle.estimate import DRAWS
from oracle.interchange import calibration_from_json, calibration_to_json
from oracle.layer import Layer, Phase
from oracle.layers import Linear
from oracle.stored_array import StoredArray

GPU = Processor(80, 6 * 2**20)
KEY = "fp32/channels_first"

Edit = Callable[[Any], Any]


def _shapes(count: int) -> list[MeasuredShape]:
    rng = np.random.default_rng(0)
    layers: list[Layer] = [Linear(int(a), int(b), bias=False) for a, b in 2 ** rng.uniform(4, 12, (count, 2))]
    return [MeasuredShape(layer, Phase.FORWARD, 64, KEY, 1.0, 0.01, 20) for layer in layers]


@functools.cache
def fitted() -> tuple[KernelFit, Quantities]:
    """A fit with a residual over its roofline (odd axes cost 30 %), and the kernels that it was fitted on."""
    shapes = _shapes(60)
    kernels = shape_quantities(shapes, GPU)
    seconds = 8e-6 + kernels.flop / 12e12 * kernels.wave_stretch + kernels.bytes / 800e9
    seconds *= np.where(kernels.classes[:, 0] == 0, 1.3, 1.0)
    timed = [replace(shape, seconds=time) for shape, time in zip(shapes, seconds.tolist(), strict=True)]
    fit = fit_best(timed, GPU).fit
    assert fit is not None
    assert fit.arrays
    return fit, kernels


def edited(edits: dict[str, Edit]) -> KernelFit:
    """The fit with some of its arrays replaced."""
    fit, _ = fitted()
    assert edits.keys() <= {array.name for array in fit.arrays}
    arrays = [
        StoredArray.of(array.name, edits[array.name](array.read().copy())) if array.name in edits else array
        for array in fit.arrays
    ]
    return replace(fit, arrays=tuple(arrays))


def refusal(fit: KernelFit) -> str:
    """The one line with which a model is refused when it is read or first asked."""
    _, kernels = fitted()
    with pytest.raises(BadInput) as caught:
        read_model(fit).predict_with_draws(kernels, np.random.default_rng(0).standard_normal((len(kernels), DRAWS)))
    line = str(caught.value)
    assert line.isprintable()
    assert line.startswith("the model of linear.forward.fp32/channels_first cannot be used: ")
    return line


def _to(value: object) -> Edit:
    return lambda array: np.asarray(value, dtype=np.float64)


def _at(index: Any, value: float) -> Edit:
    def edit(array: Any) -> Any:
        array[index] = value
        return array

    return edit


@pytest.mark.parametrize(
    ("name", "edit", "says"),
    [
        ("z_scores", _to([]), "no z scores"),
        ("z_scores", _at(0, -0.1), "z scores are not rising"),
        ("z_scores", lambda scores: scores[::-1], "z scores are not rising"),
        ("z_scores", _at(-1, 1e300), "z scores are not rising"),
        ("z_scores", _at(-1, 1.001 * LARGEST_SCORE), "z scores are not rising"),
        ("processor", _to([0, 1e6]), "0 units"),
        ("processor", _to([2.5, 1e6]), "2.5 units"),
        ("processor", _to([1e300, 1e6]), "units"),
        ("processor", _to([80, -1]), "cache of -1 bytes"),
        ("processor", _to([80]), "not two numbers"),
        ("local_spread", _to(np.zeros((2, 0))), "not two rows"),
        ("local_spread", _to([[0, 0], [0, 0]]), "not at rising ln seconds"),
        ("local_spread", _to([[0], [1e300]]), "a factor beyond"),
        ("coverage.axes", lambda axes: axes[::-1], "axes are not ranges"),
        ("coverage.axes", _at((1, 0), 1e300), "axes are not ranges"),
        ("coverage.numbers", _at(0, 1e300), "ln seconds are not a range"),
        ("coverage.numbers", _at(0, 10.0), "ln seconds are not a range"),
        ("coverage.numbers", _at(2, -1.0), "largest usual sd"),
        ("coverage.classes", _to(np.zeros((0, 2))), "no classes"),
        ("coverage.classes", _at((0, 0), 99), "other columns"),
        ("canary.dims", _at((0, 0), 1e300), "canary.dims has a number beyond"),
        ("canary.dims", lambda dims: dims[:, :-1], "canary.dims is not"),
        ("canary.wave_stretch", _at(0, 0.0), "canary.wave_stretch has a number that is too small"),
        ("canary.flop", lambda flop: flop[:-1], "canary.flop is not one number for each"),
        ("canary.log_s", _at(0, 1e300), "ln seconds beyond"),
        ("shares", _to([2.0]), "do not add up to 1"),
        ("branch0.numbers", _at(0, -1.0), "branch0.numbers has a spread"),
    ],
)
def test_an_array_that_no_fit_wrote_is_refused(name: str, edit: Edit, says: str) -> None:
    assert says in refusal(edited({name: edit}))


@pytest.mark.parametrize(("left", "says"), [(0, "no canaries"), (CANARIES - 1, "4 canaries of 60 shapes")])
def test_a_model_without_its_canaries_is_refused(left: int, says: str) -> None:
    names = [array.name for array in fitted()[0].arrays if array.name.startswith("canary.")]
    assert says in refusal(edited(dict.fromkeys(names, lambda array: array[:left])))


def test_the_largest_errors_that_are_taken_have_finite_draws() -> None:
    edits = {"local_spread": lambda spread: np.array([[0.0], [49.0]]), "z_scores": _to([LARGEST_SCORE])}
    _, kernels = fitted()
    own = np.random.default_rng(0).standard_normal((len(kernels), DRAWS))
    prediction, draws = read_model(edited(edits)).predict_with_draws(kernels, own)
    assert np.isfinite(draws).all()
    assert (prediction.median_s > 0).all()


def test_what_was_not_edited_is_priced() -> None:
    _, kernels = fitted()
    prediction, draws = read_model(edited({})).predict_with_draws(kernels, np.zeros((len(kernels), DRAWS)))
    assert np.isfinite(draws).all()
    assert (prediction.median_s > 0).all()


def test_a_roofline_without_its_arrays_is_refused() -> None:
    fit, _ = fitted()
    assert "wave_exponent" in {constant.quantity for constant in fit.constants}
    with pytest.raises(BadInput, match="wave_exponent, which only a roofline has, without the arrays"):
        replace(fit, arrays=())
    calibration = Calibration("gpu", "some GPU", "2026-01-01T00:00:00Z", {}, "key", (fit,), (), 0.0)
    document = json.loads(calibration_to_json(calibration))
    document["fits"][0]["arrays"] = []
    document["counts"]["arrays"] = 0
    with pytest.raises(BadInput, match="only a roofline has"):
        calibration_from_json(json.dumps(document))


def test_a_store_without_the_arrays_of_a_roofline_is_refused(tmp_path: Path) -> None:
    calibration = Calibration("gpu", "some GPU", "2026-01-01T00:00:00Z", {}, "key", (fitted()[0],), (), 0.0)
    path = tmp_path / "store.sqlite"
    with Store.open(str(path)) as store:
        store.add_calibration(calibration, [])
        assert store.calibration("gpu") == calibration
    connection = sqlite3.connect(path)
    guards = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (guard,) in guards:
        connection.execute(f'DROP TRIGGER "{guard}"')
    connection.execute("DELETE FROM kernel_array")
    connection.commit()
    connection.close()
    with Store.open(str(path)) as store, pytest.raises(StepgaugeError, match="only a roofline has"):
        store.calibration("gpu")


def _old_trees(depth: float, left: int = 1) -> Trees:
    """One tree of a root and two leaves in three slots, as stores had them before conditions."""
    nodes = np.array([[[0, 0, 0]], [[left, 1, 2]], [[2, 1, 2]]], dtype=np.int16)
    cut = np.array([[0.5, -1.0, 1.0]], dtype=np.float32)
    return Trees.from_arrays({"nodes": nodes, "cut": cut, "numbers": np.array([depth, 2.0])})


def test_the_depth_of_old_trees_is_below_their_slots() -> None:
    assert _old_trees(1).predict(np.array([[0.0], [1.0]])).tolist() == [1.0, 3.0]
    for depth in (1e9, 3.0, -1.0, 0.5):
        with pytest.raises(BadInput, match="of 3 slots cannot be"):
            _old_trees(depth)


@pytest.mark.parametrize("child", [-1, 3, 1000])
def test_the_children_of_old_trees_lie_inside_their_slots(child: int) -> None:
    with pytest.raises(BadInput, match="a child outside its 3 slots"):
        _old_trees(1, child)


def test_conditions_of_trees_belong_together() -> None:
    stored = _old_trees(1).to_arrays()
    for edit in (
        {"cut": stored["cut"][:, :0]},
        {"leaves": stored["leaves"][:0]},
        {"conditions": stored["conditions"] - np.int16(1)},
        {"conditions": stored["conditions"][:, :0], "cut": stored["cut"][:0]},
    ):
        with pytest.raises(BadInput, match=r"trees .*belong together|trees have"):
            Trees.from_arrays(stored | edit)
