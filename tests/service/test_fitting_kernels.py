"""Imported kernels become a device's calibration, with other devices as a prior; bad rows are said."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.quantities import Processor, matrix_products
from calibration.roofline import Roofline

Stepgauge = Callable[..., Any]
HEAD = "gpu,op,phase,dtype,gm,gn,gk,time_us"


def rows(gpu: str, count: int, seed: int, speed: float = 1.0) -> list[str]:
    """Products on a device with waves, 40 % slower where the result's width is odd."""
    rng = np.random.default_rng(seed)
    axes = np.floor(2 ** rng.uniform(4, 11, (count, 3)))
    named = {"batch": np.ones(count), "m": axes[:, 0], "n": axes[:, 1], "k": axes[:, 2]}
    kernels = matrix_products(named, 4, Processor(80, 6 * 2**20))
    truth = Roofline(8e-6, 1 / 12e12, 1 / 8e11, 0.0, 0.6).seconds(kernels)
    odd = np.where(axes[:, 1] % 2 == 1, 1.4, 1.0)
    times = truth * odd * np.exp(rng.normal(0, 0.02, count)) / speed * 1e6
    return [
        f"{gpu},linear,fwd,fp32,{int(m)},{int(n)},{int(k)},{time:.9g}"
        for (m, n, k), time in zip(axes.tolist(), times.tolist(), strict=True)
    ]


