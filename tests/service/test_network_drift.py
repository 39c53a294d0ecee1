"""Two networks of one fabric: drift, comparison, conditions, pictures; and that environments never merge."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from calibration.link_drift import drift
from calibration.link_rows import LinkRow
from calibration.link_sources import link_rows
from calibration.link_values import CurveKey, LinkCalibration
from calibration.links import fit_links
from profiler.measurement import Measurement
from service.conditions import parse_condition

Stepgauge = Callable[..., Any]
MakeMeasurement = Callable[..., Measurement]
HEAD = "source,gpu,interconnect,collective,bytes,nranks,nnodes,dtype,time_us,tag"
SIZES = tuple(2**doubling for doubling in range(8, 27, 2))


def table(stretch: float, tag: str = "a", ranks: tuple[int, ...] = (8, 16), gpu: str = "A100") -> str:
    """All_reduces whose times are alpha + beta * bytes, stretched."""
    rows = [
        f"lab,{gpu},NVLink,all_reduce,{size},{count},1,float,{stretch * (20 + 1e-3 * size):.9g},{tag}"
        for count in ranks
        for size in SIZES
    ]
    return "\n".join([HEAD, *rows]) + "\n"


@pytest.fixture(autouse=True)
def _own_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def fit(stepgauge: Stepgauge, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Import a table and fit it under a name."""

    def run(name: str, text: str, *arguments: object) -> dict[str, Any]:
        (tmp_path / f"{name}.csv").write_text(text)
        assert stepgauge("import", tmp_path / f"{name}.csv", "--db", tmp_path / "s.sqlite").code == 0
        ran = stepgauge(
            "fit", "--from", f"{name}.csv", "--name", name, *arguments, "--json", "--db", tmp_path / "s.sqlite"
        )
        assert ran.code == 0, ran.err
        values: dict[str, Any] = json.loads(ran.out)
        return values

    return run


def test_a_second_fit_of_a_fabric_shows_its_drift(fit: Callable[..., dict[str, Any]]) -> None:
    assert fit("monday", table(1.0))["drift"] is None
    assert fit("elsewhere", table(9.0, gpu="H100"))["drift"] is None
    found = fit("friday", table(1.25))["drift"]
    assert (found["first"], found["second"]) == ("monday", "friday")
    assert [(item["ranks"], item["sizes"]) for item in found["times"]] == [(8, len(SIZES)), (16, len(SIZES))]
    for item in found["times"]:
        assert item["ratio"] == pytest.approx(1.25)
        # Nothing was repeated, so what a single run repeats to is the half-width: 3 % on both sides.
        assert item["hi"] / item["ratio"] == pytest.approx(2.718281828 ** (0.03 * 2**0.5), rel=1e-3)


def test_compare_takes_two_networks(
    fit: Callable[..., dict[str, Any]], stepgauge: Stepgauge, tmp_path: Path, store: Path
) -> None:
    fit("monday", table(1.0))
    fit("friday", table(2.0, ranks=(8,)))
    db = tmp_path / "s.sqlite"
    found = json.loads(stepgauge("compare", "monday", "friday", "--json", "--db", db).out)
    ratios = {item["name"]: item["ratio"] for item in found["constants"]}
    assert ratios["all_reduce.8ranks.1nodes.fp32.alpha_s"] == pytest.approx(2.0, rel=1e-3)
    assert [item["ranks"] for item in found["times"]] == [8]
    assert found["only_first"] == ["all_reduce of 16 ranks on 1 node, fp32, tag=a"]
    shown = stepgauge("compare", "monday", "friday", "--db", db).out
    assert "differs" in shown
    assert "only in monday: all_reduce of 16 ranks" in shown
    assert "--model compares" in stepgauge("compare", "monday", "friday", "--model", "resnet50:8", "--db", db).err


def test_networks_with_nothing_in_common_show_no_empty_table(
    fit: Callable[..., dict[str, Any]], stepgauge: Stepgauge, tmp_path: Path
) -> None:
    fit("small", table(1.0, ranks=(8,)))
    fit("large", table(1.0, ranks=(16,)))
    shown = stepgauge("compare", "small", "large", "--db", tmp_path / "s.sqlite").out
    assert "no collective has a size in common" in shown
    assert "constant" not in shown


