"""`show --kernels` says how well every family is known, and what would narrow a question."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from calibration.design import model_calls
from db.store import Store
from oracle.execution import Execution
from oracle.loading import load_model
from service.kernel_view import narrow, show_kernels

Stepgauge = Callable[..., Any]


def test_every_family_has_its_error_and_its_constants(stepgauge: Stepgauge, store: Path) -> None:
    values = json.loads(stepgauge("show", "sim", "--kernels", "--json", "--db", store).out)
    families = {(item["family"], item["phase"]): item for item in values["families"]}
    conv = families["conv2d", "forward"]
    assert conv["shapes"] >= 9
    assert conv["constants"]["flop_per_s"]["value"] == pytest.approx(9e10, rel=0.15)
    assert conv["not_identified"] == []
    # Times with 5 % noise: nearly all measured shapes lie within the intervals of their own fit.
    assert conv["coverage"] > 0.6
    text = stepgauge("show", "sim", "--kernels", "--db", store).out
    assert "conv2d backward-weight fp32/channels_first" in text
    assert "held-out error" in text


def test_a_question_proposes_its_unmeasured_calls(stepgauge: Stepgauge, store: Path) -> None:
    ran = stepgauge("show", "sim", "--kernels", "--for", "resnet50:12", "--json", "--db", store)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["narrowing"]
    shares = [item["share"] for item in found["proposals"]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1.0001
    assert found["after"] < found["half_width"]
    assert {item["method"] for item in found["proposals"]} <= {"fitted", "extrapolated"}
    text = stepgauge("show", "sim", "--kernels", "--for", "resnet50:12", "--db", store).out
    assert "share of the variance" in text


def test_a_call_that_was_measured_is_not_proposed(store: Path) -> None:
    with Store.open(str(store)) as opened:
        calibration = opened.calibration("sim")
    # The measured batch: nothing is left to propose but what the budget did not reach.
    measured = {(shape.layer, shape.phase) for shape in calibration.shapes if shape.samples in (1, 8)}
    asked = {(call.layer, call.phase) for call in model_calls(load_model("resnet50"), 8)}
    found = narrow(calibration, "resnet50:8", Execution())
    assert len(found.proposals) <= len(asked - measured)


def test_a_wider_family_is_proposed_first(store: Path) -> None:
    with Store.open(str(store)) as opened:
        calibration = opened.calibration("sim")
    vague = tuple(
        replace(fit, residual_sd=2.0) if (fit.family, str(fit.phase)) == ("norm_batch", "forward") else fit
        for fit in calibration.fits
    )
    # A layer that was measured at another batch is priced from that; these were measured at none.
    shapes = tuple(shape for shape in calibration.shapes if shape.layer.kind != "norm")
    first = narrow(replace(calibration, fits=vague, shapes=shapes), "resnet50:12", Execution()).proposals[0]
    assert (first.layer.split(" ")[0], first.phase) == ("norm", "forward")


def test_kernels_are_drawn(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    picture = tmp_path / "kernels.svg"
    ran = stepgauge("show", "sim", "--kernels", "--plot", picture, "--db", store)
    if find_spec("matplotlib") is None:
        assert ran.code == 2
        assert "matplotlib is not installed" in ran.err
        return
    assert ran.code == 0, ran.err
    assert "measured s" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--for", "resnet50:8"), "--for belongs to --kernels"),
        (("--kernels", "--for", "resnet50"), "such as resnet50:8"),
        (("--kernels", "--for", "resnet51:8"), "did you mean 'resnet50'?"),
        (("--kernels", "--for", "cosmoflow:1"), "has no"),
        (("--kernels", "--plot", "x.pdf"), "--plot draws"),
    ],
)
def test_show_kernels_refuses(stepgauge: Stepgauge, store: Path, arguments: tuple[object, ...], text: str) -> None:
    ran = stepgauge("show", "sim", *arguments, "--db", store)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert text in ran.err


def test_the_newest_calibration_is_shown_without_a_name(store: Path) -> None:
    with Store.open(str(store)) as opened:
        assert show_kernels(opened, None, None).calibration.name == "sim"


@pytest.mark.filterwarnings("error")
def test_a_family_without_measured_shapes_shows_a_dash(stepgauge: Stepgauge, store: Path) -> None:
    with Store.open(str(store)) as opened:
        opened.add_calibration(replace(opened.calibration("sim"), name="bare", shapes=()), [])
    ran = stepgauge("show", "bare", "--kernels", "--json", "--db", store)
    assert ran.code == 0, ran.err
    families = json.loads(ran.out)["families"]
    assert families
    assert {(item["coverage"], item["half_width"]) for item in families} == {(None, None)}
    ran = stepgauge("show", "bare", "--kernels", "--db", store)
    assert ran.code == 0
    assert "nan" not in ran.out
    assert ran.err == ""