@pytest.fixture
def fit(stepgauge: Stepgauge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Import rows as a file and fit them under its name."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def run(name: str, lines: Sequence[str], *arguments: object, head: str = HEAD) -> Any:
        file = tmp_path / f"{name}.csv"
        file.write_text("\n".join([head, *lines]) + "\n")
        imported = stepgauge("import", file, "--json", "--db", tmp_path / "db.sqlite")
        assert imported.code == 0, imported.err
        return stepgauge("fit", "--from", file, "--name", name, "--json", *arguments, "--db", tmp_path / "db.sqlite")

    return run


def mape(stepgauge: Stepgauge, tmp_path: Path, name: str, lines: Sequence[str]) -> float:
    table = tmp_path / "ask.csv"
    table.write_text("\n".join([HEAD, *lines]) + "\n")
    ran = stepgauge("price", table, "--calibration", name, "--json", "--db", tmp_path / "db.sqlite")
    assert ran.code == 0, ran.err
    (score,) = json.loads(ran.out)["scores"]
    return float(score["mape"])


def test_imported_kernels_get_a_roofline_that_prices_others(
    fit: Callable[..., Any], stepgauge: Stepgauge, tmp_path: Path
) -> None:
    ran = fit("v100", rows("V100", 120, 1))
    assert ran.code == 0, ran.err
    shown = json.loads(stepgauge("show", "v100", "--kernels", "--json", "--db", tmp_path / "db.sqlite").out)
    (family,) = shown["families"]
    assert family["law"] == "roofline"
    assert family["constants"]["flop_per_s"]["value"] == pytest.approx(12e12, rel=0.3)
    assert mape(stepgauge, tmp_path, "v100", rows("V100", 60, 2)) < 0.12


def test_another_device_in_the_store_is_a_prior_unless_refused(
    fit: Callable[..., Any], stepgauge: Stepgauge, tmp_path: Path
) -> None:
    assert fit("v100", rows("V100", 150, 1)).code == 0
    few = rows("Titan RTX", 25, 3, speed=1.7)
    helped = json.loads(fit("helped", few).out)
    assert any("come from V100" in note for note in helped["notes"])
    # The same file again under another name, by itself.
    alone = stepgauge(
        "fit", "--from", "helped.csv", "--no-prior", "--name", "alone", "--json", "--db", tmp_path / "db.sqlite"
    )
    assert not any("come from" in note for note in json.loads(alone.out)["notes"])
    test = rows("Titan RTX", 100, 4, speed=1.7)
    errors = [mape(stepgauge, tmp_path, name, test) for name in ("helped", "alone")]
    assert errors[0] < 0.9 * errors[1]


def test_rows_of_two_devices_are_refused_and_named(fit: Callable[..., Any]) -> None:
    ran = fit("mixed", [*rows("V100", 10, 1), *rows("A100", 10, 2)])
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "a calibration is of one device, not of A100, V100" in ran.err


def test_rows_that_are_no_measurement_are_dropped_with_a_reason(
    fit: Callable[..., Any], stepgauge: Stepgauge, tmp_path: Path
) -> None:
    bad = {
        "nan": "V100,linear,fwd,fp32,64,64,64,nan",
        "zero": "V100,linear,fwd,fp32,64,64,65,0",
        "negative": "V100,linear,fwd,fp32,64,64,66,-3",
        "dtype": "V100,linear,fwd,fp12,64,64,67,9",
        "shape": "V100,linear,fwd,fp32,0,64,64,9",
        "phase": "V100,linear,sideways,fp32,64,64,64,9",
    }
    (tmp_path / "bad.csv").write_text("\n".join([HEAD, *rows("V100", 12, 1), *bad.values()]) + "\n")
    imported = json.loads(stepgauge("import", tmp_path / "bad.csv", "--json", "--db", tmp_path / "db.sqlite").out)
    (file,) = imported["files"]
    assert (file["rows_taken"], file["rows_dropped"]) == (12, len(bad))
    reasons = " / ".join(item["reason"] for item in file["dropped"])
    assert "precision 'fp12' is not stated, or not known" in reasons
    assert "phase 'sideways' is not known" in reasons
    assert len({item["line"] for item in file["dropped"]}) == len(bad)


def test_a_file_of_nothing_but_bad_rows_fits_nothing(
    fit: Callable[..., Any], stepgauge: Stepgauge, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text(f"{HEAD}\nV100,linear,fwd,fp12,64,64,67,9\n")
    stepgauge("import", tmp_path / "bad.csv", "--db", tmp_path / "db.sqlite")
    ran = stepgauge("fit", "--from", "bad.csv", "--name", "x", "--db", tmp_path / "db.sqlite")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_a_family_of_three_shapes_is_fitted_and_another_shape_is_priced(
    fit: Callable[..., Any], stepgauge: Stepgauge, tmp_path: Path
) -> None:
    three = [f"V100,linear,fwd,fp32,{m},512,512,{5 + m / 10}" for m in (64, 1024, 16384)]
    ran = fit("three", three)
    assert ran.code == 0
    said = "fewer than 5 shapes of linear.forward (3): prices of other shapes rest on very little"
    assert said in json.loads(ran.out)["notes"]
    assert np.isfinite(mape(stepgauge, tmp_path, "three", rows("V100", 5, 1)))


def test_equal_shapes_and_equal_times_still_fit(fit: Callable[..., Any], stepgauge: Stepgauge, tmp_path: Path) -> None:
    one = fit("one", ["V100,linear,fwd,fp32,64,64,64,10"] * 20)
    assert one.code == 0
    assert any("fewer than 5 shapes of linear.forward (1)" in note for note in json.loads(one.out)["notes"])
    flat = [f"V100,linear,fwd,fp32,{16 + step},64,64,10" for step in range(30)]
    ran = fit("flat", flat)
    assert ran.code == 0, ran.err
    said = "all shapes of linear.forward (30) took the very same time: nothing but a launch is known"
    assert said in json.loads(ran.out)["notes"]
    assert mape(stepgauge, tmp_path, "flat", ["V100,linear,fwd,fp32,99,64,64,10"]) < 0.02


def test_contradicting_duplicates_are_said(fit: Callable[..., Any]) -> None:
    lines = rows("V100", 40, 1)
    twice = [line.rpartition(",")[0] + f",{3 * float(line.rpartition(',')[2])}" for line in lines[:4]]
    notes = " / ".join(json.loads(fit("twice", [*lines, *twice]).out)["notes"])
    assert "4 of 40 cases were measured with times up to a factor of 3 apart; their medians are used" in notes


def test_rows_of_one_device_under_the_name_of_another_are_said(fit: Callable[..., Any]) -> None:
    assert fit("v100", rows("V100", 120, 1)).code == 0
    again = json.loads(fit("again", rows("V100", 30, 5)).out)["notes"]
    assert not any("'v100'" in note for note in again)
    slower = json.loads(fit("slower", rows("V100", 30, 6, speed=0.6)).out)["notes"]
    assert any("times over those of" in note and "linear.forward 1.6" in note for note in slower)
    # Another device's balance: times without order beside the known ones.
    rng = np.random.default_rng(7)
    foreign = [
        f"{line.rpartition(',')[0]},{float(line.rpartition(',')[2]) * factor:.6g}"
        for line, factor in zip(rows("V100", 30, 8), np.exp(rng.normal(0, 0.8, 30)).tolist(), strict=True)
    ]
    notes = json.loads(fit("foreign", foreign).out)["notes"]
    assert any("linear.forward behave unlike" in note for note in notes)


def test_rows_of_another_device_are_not_priced(fit: Callable[..., Any], stepgauge: Stepgauge, tmp_path: Path) -> None:
    assert fit("v100", rows("V100", 20, 1)).code == 0
    (tmp_path / "ask.csv").write_text("\n".join([HEAD, *rows("A100", 3, 2)]) + "\n")
    ran = stepgauge("price", tmp_path / "ask.csv", "--calibration", "v100", "--json", "--db", tmp_path / "db.sqlite")
    assert (ran.code, ran.out) == (2, "")
    assert "prices none of the 3 rows of ask.csv: gpu A100 is not what was calibrated" in ran.err


def test_a_calibration_with_a_huge_kernel_can_be_read_back(
    fit: Callable[..., Any], stepgauge: Stepgauge, tmp_path: Path
) -> None:
    # As convolutions of 1 x 1, one of them of 1e19 pixels, which no 64-bit number holds: 2e19 FLOP at 12 TFLOP/s.
    head = "gpu,op,phase,dtype,N,C,H,W,K,R,S,time_us"
    cells = [row.split(",") for row in rows("A100", 60, 1)]
    lines = [f"A100,conv2d,fwd,fp32,1,{k},1,{m},{n},1,1,{time}" for *_, m, n, k, time in cells]
    assert fit("huge", [*lines, "A100,conv2d,fwd,fp32,1000000000,1,100000,100000,1,1,1,1.7e12"], head=head).code == 0
    db, table, out = tmp_path / "db.sqlite", tmp_path / "ask.csv", tmp_path / "priced.csv"
    for command in (("show", "huge"), ("export", "huge", "-o", tmp_path / "huge.json")):
        ran = stepgauge(*command, "--db", db)
        assert ran.code == 0, ran.err
    most = "9" + "0" * 17
    asked = [f"A100,conv2d,fwd,fp32,{n},64,{n},{n},64,1,1," for n in ("20", "1e6", most)]
    table.write_text("\n".join([head, *asked]) + "\n")
    ran = stepgauge("price", table, "--calibration", "huge", "--out", out, "--db", db)
    assert ran.code == 0, ran.err
    with out.open(newline="") as file:
        found = [float(row["predicted_s"]) for row in csv.DictReader(file)]
    assert np.isfinite(found).all()
    assert 0 < found[0] < found[1] < found[2]
