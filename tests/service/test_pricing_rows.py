"""`stepgauge price` predicts every row of a table and scores those that carry a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.timers import CalibratedTimer
from oracle.constants import Calibration
from oracle.estimate import DRAWS
from oracle.pricing import LayerCall, Method, Prices
from profiler.importers.tidy import Cells
from service.row_pricing import price_kernels
from service.row_tables import RowPrice

Stepgauge = Callable[..., Any]
ALPHA_S, S_PER_BYTE = 2e-5, 1e-9
SIZES = tuple(2**doubling for doubling in range(8, 27))
HEAD = "source,gpu,interconnect,collective,bytes,nranks,nnodes,dtype,time_us,tag,calib"


def _row(size: int, tag: str = "a", gpu: str = "A100", factor: float = 1.0, calib: bool = False) -> str:
    time_us = factor * 1e6 * (ALPHA_S + S_PER_BYTE * size)
    return f"lab,{gpu},NVLink,all_reduce,{size},8,1,float,{time_us:.9g},{tag},{calib}"


@pytest.fixture
def db(stepgauge: Stepgauge, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with the network `lab`, fitted on every other size of `lab.csv`, and the calibration `sim`."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    lines = [_row(size, calib=place % 2 == 0) for place, size in enumerate(SIZES)]
    (tmp_path / "lab.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    assert stepgauge("import", tmp_path / "lab.csv", "--db", store).code == 0
    arguments = ("--from", "lab.csv", "--where", "flag=calib", "--name", "lab")
    assert stepgauge("fit", *arguments, "--db", store).code == 0
    return store


def _priced(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_get_a_price_an_interval_and_a_method(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    out = tmp_path / "priced.csv"
    beyond = tmp_path / "ask.csv"
    beyond.write_text(
        f"collective,bytes,nranks,nnodes,dtype\nall_reduce,{2**20},8,1,float\nall_reduce,{2**30},8,1,float\n"
    )
    ran = stepgauge("price", tmp_path / "lab.csv", "--network", "lab", "--out", out, "--db", db)
    assert ran.code == 0, ran.err
    rows = _priced(out)
    assert [row["method"] for row in rows] == ["measured" if row["calib"] == "True" else "fitted" for row in rows]
    for row, size in zip(rows, SIZES, strict=True):
        assert float(row["predicted_s"]) == pytest.approx(ALPHA_S + S_PER_BYTE * size, rel=0.03)
        assert float(row["lo_s"]) < float(row["predicted_s"]) < float(row["hi_s"])
    # Rows without a time, source or tag are priced all the same; 1 GiB is 16 times the largest measured size.
    assert stepgauge("price", beyond, "--network", "lab", "--out", out, "--db", db).code == 0
    assert [row["method"] for row in _priced(out)] == ["measured", "extrapolated"]


def test_scores_are_of_each_group(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    # Times that are 10 % longer than the network's: every error is 1 - 1 / 1.1 = 9.1 %, where the fit is exact.
    slow = tmp_path / "slow.csv"
    slow.write_text("\n".join([HEAD, *(_row(size, factor=1.1) for size in SIZES[::2])]) + "\n")
    ran = stepgauge("price", slow, "--network", "lab", "--by", "gpu,collective", "--json", "--db", db)
    (score,) = json.loads(ran.out)["scores"]
    assert (score["group"], score["rows"]) == ("A100, all_reduce", len(SIZES[::2]))
    assert score["mape"] == pytest.approx(1 - 1 / 1.1, rel=0.02)
    assert score["p90"] == pytest.approx(1 - 1 / 1.1, rel=0.05)
    text = stepgauge("price", tmp_path / "lab.csv", "--network", "lab", "--where", "calib=False", "--db", db).out
    assert "9 of 9 rows priced by 'lab' (9 fitted)" in text
    assert "all_reduce" in text


def test_rows_of_something_else_have_no_price_and_a_reason(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    table, out = tmp_path / "mixed.csv", tmp_path / "priced.csv"
    rows = [_row(1024), _row(1024, gpu="H100"), _row(1024, tag="b"), _row(1024).replace("all_reduce", "barrier")]
    table.write_text("\n".join([HEAD, *rows, _row(1024).replace("all_reduce", "all_to_all")]) + "\n")
    ran = stepgauge("price", table, "--network", "lab", "--out", out, "--json", "--db", db)
    result = json.loads(ran.out)
    assert (result["rows"], result["priced"]) == (5, 1)
    text = " / ".join(result["unpriced"])
    for reason in ("gpu H100", "tag=b", "unknown collective 'barrier'", "no all_to_all of 8 devices"):
        assert reason in text
    assert [row["method"] for row in _priced(out)] == ["measured", "", "", "", ""]


def test_a_row_of_a_fitted_job_is_read_at_its_own_curve(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text(
        "\n".join([HEAD, *(_row(size, tag, factor=f) for tag, f in (("a", 1), ("b", 4)) for size in SIZES)])
    )
    stepgauge("import", table, "--db", db)
    stepgauge("fit", "--from", "jobs.csv", "--job", "tag", "--name", "jobs", "--db", db)
    ran = stepgauge("price", table, "--network", "jobs", "--by", "tag", "--json", "--db", db)
    assert [score["mape"] for score in json.loads(ran.out)["scores"]] == pytest.approx([0, 0], abs=0.01)


def test_kernels_are_priced_by_a_calibration(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    table, out = tmp_path / "kernels.csv", tmp_path / "priced.csv"
    table.write_text(
        "op,phase,dtype,gm,gn,gk,time_us\n"
        "linear,fwd,fp32,256,1024,512,100\nlinear,fwd,fp16,256,1024,512,100\nbmm,fwd,fp32,8,8,8,1\n"
    )
    ran = stepgauge("price", table, "--calibration", "sim", "--out", out, "--json", "--db", db)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["priced"] == 1
    first, *others = _priced(out)
    assert np.isfinite(float(first["predicted_s"]))
    assert [row["predicted_s"] for row in others] == ["", ""]


def test_a_row_without_samples_leaves_the_others_priced(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    table = tmp_path / "kernels.csv"
    head = "op,phase,dtype,N,C,H,W,K,R,S,gm,gn,gk"
    rows = [
        "linear,fwd,fp32,,,,,,,,256,1024,512",
        "linear,fwd,fp32,,,,,,,,0,1024,512",
        "conv2d,fwd,fp32,0,64,28,28,64,3,3,,,",
        "conv2d,fwd,fp32,8,0,28,28,64,3,3,,,",
    ]
    table.write_text("\n".join([head, *rows]) + "\n")
    ran = stepgauge("price", table, "--calibration", "sim", "--json", "--db", db)
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert (result["rows"], result["priced"]) == (4, 1)
    assert result["unpriced"]["a layer needs at least one sample, not 0"] == 2


def _kernel(gpu: str, samples: int) -> Cells:
    shape = {"C": "3", "H": "32", "W": "32", "K": "8", "R": "3", "S": "3", "pad_h": "1", "pad_w": "1"}
    said = {"op": "conv2d", "phase": "fwd", "dtype": "fp32", "N": str(samples), **shape}
    return Cells(samples, gpu, said | ({"gpu": gpu} if gpu else {}), 0.0)


def test_a_price_that_is_no_finite_number_is_none(
    make_calibration: Callable[..., Calibration], monkeypatch: pytest.MonkeyPatch
) -> None:
    def price(_timer: CalibratedTimer, calls: Sequence[LayerCall]) -> Prices:
        middle_s = np.array([np.inf if call.samples == 32 else 1e-4 for call in calls])
        draws_s = np.repeat(middle_s[:, None], DRAWS, axis=1)
        draws_s[[call.samples == 64 for call in calls]] = np.inf
        return Prices(middle_s, draws_s, (Method.EXTRAPOLATED,) * len(calls))

    monkeypatch.setattr(CalibratedTimer, "price", price)
    priced = price_kernels(make_calibration(), [_kernel("", samples) for samples in (16, 32, 64)])
    assert isinstance(priced[16], RowPrice)
    assert priced[32] == priced[64] == "the shape is so large that its price is no finite number"


@pytest.mark.parametrize(
    ("said", "owner", "same"),
    [
        ("", "NVIDIA A100-SXM4-80GB", True),
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("V100", "Tesla V100-PCIE-32GB", True),
        ("A10", "NVIDIA A100-SXM4-80GB", False),
        ("A100-PCIE", "NVIDIA A100-SXM4-80GB", False),
        ("H20", "NVIDIA H200", False),
        ("H200", "NVIDIA H20", False),
        ("H200", "NVIDIA GH200 480GB", False),
    ],
)
def test_a_row_is_of_a_device_that_has_its_words(
    make_calibration: Callable[..., Calibration], said: str, owner: str, same: bool
) -> None:
    found = price_kernels(make_calibration(device=owner), [_kernel(said, 16)])[16]
    assert isinstance(found, RowPrice) if same else found == f"gpu {said} is not what was calibrated"


@pytest.mark.parametrize(
    ("content", "arguments", "text"),
    [
        ("a,b\n1,2\n", (), "is no table to price"),
        (f"{HEAD}\n1,2\n", ("--network", "lab"), "line 2: 2 cells, the head has 11"),
        (f"{HEAD}\n{_row(8)}\n", (), "name the --network"),
        (f"{HEAD}\n{_row(8)}\n", ("--network", "lap"), "did you mean 'lab'?"),
        (f"{HEAD}\n{_row(8)}\n", ("--network", "lab", "--by", "colour"), "--by takes columns of the table"),
        (f"{HEAD}\n{_row(8)}\n", ("--network", "lab", "--where", "colour=1"), "--where takes COLUMN=VALUE"),
        (f"{HEAD}\n{_row(8)}\n", ("--network", "lab", "--where", "gpu=V100"), "no row has gpu=V100"),
        (f"{HEAD}\n{_row(8)}\n", ("--network", "lab", "--environment", "b"), "unknown environment 'b'"),
        (f"{HEAD}\n{_row(8)}\n", ("--network", "lab", "--out", "/no/such/dir/x.csv"), "cannot write"),
        (f"{HEAD}\n", ("--network", "lab"), "bad.csv has no rows"),
        (
            f"{HEAD}\n{_row(8, gpu='H100')}\n{_row(9, gpu='H100')}\n",
            ("--network", "lab"),
            "'lab' prices none of the 2 rows of bad.csv: gpu H100 is not what was calibrated\n",
        ),
        (
            f"{HEAD}\n{_row(8, gpu='H100')}\n{_row(9, gpu='H100')}\n{_row(8, tag='b')}\n",
            ("--network", "lab"),
            "gpu H100 is not what was calibrated (2 of them), and 1 further reason\n",
        ),
        ("\x00\x01", ("--network", "lab"), ""),
    ],
)
def test_price_refuses(
    stepgauge: Stepgauge, db: Path, tmp_path: Path, content: str, arguments: tuple[object, ...], text: str
) -> None:
    (tmp_path / "bad.csv").write_text(content)
    ran = stepgauge("price", tmp_path / "bad.csv", *arguments, "--db", db)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert text in ran.err
