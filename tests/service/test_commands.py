"""Every command does its job on a store that a simulated device has filled."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cli

ROOT = Path(__file__).resolve().parents[2]
Stepgauge = Callable[..., Any]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_and_an_example_in_the_readme(stepgauge: Stepgauge, command: str) -> None:
    ran = stepgauge(command, "--help")
    assert ran.code == 0
    assert re.search(r"Usage:.*\n\n +\S.{20,}", ran.out)
    assert re.search(rf"^(\$ )?stepgauge {command}\b", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_plain_sql_reads_the_constants(store: Path) -> None:
    with sqlite3.connect(store) as connection:
        rows = connection.execute("SELECT name, value, unit, lo, hi FROM constant").fetchall()
    connection.close()
    assert len(rows) > 20
    assert all(lo <= value <= hi for _, value, _, lo, hi in rows)
    assert ("conv2d.forward.flop_per_s", "FLOP/s") in {(name, unit) for name, _, unit, _, _ in rows}


def test_list_and_show_name_the_calibration(stepgauge: Stepgauge, store: Path) -> None:
    assert "sim" in stepgauge("list", "--db", store).out
    assert "conv2d" in stepgauge("show", "--db", store).out
    listed = json.loads(stepgauge("list", "--json", "--db", store).out)
    assert [item["name"] for item in listed["calibrations"]] == ["sim"]
    assert json.loads(stepgauge("show", "sim", "--json", "--db", store).out)["name"] == "sim"


def test_predict_scales_data_parallelism_and_prices_its_network(stepgauge: Stepgauge, store: Path) -> None:
    ran = stepgauge(
        *("predict", "resnet50", "--batch-per-device", 8, "--devices", "1,4", "--link", "9us,1GB/s"),
        *("--json", "--db", store),
    )
    serial, data = json.loads(ran.out)["projections"]
    # The same samples on each device: compute as alone, plus 6 (9 us + 102.2 MB / 4 / 1 GB/s) of all_reduce.
    exchange_s = 6 * (9e-6 + 4 * 25_557_032 / 4 / 1e9)
    assert data["step_s"]["middle"] == pytest.approx(serial["step_s"]["middle"] + exchange_s)
    assert serial["step_s"]["lo"] < serial["step_s"]["middle"] < serial["step_s"]["hi"]
    assert data["strategy"] == "data"


def test_predict_prints_a_step_with_its_interval(stepgauge: Stepgauge, store: Path) -> None:
    ran = stepgauge("predict", "alexnet", "resnet50", "--batch", 32, "--db", store)
    assert ran.code == 0
    assert re.search(r"alexnet +serial +1 +32 +[0-9.]+ m?s +[0-9.]+ m?s - [0-9.]+ m?s", ran.out)


def test_export_and_load_carry_a_calibration_to_another_store(
    stepgauge: Stepgauge, store: Path, tmp_path: Path
) -> None:
    exported, laptop = tmp_path / "sim.json", tmp_path / "laptop.sqlite"
    assert stepgauge("export", "sim", "-o", exported, "--db", store).code == 0
    assert stepgauge("load", exported, "--db", laptop).code == 0
    predict = ("predict", "resnet50", "--batch", 8, "--json", "--db")
    here, there = (json.loads(stepgauge(*predict, db).out) for db in (store, laptop))
    assert here["projections"] == there["projections"]


def test_compare_with_itself_finds_no_difference(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    stepgauge("export", "sim", "-o", tmp_path / "sim.json", "--db", store)
    stepgauge("load", tmp_path / "sim.json", "--name", "twin", "--db", store)
    ran = stepgauge("compare", "sim", "twin", "--model", "resnet50:8", "--json", "--db", store)
    compared = json.loads(ran.out)
    assert all(constant["ratio"] == 1.0 for constant in compared["constants"])
    assert compared["steps"][0]["speedup"] == pytest.approx(1.0)
    assert "a tie" in stepgauge("compare", "sim", "twin", "--model", "resnet50:8", "--db", store).out


def test_validate_measures_a_real_step(stepgauge: Stepgauge, store: Path) -> None:
    ran = stepgauge("validate", "alexnet:1", "--db", store)
    assert ran.code == 2  # the calibration is of another device
    assert "is of simulated device, but this is" in ran.err


def test_calibrate_measures_this_machine_and_validate_runs_beside_it(stepgauge: Stepgauge, tmp_path: Path) -> None:
    db = tmp_path / "real.sqlite"
    ran = stepgauge("calibrate", "--budget", "45s", "--quick", "--name", "here", "--json", "--db", db)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["measured"] > 5
    with sqlite3.connect(db) as connection:
        (count,) = connection.execute("SELECT count(*) FROM measurement WHERE n >= 5").fetchone()
    connection.close()
    assert count >= json.loads(ran.out)["measured"]


def test_doctor_refuses_a_kind_of_device_that_there_is_not(stepgauge: Stepgauge, tmp_path: Path) -> None:
    ran = stepgauge("doctor", "--device", "gpu", "--db", tmp_path / "new.sqlite")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "unknown device 'gpu'" in ran.err


def test_doctor_reports_every_finding_as_json(stepgauge: Stepgauge, tmp_path: Path) -> None:
    ran = stepgauge("doctor", "--json", "--db", tmp_path / "new.sqlite")
    subjects = {finding["subject"] for finding in json.loads(ran.out)["findings"]}
    assert {"torch", "cores", "store"} <= subjects


def test_ceilings_are_measured_stored_and_printed(stepgauge: Stepgauge, tmp_path: Path) -> None:
    db = tmp_path / "ceilings.sqlite"
    ran = stepgauge("ceilings", "--about", "launch", "--sustain", "0s", "--db", db)
    assert ran.code == 0, ran.err
    assert re.search(r"^launch +[0-9.]+ [num]?s", ran.out, re.MULTILINE)
    found = json.loads(stepgauge("ceilings", "--about", "launch", "--sustain", "0s", "--json", "--db", db).out)
    assert [item["unit"] for item in found["ceilings"]] == ["s"]
    with sqlite3.connect(db) as connection:
        (count,) = connection.execute("SELECT count(*) FROM measurement WHERE micro = 'ceiling'").fetchone()
    connection.close()
    assert count == 2
    assert "unknown group" in stepgauge("ceilings", "--about", "power", "--db", db).err
