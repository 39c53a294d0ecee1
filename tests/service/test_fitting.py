"""`stepgauge fit` turns stored measurements into calibrations; `list`, `show`, `export` and `load` take both kinds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Stepgauge = Callable[..., Any]
ALPHA_S, S_PER_BYTE = 2e-5, 1e-9
HEAD = "source,gpu,interconnect,collective,bytes,nranks,nnodes,dtype,time_us,tag,calib"
SIZES = tuple(2**doubling for doubling in range(8, 27, 2))


def rows(tag: str, ranks: int = 8, nodes: int = 1, gpu: str = "A100", stretch: float = 1.0) -> list[str]:
    """All_reduces whose times are alpha + beta * bytes, stretched."""
    return [
        f"lab,{gpu},NVLink,all_reduce,{size},{ranks},{nodes},float,"
        f"{stretch * 1e6 * (ALPHA_S + S_PER_BYTE * size):.9g},{tag},{place % 2 == 0}"
        for place, size in enumerate(SIZES)
    ]


@pytest.fixture(autouse=True)
def _own_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def db(stepgauge: Stepgauge, tmp_path: Path) -> Path:
    """A store with two imported tables: `one.csv` of one run, `mixed.csv` of two environments and two devices."""
    path = tmp_path / "net.sqlite"
    (tmp_path / "one.csv").write_text("\n".join([HEAD, *rows("a")]) + "\n")
    mixed = [*rows("a"), *rows("b", stretch=3.0), *rows("a", gpu="H100", stretch=0.5)]
    (tmp_path / "mixed.csv").write_text("\n".join([HEAD, *mixed]) + "\n")
    assert stepgauge("import", tmp_path / "one.csv", tmp_path / "mixed.csv", "--db", path).code == 0
    return path


def fitted(stepgauge: Stepgauge, db: Path, *arguments: object) -> dict[str, Any]:
    """The network that a fit stores, as `export` writes it."""
    ran = stepgauge("fit", *arguments, "--json", "--db", db)
    assert ran.code == 0, ran.err
    document: dict[str, Any] = json.loads(stepgauge("export", json.loads(ran.out)["name"], "--db", db).out)
    return document


def test_plain_sql_reads_alpha_and_beta(stepgauge: Stepgauge, db: Path) -> None:
    assert stepgauge("fit", "--from", "one.csv", "--name", "lab", "--db", db).code == 0
    connection = sqlite3.connect(db)
    found = connection.execute("SELECT name, value, unit FROM network_constant WHERE ranks = 8").fetchall()
    runs = connection.execute("SELECT count(*) FROM network_run").fetchone()
    connection.close()
    constants = {name: (value, unit) for name, value, unit in found}
    assert constants["all_reduce.8ranks.1nodes.fp32.alpha_s"] == (pytest.approx(ALPHA_S, rel=1e-4), "s")
    assert constants["all_reduce.8ranks.1nodes.fp32.s_per_byte"] == (pytest.approx(S_PER_BYTE, rel=1e-4), "s/B")
    assert runs == (1,)


def test_two_environments_are_two_curves(stepgauge: Stepgauge, db: Path) -> None:
    network = fitted(stepgauge, db, "--from", "mixed.csv", "--where", "device=A100", "--name", "lab")
    alphas = {curve["key"]["environment"]: curve["alpha_beta"]["alpha_s"] for curve in network["curves"]}
    assert alphas == {"tag=a": pytest.approx(ALPHA_S, rel=1e-4), "tag=b": pytest.approx(3 * ALPHA_S, rel=1e-4)}


def test_a_mark_of_jobs_is_no_environment(stepgauge: Stepgauge, db: Path) -> None:
    arguments = ("--from", "mixed.csv", "--where", "device=A100", "--job", "tag", "--name", "lab")
    network = fitted(stepgauge, db, *arguments)
    keys = [(curve["key"]["environment"], curve["key"]["job"]) for curve in network["curves"]]
    assert keys == [("", "tag=a"), ("", "tag=b")]


def test_only_rows_that_say_so_are_taken(stepgauge: Stepgauge, db: Path) -> None:
    network = fitted(stepgauge, db, "--from", "one.csv", "--where", "flag=calib", "--name", "lab")
    assert network["curves"][0]["sizes_bytes"] == list(SIZES[::2])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--from", "mixed.csv"), "2; choose with --where: A100, lab, NVLink; H100, lab, NVLink"),
        (("--from", "onne.csv"), "did you mean 'one.csv'?"),
        (("--from", "one.csv", "--where", "device=V100"), "no measurement has device=V100; there are A100"),
        (("--from", "one.csv", "--where", "phases=x"), "none of them says anything of 'phases'"),
        (("--from", "one.csv", "--where", "device"), "--where takes KEY=VALUE"),
        (("--from", "one.csv", "--where", "bytes=256"), "no collective was measured at two sizes"),
    ],
)
def test_fit_refuses(stepgauge: Stepgauge, db: Path, arguments: tuple[object, ...], text: str) -> None:
    ran = stepgauge("fit", *arguments, "--name", "lab", "--db", db)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert text in ran.err


def test_a_taken_name_is_refused(stepgauge: Stepgauge, db: Path) -> None:
    for code in (0, 2):
        ran = stepgauge("fit", "--from", "one.csv", "--name", "lab", "--db", db)
        assert ran.code == code
    assert "'lab' already" in ran.err


def test_a_file_that_was_not_imported_says_how(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(HEAD)
    ran = stepgauge("fit", "--from", tmp_path / "new.csv", "--name", "lab", "--db", db)
    assert ran.code == 2
    assert "run 'stepgauge import" in ran.err


def test_list_and_show_know_networks(stepgauge: Stepgauge, db: Path) -> None:
    stepgauge("fit", "--from", "one.csv", "--name", "lab", "--db", db)
    assert "network: A100, lab, NVLink" in stepgauge("list", "--db", db).out
    (listed,) = json.loads(stepgauge("list", "--json", "--db", db).out)["networks"]
    assert (listed["name"], listed["fabric"]) == ("lab", "A100, lab, NVLink")
    assert "all_reduce" in stepgauge("show", "lab", "--db", db).out
    sizes = stepgauge("show", "lab", "--collectives", "--db", db).out
    # 64 MiB in 67.1 ms: busbw = 1.75 * 67.1 MB / 67.1 ms.
    assert "1.75 GB/s" in sizes
    assert json.loads(stepgauge("show", "lab", "--json", "--db", db).out)["format"] == "stepgauge-network-1"


def test_a_network_travels_as_json(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    exported, laptop = tmp_path / "lab.json", tmp_path / "laptop.sqlite"
    stepgauge("fit", "--from", "one.csv", "--name", "lab", "--db", db)
    assert stepgauge("export", "lab", "-o", exported, "--db", db).code == 0
    assert stepgauge("load", exported, "--db", laptop).code == 0
    assert stepgauge("export", "lab", "--db", laptop).out == exported.read_text()
    assert stepgauge("load", exported, "--name", "twin", "--db", laptop).code == 0
    assert "taken" in stepgauge("load", exported, "--db", laptop).err


def _negative(network: dict[str, Any]) -> None:
    network["curves"][0]["seconds"][0] = -1.0


def _nan(network: dict[str, Any]) -> None:
    network["curves"][0]["alpha_beta"]["alpha_s"] = float("nan")


def _no_ranks(network: dict[str, Any]) -> None:
    network["curves"][0]["key"]["ranks"] = "many"


def _no_time(network: dict[str, Any]) -> None:
    network["created_at"] = "yesterday"


def _no_spread(network: dict[str, Any]) -> None:
    del network["spread"]


@pytest.mark.parametrize("spoil", [_negative, _nan, _no_ranks, _no_time, _no_spread])
def test_load_refuses_a_spoilt_network(
    stepgauge: Stepgauge, db: Path, tmp_path: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    network = fitted(stepgauge, db, "--from", "one.csv", "--name", "lab")
    spoil(network)
    (tmp_path / "bad.json").write_text(json.dumps(network))
    ran = stepgauge("load", tmp_path / "bad.json", "--name", "other", "--db", db)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_imported_kernels_become_a_calibration_of_their_device(stepgauge: Stepgauge, db: Path, tmp_path: Path) -> None:
    # 2 n k m FLOP at 10 TFLOP/s behind a launch of 5 us; a batched product is no layer and is left out.
    head = "gpu,op,phase,dtype,batch,gm,gn,gk,time_us"
    shapes = [(1, m, n, k) for m in (64, 512, 4096) for n in (128, 1024) for k in (256, 2048)]
    lines = [f"V100,linear,fwd,fp32,{b},{m},{n},{k},{5 + 1e6 * 2 * m * n * k / 1e13:.6g}" for b, m, n, k in shapes]
    (tmp_path / "kernels.csv").write_text("\n".join([head, *lines, "V100,bmm,fwd,fp32,8,64,64,64,20"]) + "\n")
    assert stepgauge("import", tmp_path / "kernels.csv", "--db", db).code == 0
    ran = stepgauge("fit", "--from", "kernels.csv", "--name", "v100", "--json", "--db", db)
    assert ran.code == 0, ran.err
    values = json.loads(ran.out)
    assert (values["kind"], values["device"], values["left_out"]) == ("device", "V100", 1)
    assert "linear" in stepgauge("show", "v100", "--db", db).out


def test_plans_are_priced_by_a_network(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("\n".join([HEAD, *rows("a"), *rows("b", stretch=3.0)]) + "\n")
    stepgauge("import", tmp_path / "one.csv", "--db", store)
    stepgauge("fit", "--from", "one.csv", "--name", "lab", "--db", store)
    predict = ("predict", "resnet50", "--batch-per-device", 8, "--devices", "1,8", "--network", "lab", "--db", store)
    assert "holds 2 environments; choose one: tag=a, tag=b" in stepgauge(*predict).err
    serial, data = json.loads(stepgauge(*predict, "--environment", "=a", "--json").out)["projections"]
    # An all_reduce of the gradients of 25,557,032 float32 parameters over the eight devices that were measured.
    exchange_s = ALPHA_S + S_PER_BYTE * 4 * 25_557_032
    assert data["step_s"]["middle"] == pytest.approx(serial["step_s"]["middle"] + exchange_s, rel=0.01)
    assert data["gradient_exchange_s"]["middle"] == pytest.approx(exchange_s, rel=0.05)
    assert "assumed" not in data["methods"]


@pytest.fixture
def lab(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> tuple[object, ...]:
    """Options for eight devices on a network of which nothing but all_reduce was measured."""
    (tmp_path / "one.csv").write_text("\n".join([HEAD, *rows("a")]) + "\n")
    stepgauge("import", tmp_path / "one.csv", "--db", store)
    stepgauge("fit", "--from", "one.csv", "--name", "lab", "--db", store)
    return ("alexnet", "--batch-per-device", 8, "--devices", 8, "--network", "lab", "--db", store)


def test_a_network_prices_what_is_explained_ranked_and_scaled_alike(
    stepgauge: Stepgauge, lab: tuple[object, ...]
) -> None:
    (predicted,) = json.loads(stepgauge("predict", *lab, "--strategy", "data", "--json").out)["projections"]
    explained = json.loads(stepgauge("explain", *lab, "--strategy", "data", "--json").out)
    advised = json.loads(stepgauge("advise", *lab, "--strategy", "data", "--json").out)
    (scaled,) = json.loads(stepgauge("scale", *lab, "--strategy", "data", "--json").out)["rows"]
    assert predicted["step_s"] == explained["projection"]["step_s"] == scaled["projection"]["step_s"]
    assert advised["ranked"][0]["projection"]["step_s"]["middle"] <= predicted["step_s"]["middle"]
    for answer in (explained, advised):
        assert "transfers are priced by the network 'lab' of A100, lab, NVLink" in answer["notes"]


def test_strategies_whose_transfers_were_not_measured_are_refused_with_what_is_missing(
    stepgauge: Stepgauge, lab: tuple[object, ...]
) -> None:
    for command, listed in (("advise", "ranked"), ("scale", "rows")):
        answer = json.loads(stepgauge(command, *lab, "--json").out)
        done = {row["projection"]["strategy"] for row in answer[listed] if row["projection"]["feasible"]}
        assert "data" in done
        assert "filter" not in done
        assert "has no all_gather of 8 devices" in json.dumps(answer)


def test_where_nothing_can_be_priced_the_first_thing_missing_is_said(
    stepgauge: Stepgauge, lab: tuple[object, ...]
) -> None:
    for command in ("advise", "scale", "explain"):
        ran = stepgauge(command, *lab, "--strategy", "filter")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "all_gather" in ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--network", "nobody"), "unknown network 'nobody'"),
        (("--network", "nobody", "--link", "9us,1GB/s"), "either --network or --link"),
        (("--environment", "a"), "--environment chooses among those of a --network"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "advise", "scale", "explain"])
def test_a_network_that_cannot_be_is_refused(
    stepgauge: Stepgauge, store: Path, command: str, arguments: tuple[object, ...], text: str
) -> None:
    ran = stepgauge(command, "resnet50", "--batch", 8, *arguments, "--db", store)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert text in ran.err
