"""Where a calibration would not be of the device it is refused or labelled, and says so ever after."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from db.store import Store
from oracle.errors import BadInput
from profiler.findings import Finding
from service.agenda import run_labels, session_fact
from service.checking import Report, labels_of
from service.fitting import FitRequest, fit_stored

Stepgauge = Callable[..., Any]

OK = Finding("ok", "torch", "2.13")
DOUBTFUL = Finding("warn", "load", "load average 2 on 2 cores", "stop other work")
SPOILED = Finding("refuse", "cuda 0", "it is busy", "choose another device")
IMPOSSIBLE = Finding("fail", "cuda", "no device: no driver", "measure on --device cpu")


def test_a_good_machine_needs_no_label() -> None:
    assert labels_of([OK], force=False) == ()


def test_what_is_doubtful_is_labelled() -> None:
    assert labels_of([OK, DOUBTFUL], force=False) == ("measured with load: load average 2 on 2 cores",)


def test_what_spoils_a_calibration_is_refused_unless_it_is_forced() -> None:
    with pytest.raises(BadInput, match="would not be the device alone: cuda 0: it is busy; --force goes on"):
        labels_of([DOUBTFUL, SPOILED], force=False)
    assert labels_of([DOUBTFUL, SPOILED], force=True) == (
        "measured in spite of cuda 0: it is busy",
        "measured with load: load average 2 on 2 cores",
    )


def test_what_is_impossible_cannot_be_forced() -> None:
    with pytest.raises(BadInput, match=r"^nothing can be measured here: cuda: no device: no driver$"):
        labels_of([IMPOSSIBLE], force=True)


@pytest.mark.parametrize(("finding", "usable"), [(OK, True), (DOUBTFUL, True), (SPOILED, False), (IMPOSSIBLE, False)])
def test_doctor_ends_well_where_a_calibration_can_be_made(finding: Finding, usable: bool) -> None:
    assert Report((finding,)).usable is usable


def test_labels_of_all_sessions_of_a_run_are_kept_once_each() -> None:
    facts = [session_fact(["busy"]), session_fact(), session_fact(["busy", "MIG"])]
    assert run_labels(facts) == ("busy", "MIG")


def test_a_fit_of_a_stored_run_says_what_the_run_was_measured_with(store: Path) -> None:
    with Store.open(f"sqlite:///{store}") as opened:
        (run,) = [run.id for run in opened.runs()]
        opened.resume_run(run, session_fact(["measured with load: high"]))
        result = fit_stored(opened, FitRequest((run,), "again"))
    assert result.notes[0] == "measured with load: high"


def test_ranks_on_one_machine_are_refused_and_forced_ones_labelled(
    stepgauge: Stepgauge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    command = ("measure", "--quick", "--budget", "1s", "--json", "--db", tmp_path / "new.sqlite")
    ran = stepgauge(*command)
    assert ran.code == 2
    assert "ranks: 4 processes of a job are here (LOCAL_WORLD_SIZE)" in ran.err
    forced = stepgauge(*command, "--force")
    assert forced.code == 0, forced.err
    assert json.loads(forced.out)["notes"][0].startswith("measured in spite of ranks: 4 processes")


def test_a_device_that_is_not_there_is_said_in_one_line(stepgauge: Stepgauge, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    for command in ("calibrate", "measure"):
        ran = stepgauge(command, "--device", "cuda", "--db", tmp_path / "new.sqlite")
        assert ran.code == 2
        assert ran.err.startswith("error: nothing can be measured here: cuda: no device: this torch")
        assert ran.err.count("\n") == 1
    ran = stepgauge("doctor", "--device", "cuda", "--json", "--db", tmp_path / "new.sqlite")
    assert ran.code == 1
    failed = [finding for finding in json.loads(ran.out)["findings"] if finding["level"] == "fail"]
    assert [finding["subject"] for finding in failed] == ["cuda"]
