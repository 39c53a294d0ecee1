"""Advice, scaling and explanations on a store that a simulated device has filled; and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from oracle.layers import Elementwise
from oracle.model import GraphBuilder
from oracle.strategies import STRATEGIES
from oracle.windows import Conv
from service.options import STRATEGY_NAMES

ROOT = Path(__file__).resolve().parents[2]
ABCI = ROOT / "docs" / "clusters" / "abci.yaml"
Stepgauge = Callable[..., Any]

ON_FOUR = ("alexnet", "--devices", 4, "--batch-per-device", 8, "--link", "9us,1GB/s")


def read(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    values: dict[str, Any] = json.loads(ran.out)
    return values


def refused(ran: Any) -> str:
    assert ran.code == 2, ran.out
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1, ran.err
    return str(ran.err)


def test_advice_ranks_every_strategy_or_says_why_not(stepgauge: Stepgauge, store: Path) -> None:
    advice = read(stepgauge("advise", *ON_FOUR, "--json", "--db", store))
    assert advice["format"] == "stepgauge-advise-1"
    names = [row["projection"]["strategy"] for row in advice["ranked"]] + [row["strategy"] for row in advice["refused"]]
    assert sorted(names) == sorted(STRATEGIES)
    steps = [row["projection"]["step_s"]["middle"] for row in advice["ranked"]]
    assert steps == sorted(steps)
    assert {row["projection"]["devices"] for row in advice["front"]} <= {4, 2, 1}


def test_a_label_of_advice_explains_the_same_step(stepgauge: Stepgauge, store: Path) -> None:
    advice = read(stepgauge("advise", *ON_FOUR, "--json", "--db", store))
    for row in advice["ranked"][:3]:
        explained = read(stepgauge("explain", *ON_FOUR, "--strategy", row["label"], "--json", "--db", store))
        assert explained["projection"]["step_s"] == row["projection"]["step_s"]


def test_an_explanation_adds_up_to_its_step(stepgauge: Stepgauge, store: Path) -> None:
    explained = read(stepgauge("explain", *ON_FOUR, "--json", "--db", store))
    seconds = sum(item["seconds"] for item in explained["kernels"] + explained["transfers"])
    assert seconds == pytest.approx(explained["projection"]["step_s"]["middle"])
    (exchange,) = explained["transfers"]
    # A ring of 4 with 61,100,840 gradients: 6 (9 us + 244 MB / 4 / 1 GB/s).
    assert exchange["seconds"] == pytest.approx(6 * (9e-6 + 61_100_840 / 1e9))
    assert exchange["latency_s"] == pytest.approx(54e-6, rel=1e-3)


def test_the_text_names_bottlenecks_with_their_remedies(stepgauge: Stepgauge, store: Path) -> None:
    out = " ".join(stepgauge("explain", *ON_FOUR, "--db", store).out.split())
    assert re.search(r"gradient exchange: \d+% of the step, bandwidth-bound: all_reduce of 233 MiB", out)
    assert "would bring it to" in out


def test_scaling_weakly_keeps_the_batch_of_a_device(stepgauge: Stepgauge, store: Path) -> None:
    scaled = read(
        stepgauge("scale", "alexnet", "--batch-per-device", 8, "--devices", "1..8", "--strategy", "data",
                  "--strategy", "data,buckets=25MiB", "--link", "9us,1GB/s", "--json", "--db", store)
    )  # fmt: skip
    rows = scaled["rows"]
    assert [(row["label"], row["projection"]["devices"]) for row in rows][:4] == [("data", n) for n in (1, 2, 4, 8)]
    assert [row["projection"]["global_batch"] for row in rows[:4]] == [8, 16, 32, 64]
    plain, buckets = (row["projection"]["step_s"]["middle"] for row in (rows[3], rows[7]))
    assert buckets < plain


@pytest.mark.parametrize("command", ["advise", "scale", "explain"])
def test_the_text_says_what_was_asked_and_where_it_comes_from(stepgauge: Stepgauge, store: Path, command: str) -> None:
    rates = ("--epochs", 90, "--price", 2, "--power", 300, "--peak", 0.1)
    ran = stepgauge(command, *ON_FOUR, *rates, "--db", store)
    assert ran.code == 0, ran.err
    assert "calibration 'sim'" in ran.out
    if command != "scale":
        assert re.search(r"training .*device-hours, MFU \d+%, .*kWh, cost ", ran.out)


def test_figures_follow_from_the_epoch(stepgauge: Stepgauge, store: Path) -> None:
    rates = ("--epochs", 90, "--price", 2, "--power", 300)
    explained = read(stepgauge("explain", *ON_FOUR, *rates, "--json", "--db", store))
    training_s = explained["training_s"]["middle"]
    assert training_s == pytest.approx(90 * explained["projection"]["epoch_s"]["middle"])
    hours = 4 * training_s / 3600
    assert explained["device_hours"]["middle"] == pytest.approx(hours)
    assert explained["cost"]["middle"] == pytest.approx(2 * hours)
    assert explained["energy_j"]["middle"] == pytest.approx(4 * training_s * 300)
    assert explained["mfu"] is None


def test_the_help_lists_every_strategy() -> None:
    inner = [name.removeprefix("data+") for name in STRATEGIES if "+" in name]
    assert [name for name in STRATEGIES if "+" not in name] == ["serial", "data", *inner]
    assert STRATEGY_NAMES.startswith(f"{', '.join(['serial', 'data', *inner])}, and data+ any of the last six")


def test_more_memory_is_never_less_batch(stepgauge: Stepgauge, store: Path) -> None:
    tight = stepgauge("explain", *ON_FOUR, "--memory", "500MiB", "--db", store)
    assert "does not fit: a device needs" in " ".join(tight.out.split())
    assert "cannot be done" not in stepgauge("explain", *ON_FOUR, "--memory", "64GiB", "--db", store).out


def test_recomputation_takes_time_and_saves_memory(stepgauge: Stepgauge, store: Path) -> None:
    resnet = ("explain", "resnet50", "--batch", 32, "--json", "--db", store)
    plain, again = (read(stepgauge(*resnet, *more))["projection"] for more in ((), ("--recompute", 13)))
    assert again["memory"]["total_bytes"] < plain["memory"]["total_bytes"]
    assert again["step_s"]["middle"] > plain["step_s"]["middle"]


def test_advice_saves_memory_and_says_how(stepgauge: Stepgauge, store: Path) -> None:
    tight = ("resnet50", "--batch-per-device", 32, "--devices", 4, "--link", "9us,1GB/s", "--memory", "1.5GiB")
    advice = read(stepgauge("advise", *tight, "--strategy", "data", "--strategy", "zero", "--json", "--db", store))
    rows = {row["projection"]["strategy"]: row for row in advice["ranked"]}
    assert "accumulation=" in rows["data"]["label"] or rows["data"]["projection"]["execution"]["recomputed_segments"]
    assert rows["zero"]["projection"]["execution"]["recomputed_segments"] == 13  # the root of 176 layers
    text = " ".join(stepgauge("advise", *tight, "--strategy", "zero", "--db", store).out.split())
    assert "zero,stage=3 --recompute 13" in text or "zero --recompute 13" in text
    assert "fits by recomputing activations" in text
    # What a row says, read back.
    again = ("--strategy", rows["zero"]["label"], "--recompute", 13, "--json", "--db", store)
    assert read(stepgauge("explain", *tight, *again))["projection"]["step_s"] == rows["zero"]["projection"]["step_s"]


def test_the_reference_cluster_is_read(stepgauge: Stepgauge, store: Path) -> None:
    explained = read(
        stepgauge("explain", "resnet50", "--devices", 64, "--batch-per-device", 64, "--cluster", ABCI, "--json",
                  "--db", store)
    )  # fmt: skip
    (exchange,) = explained["transfers"]
    assert (exchange["tier"], exchange["group"]) == (1, 64)
    assert explained["projection"]["memory"]["capacity_bytes"] == 16 * 2**30


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
@pytest.mark.parametrize("command", ["advise", "scale", "explain"])
def test_a_picture_is_drawn_or_its_library_named(
    stepgauge: Stepgauge, store: Path, tmp_path: Path, command: str, suffix: str
) -> None:
    picture = tmp_path / f"picture{suffix}"
    ran = stepgauge(command, *ON_FOUR, "--strategy", "data", "--plot", picture, "--db", store)
    if find_spec("matplotlib") is None:
        assert "matplotlib is not installed; pip install 'stepgauge[plot]'" in refused(ran)
    else:
        assert ran.code == 0, ran.err
        assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("advise", "alexnet", "--batch", 8, "--devices", "1,2", "--link", "1us,1GB/s"), "one number of devices"),
        (("advise", *ON_FOUR, "--strategy", "fliter"), "did you mean 'filter'?"),
        (("advise", *ON_FOUR, "--strategy", "zero,stage=2"), "write 'zero' instead of 'zero,stage=2'"),
        (("advise", *ON_FOUR, "--epochs", 0), "--epochs must be at least 1, not 0"),
        (("advise", *ON_FOUR, "--power", "nan"), "--power must be more than zero, not nan"),
        (("advise", *ON_FOUR, "--price", -1), "--price must be more than zero"),
        (("advise", *ON_FOUR, "--memory", "0GiB"), "--memory must be more than zero"),
        (("advise", *ON_FOUR, "--memory", "lots"), "'lots' is not a size"),
        (("advise", *ON_FOUR, "--plot", "front.jpg"), ".png, .svg, .html"),
        (("advise", *ON_FOUR, "--plot", "/no/such/front.png"), "no folder"),
        (("advise", *ON_FOUR, "--recompute", -1), "zero or more"),
        (("scale", "alexnet", "--batch", 8, "--link", "1us,1GB/s", "--devices", "8..1"), "from at least 1 up"),
        (("scale", "alexnet", "--batch", 8, "--link", "1us,1GB/s", "--devices", "1..many"), "1..1024"),
        (("scale", "alexnet", "--batch", 8), "need a network"),
        (("explain", "alexnet", "--batch", 2, "--devices", 4, "--link", "1us,1GB/s"), "1 to 2 devices"),
        (("explain", *ON_FOUR, "--strategy", "serial"), "serial training can use 1 device"),
        (("explain", *ON_FOUR, "--strategy", "data,bucket=1MiB"), "did you mean 'buckets'?"),
        (("explain", *ON_FOUR, "--strategy", "filter,split=pool9"), "no layer 'pool9' to split"),
        (("explain", *ON_FOUR, "--strategy", "filter,split=pool1"), "has no filters to split: its kind is pool"),
        (("explain", *ON_FOUR, "--strategy", "data+filter,group=3"), "no multiple of its group of 3"),
        (("explain", *ON_FOUR, "--strategy", "pipeline,segments=64"), "cannot be cut into 64 segments"),
        (("explain", *ON_FOUR, "--strategy", "spatial,grid=2x1"), "a grid of 2x1 has no more"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    stepgauge: Stepgauge, store: Path, arguments: tuple[object, ...], says: str
) -> None:
    assert says in refused(stepgauge(*arguments, "--db", store))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("name: a\ndevice: b\ntiers: []\n", "no tiers"),
        ("a: &a\n  tiers: *a\n", "aliases"),
        (
            "name: two\ndevice: b\ntiers:\n  - {name: n, devices: 2, link: {latency: 1us, bandwidth: 1GB/s}}\n",
            "2 devices",
        ),
        ("name: n\ndevice: b\ntiers:\n  - {name: n, link: {latency: nan us, bandwidth: 1GB/s}}\n", "latency"),
    ],
)
@pytest.mark.parametrize("command", ["advise", "scale", "explain"])
def test_a_cluster_file_that_cannot_be_is_refused(
    stepgauge: Stepgauge, store: Path, tmp_path: Path, command: str, text: str, says: str
) -> None:
    (tmp_path / "cluster.yaml").write_text(text)
    ran = stepgauge(
        command, "alexnet", "--batch", 8, "--devices", 4, "--cluster", tmp_path / "cluster.yaml", "--db", store
    )
    assert says in refused(ran)


def test_owt_needs_fully_connected_layers(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    build = GraphBuilder("conv-only", (3, 8, 8))
    build.add("conv", Conv.of((3, 8, 8), 8, 3, padding=1, bias=False))
    build.add("relu", Elementwise("relu", (8, 8, 8)))
    (tmp_path / "net.json").write_text(build.graph().to_json())
    asked = (tmp_path / "net.json", "--batch", 64, "--devices", 4, "--link", "1us,1GB/s", "--db", store)
    assert "it has no fully connected layers" in refused(stepgauge("explain", *asked, "--strategy", "owt"))


def test_a_graph_with_a_cycle_or_a_missing_edge_is_refused(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    build = GraphBuilder("net", (3, 8, 8))
    build.add("a", Elementwise("relu", (3, 8, 8)))
    build.add("b", Elementwise("relu", (3, 8, 8)))
    values = json.loads(build.graph().to_json())
    for read_by_a in ("b", "nobody"):
        values["layers"][0]["inputs"] = [read_by_a]
        (tmp_path / "net.json").write_text(json.dumps(values))
        ran = stepgauge("explain", tmp_path / "net.json", "--batch", 8, "--db", store)
        assert f"reads '{read_by_a}', which no layer before it is called" in refused(ran)


def test_a_million_layers_are_refused_before_they_are_read(stepgauge: Stepgauge, store: Path, tmp_path: Path) -> None:
    layer = '{"name": "relu", "inputs": ["input"], "kind": "elementwise", "op": "relu", "shape": [1]}'
    with (tmp_path / "net.json").open("w") as file:
        file.write('{"format": "stepgauge-model-1", "layers": [' + ",".join([layer] * 1_000_000) + "]}")
    assert "longer than" in refused(stepgauge("explain", tmp_path / "net.json", "--batch", 8, "--db", store))


def test_figures_that_nobody_can_know_are_missing(stepgauge: Stepgauge, store: Path) -> None:
    advice = read(stepgauge("advise", *ON_FOUR, "--strategy", "data", "--json", "--db", store))
    row = advice["ranked"][0]
    assert (row["mfu"], row["energy_j"], row["cost"]) == (None, None, None)
    assert row["training_s"] is not None
