"""Tensors that an optimizer updates together."""

from __future__ import annotations

import json

import pytest

from oracle.errors import BadInput, OutOfRange, UnknownName
from oracle.execution import Execution
from oracle.layer import Layer, Phase
from oracle.layers import Linear, Norm, layer_from_dict
from oracle.loading import load_model
from oracle.model import ModelGraph
from oracle.updates import Parameters, together


def test_sizes_count_whoever_the_tensors_are_of() -> None:
    layers: list[Layer] = [Norm("batch", (16, 4, 4)), Linear(4, 4), Linear(16, 1, bias=False)]
    assert together(layers) == Parameters(((16, 4), (4, 1)))
    assert together(layers).params == sum(layer.params for layer in layers)
    # 3 states of 4 bytes are read (weight, gradient, momentum) and 2 written.
    assert together(layers).work(Phase.UPDATE, 1).bytes == 4 * 5 * (4 * 16 + 4)


def test_halves_have_as_many_tensors() -> None:
    assert Parameters(((10, 2), (5, 1), (4, 1), (1, 3))).halved() == Parameters(((5, 2), (2, 2), (1, 3)))


@pytest.mark.parametrize("sizes", [(), ((4, 1), (4, 2)), ((2, 1), (4, 1))])
def test_sizes_fall_and_are_there(sizes: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(BadInput, match="the largest first"):
        Parameters(sizes)


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(OutOfRange, match="must be at least 1"):
        Parameters(((4, 0),))


def test_sizes_travel_as_json_and_are_no_layer_of_a_model() -> None:
    many = Parameters(tuple((items, 1) for items in range(2000, 0, -1)))
    values = json.loads(json.dumps(many.to_dict()))
    assert layer_from_dict(values) == many
    with pytest.raises(BadInput, match=r"pairs of whole numbers"):
        layer_from_dict({**values, "tensors": [[3, 1, 1]]})
    model = json.loads(load_model("alexnet").to_json())
    model["layers"].append({"name": "w", "inputs": [], **values})
    with pytest.raises(UnknownName, match="unknown layer kind 'parameters'"):
        ModelGraph.from_json(json.dumps(model))


def test_work_of_other_phases_is_refused() -> None:
    with pytest.raises(OutOfRange, match="has no forward phase"):
        Parameters(((4, 1),)).work(Phase.FORWARD, 1, Execution())