def test_a_network_and_a_device_are_not_compared(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text(table(1.0))
    stepgauge("import", tmp_path / "net.csv", "--db", store)
    stepgauge("fit", "--from", "net.csv", "--name", "net", "--db", store)
    device = json.loads(stepgauge("list", "--json", "--db", store).out)["calibrations"][0]["name"]
    ran = stepgauge("compare", "net", device, "--db", store)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "'net' is a network" in ran.err
    assert "not the constants of a device" in stepgauge("show", device, "--plot", "x.png", "--db", store).err or (
        find_spec("matplotlib") is None
    )


def network(*keys: CurveKey, stretch: float = 1.0) -> LinkCalibration:
    rows = [LinkRow(key, float(size), (stretch * (2e-5 + 1e-9 * size),)) for key in keys for size in SIZES]
    return fit_links(rows, "net", "fabric")


KEY = CurveKey("all_reduce", 8, 1, "fp32", "nccl=2.19")


def test_a_new_version_is_compared_with_the_only_one_before_and_said() -> None:
    newer = replace(KEY, environment="nccl=2.21")
    (found,) = drift(network(KEY), network(newer, stretch=0.5))
    assert (found.was, found.key.environment, round(found.ratio, 6)) == ("nccl=2.19", "nccl=2.21", 0.5)
    assert found.differs
    # Of two before, which one it replaces is not known: the common one alone is compared.
    both = network(KEY, replace(KEY, environment="nccl=2.20"))
    assert drift(both, network(newer)) == ()
    assert [item.was for item in drift(both, network(KEY, newer))] == ["nccl=2.19"]


def test_jobs_are_compared_at_their_mean() -> None:
    one, two = replace(KEY, job="a"), replace(KEY, job="b")
    first = fit_links(
        [
            LinkRow(key, float(size), (factor * (2e-5 + 1e-9 * size),))
            for key, factor in ((one, 1.0), (two, 4.0))
            for size in SIZES
        ],
        "net",
        "fabric",
    )
    (found,) = drift(first, network(KEY))
    # The geometric mean of 1 and 4 is 2.
    assert found.ratio == pytest.approx(0.5)


def test_no_common_size_is_no_drift() -> None:
    others = [LinkRow(KEY, 3.0 * size, (2e-5,)) for size in SIZES]
    assert drift(network(KEY), fit_links(others, "net", "fabric")) == ()


@pytest.mark.parametrize("name", ["nccl", "node_set", "NCCL_ALGO", "driver", "torch", "topology"])
def test_what_says_something_else_of_itself_is_never_merged(make_measurement: MakeMeasurement, name: str) -> None:
    measured = []
    for value in ("one", "two"):
        for size in (64, 1024):
            case = {"collective": "all_reduce", "bytes": size, "ranks": 8, "nodes": 1, "dtype": "fp32"}
            made = make_measurement("r", micro="collective", case=case, device_s=(1e-5,))
            environment = replace(made.environment, identity={**made.environment.identity, name: value})
            measured.append(replace(made, environment=environment))
    curves = fit_links(link_rows(measured), "net", "fabric").curves
    assert len({curve.key.environment for curve in curves}) == 2


def test_numbers_are_compared_as_numbers(
    fit: Callable[..., dict[str, Any]], stepgauge: Stepgauge, tmp_path: Path
) -> None:
    assert fit("small", table(1.0, ranks=(8, 16, 128)), "--where", "ranks<=16")["curves"] == 2
    ran = stepgauge(
        "price", tmp_path / "small.csv", "--network", "small", "--where", "nranks>16", "--json",
        "--db", tmp_path / "s.sqlite",
    )  # fmt: skip
    assert json.loads(ran.out)["rows"] == len(SIZES)


@pytest.mark.parametrize(
    ("text", "said", "holds"),
    [
        ("ranks<8", ["8"], False),
        ("ranks<=8", ["8"], True),
        ("ranks>=1e1", ["9", "11"], True),
        ("ranks!=8", ["8"], False),
        ("ranks!=8", [], True),
        ("ranks>8", ["many"], False),
        ("tag=<none>", ["<none>"], True),
    ],
)
def test_conditions(text: str, said: list[str], holds: bool) -> None:
    assert parse_condition(text).holds(said) is holds


def test_a_comparison_with_no_number_is_refused(stepgauge: Stepgauge, tmp_path: Path) -> None:
    ran = stepgauge("fit", "--from", "x", "--name", "y", "--where", "ranks<many", "--db", tmp_path / "s.sqlite")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "compares with a number, not 'many'" in ran.err


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
def test_a_network_is_drawn(
    fit: Callable[..., dict[str, Any]], stepgauge: Stepgauge, tmp_path: Path, suffix: str
) -> None:
    fit("monday", table(1.0) + table(1.0, ranks=(4,)).replace("all_reduce", "broadcast").partition("\n")[2])
    picture = tmp_path / f"net{suffix}"
    ran = stepgauge("show", "monday", "--collectives", "--plot", picture, "--db", tmp_path / "s.sqlite")
    if find_spec("matplotlib") is None:
        assert "matplotlib is not installed; pip install 'stepgauge[plot]'" in ran.err
        return
    assert ran.code == 0, ran.err
    content = picture.read_bytes()
    if suffix == ".png":
        assert content.startswith(b"\x89PNG")
    else:
        # Two collectives in two panels, 8 and 16 ranks in one of them.
        assert all(text in content for text in (b"all_reduce", b"broadcast", b"bus bandwidth"))
