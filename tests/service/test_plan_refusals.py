"""What jobs, clusters, models and constants cannot be: exit code 2 and one line, from every command that plans."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracle.layers import Elementwise
from oracle.model import GraphBuilder
from oracle.windows import Conv

Stepgauge = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
LINK = ("--link", "9us,1GB/s")
COMMANDS = ("predict", "advise", "scale", "explain")
CLUSTER = """
name: pair
device: simulated device
tiers:
  - {name: node, devices: 2, link: {latency: 9us, bandwidth: 50GB/s}}
"""
RELU = {"kind": "elementwise", "op": "relu", "shape": [4], "inplace": False}


def refused(ran: Any, says: str) -> None:
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1, ran.err
    assert says in ran.err


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_more_devices_than_the_cluster_has(stepgauge: Stepgauge, store: Path, tmp_path: Path, command: str) -> None:
    pair = written(tmp_path / "pair.yaml", CLUSTER)
    ran = stepgauge(command, "resnet50", "--batch", 64, "--devices", 3, "--cluster", pair, "--db", store)
    refused(ran, "cluster 'pair' has 2 devices, not 3")


@pytest.mark.parametrize(
    ("batch", "strategy", "says"),
    [
        (2, "data", "data parallelism can use 1 to 2 devices for alexnet, not 8"),
        (2, "zero", "1 to 2 devices"),
        (1, "data+filter,group=4", "data+filter parallelism can use 1 to 4 devices for alexnet, not 8"),
        (8, "data,accumulation=2", "no sample for more in each of 2 passes"),
        (8, "pipeline,segments=9", "a batch of 8 cannot be cut into 9 segments"),
        (8, "owt,scheme=c", "no sample for more rounds"),
    ],
)
def test_a_batch_smaller_than_the_group(
    stepgauge: Stepgauge, store: Path, batch: int, strategy: str, says: str
) -> None:
    asked = ("alexnet", "--batch", batch, "--devices", 8, *LINK, "--strategy", strategy, "--db", store)
    refused(stepgauge("explain", *asked), says)


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("filter,split=pool1", "layer 'pool1' of alexnet has no filters to split: its kind is pool"),
        ("channel,split=relu1", "layer 'relu1' of alexnet has no channels to split: its kind is elementwise"),
        ("spatial,last=fc6", "can use 1 device for alexnet"),
        ("spatial,grid=2x4x1", "too small for a grid of 2x4x1"),
        ("filter,split=conv9", "no layer 'conv9' to split"),
        ("pipeline,cuts=conv9", "no layer 'conv9' to begin a stage with"),
    ],
)
def test_a_layer_that_cannot_be_split(stepgauge: Stepgauge, store: Path, strategy: str, says: str) -> None:
    devices = 2 if strategy.startswith("pipeline") else 8
    asked = ("alexnet", "--batch", 64, "--devices", devices, *LINK, "--strategy", strategy, "--db", store)
    for command in ("explain", "predict", "scale") if "no layer" in says else ("explain",):
        refused(stepgauge(command, *asked), says)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the cluster is empty"),
        ("tiers: []\nname: a\ndevice: b\n", "no tiers"),
        ("name: a\ndevice: b\ntiers: &all\n  - {name: node, tiers: *all}\n", "aliases"),
        ("name: a\ndevice: b\ntiers:\n  - {name: node, link: {latency: .nan, bandwidth: 1GB/s}}\n", "'latency'"),
        ("name: a\ndevice: b\ntiers:\n  - {name: node, link: {latency: nans, bandwidth: 1GB/s}}\n", "'latency'"),
        (f"{CLUSTER}device_spread: .nan\n", "device_spread"),
        (CLUSTER.replace("devices: 2", "devices: 2, oversubscription: .inf"), "oversubscription"),
    ],
    ids=["empty", "no tiers", "cyclic", "nan", "nan with a unit", "nan spread", "endless"],
)
def test_a_cluster_that_cannot_be(
    stepgauge: Stepgauge, store: Path, tmp_path: Path, command: str, text: str, says: str
) -> None:
    bad = written(tmp_path / "bad.yaml", text)
    refused(stepgauge(command, "resnet50", "--batch", 8, "--devices", 2, "--cluster", bad, "--db", store), says)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--link", "nans,1GB/s"), "'nans'"),
        (("--link", "1us,nanGB/s"), "'nanGB/s'"),
        ((*LINK, "--memory", "nanGiB"), "'nanGiB'"),
        ((*LINK, "--price", "nan"), "--price must be more than zero, not nan"),
        ((*LINK, "--peak", "nan"), "nan"),
    ],
)
def test_numbers_that_are_none(stepgauge: Stepgauge, store: Path, option: tuple[str, ...], says: str) -> None:
    refused(stepgauge("explain", "resnet50", "--batch", 8, "--devices", 2, *option, "--db", store), says)


@pytest.mark.parametrize("command", ["explain", "advise"])
def test_constants_that_are_no_numbers(
    stepgauge: Stepgauge, exported_calibration: Path, tmp_path: Path, command: str
) -> None:
    values = json.loads(exported_calibration.read_text(encoding="utf-8"))
    values["fits"][0]["constants"][0]["value"] = float("nan")
    spoilt = written(tmp_path / "spoilt.json", json.dumps(values))
    refused(stepgauge("load", spoilt, "--db", tmp_path / "own.sqlite"), "NaN")
    refused(stepgauge(command, "resnet50", "--batch", 8, "--db", tmp_path / "own.sqlite"), "no calibration in")


@pytest.mark.parametrize("strategy", ["owt", "data+owt,group=2"])
def test_owt_without_fully_connected_layers(stepgauge: Stepgauge, store: Path, tmp_path: Path, strategy: str) -> None:
    build = GraphBuilder("convolutions", (3, 16, 16))
    build.add("conv", Conv.of((3, 16, 16), 8, 3, padding=1))
    build.add("relu", Elementwise("relu", (8, 16, 16)))
    model = written(tmp_path / "convolutions.json", build.graph().to_json())
    asked = (model, "--batch", 64, "--devices", 4, *LINK, "--strategy", strategy, "--db", store)
    refused(stepgauge("explain", *asked), "it has no fully connected layers")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("dta", "unknown strategy 'dta'; did you mean 'data'? known: serial, data, spatial"),
        ("data+fliter", "did you mean 'data+filter'?"),
        ("megatron", "unknown strategy 'megatron'"),
        ("", "unknown strategy ''"),
    ],
)
def test_unknown_strategies(stepgauge: Stepgauge, store: Path, command: str, strategy: str, says: str) -> None:
    asked = ("alexnet", "--batch", 8, "--devices", 2, *LINK, "--strategy", strategy, "--db", store)
    refused(stepgauge(command, *asked), says)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ((("a", "input"), ("b", "c"), ("c", "b")), "layer 'b' reads 'c', which no layer before it is called"),
        ((("a", "a"),), "layer 'a' reads 'a'"),
        ((("a", "input"), ("b", "nowhere")), "reads 'nowhere'"),
        ((("a", "input"), ("a", "a")), "two layers of 'graph' are called 'a'"),
        ((), "has no layers"),
    ],
    ids=["cycle", "loop", "missing edge", "doubled", "empty"],
)
def test_a_graph_that_cannot_run(
    stepgauge: Stepgauge, store: Path, tmp_path: Path, command: str, edges: tuple[tuple[str, str], ...], says: str
) -> None:
    layers = [{"name": name, "inputs": [source], **RELU} for name, source in edges]
    values = {"format": "stepgauge-model-1", "name": "graph", "sample_shape": [4], "layers": layers}
    model = written(tmp_path / "graph.json", json.dumps(values))
    refused(stepgauge(command, model, "--batch", 8, *LINK, "--devices", 2, "--db", store), says)


@pytest.mark.parametrize("suffix", [".json", ".net"])
def test_a_million_layers_are_refused_before_they_are_read(store: Path, tmp_path: Path, suffix: str) -> None:
    # A JSON of 10^6 layers is 97 MB. It is opened, 8 MiB of it are read, and the process stays below 400 MB.
    model = tmp_path / f"million{suffix}"
    with model.open("wb") as file:
        file.write(b'{"format": "stepgauge-model-1", "name": "deep", "sample_shape": [1], "layers": [')
        file.truncate(97_000_000)
    # Between the tests and the command stands a small process: a child begins with the peak of whoever forks it.
    measured = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    command = [sys.executable, str(ROOT / "cli.py"), "explain", str(model), "--batch", "8", "--db", str(store)]
    ran = subprocess.run([sys.executable, "-c", measured, *command], check=False, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "is longer than 8 MiB" in ran.stderr
    assert int(ran.stdout) / (1024 if sys.platform == "darwin" else 1) < 400_000  # KiB
