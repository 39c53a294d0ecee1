"""What to measure on a cluster, planned without torch."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABCI = ROOT / "docs/clusters/abci.yaml"


def _plan(stepgauge: Callable[..., Any], *options: object) -> Any:
    ran = stepgauge("plan-measurement", "--json", *options)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def _cluster(folder: Path, *tiers: dict[str, Any], name: str = "c") -> Path:
    link = {"latency": "10us", "bandwidth": "10GB/s"}
    path = folder / "cluster.yaml"
    path.write_text(json.dumps({"name": name, "device": "d", "tiers": [{"link": link, **t} for t in tiers]}))
    return path


def test_every_tier_has_a_job_that_crosses_it(stepgauge: Callable[..., Any]) -> None:
    plan = _plan(stepgauge, "--cluster", ABCI)
    rack, system = plan["jobs"]
    # Inside a rack of 17 nodes: 8 nodes give 2, 4 and 8 nodes, the three scales that a law in ranks takes.
    assert (rack["nodes"], rack["ranks_per_node"]) == (8, 4)
    assert {group["kind"]: group["ranks"] for group in rack["groups"]} == {
        **{"node": 4, "across": 8, "all": 32},
        **{"first:2": 2, "first:8": 8, "first:16": 16},
    }
    # 18 nodes would surely leave a rack, but 8 are allowed: two nodes that somebody chooses.
    assert system["nodes"] == 2
    assert "another rack" in system["placement"]
    assert all(group["why"] for job in plan["jobs"] for group in job["groups"])
    assert _plan(stepgauge, "--cluster", ABCI, "--max-nodes", 20)["jobs"][1]["nodes"] == 18


def test_a_plan_for_one_node_says_what_it_leaves_out(stepgauge: Callable[..., Any], tmp_path: Path) -> None:
    plan = _plan(stepgauge, "--cluster", ABCI, "--max-nodes", 1)
    assert [job["nodes"] for job in plan["jobs"]] == [1]
    assert any("between nodes" in note for note in plan["notes"])
    alone = _cluster(tmp_path, {"name": "node", "devices": 8})
    (job,) = _plan(stepgauge, "--cluster", alone)["jobs"]
    assert [group["kind"] for group in job["groups"]] == ["all", "first:2", "first:4"]


def test_a_budget_bounds_the_time_limit_and_says_what_it_covers(stepgauge: Callable[..., Any]) -> None:
    short = _plan(stepgauge, "--cluster", ABCI, "--budget", "2min")
    assert all(job["budget_s"] <= 120 < job["time_limit_s"] for job in short["jobs"])
    assert any("not every size" in note for note in short["notes"])
    long = _plan(stepgauge, "--cluster", ABCI, "--budget", "10h")
    assert all(job["estimate_s"] <= job["budget_s"] < 36000 for job in long["jobs"])
    assert not any("--budget" in note for note in long["notes"])


def test_the_lines_are_commands_of_this_program(stepgauge: Callable[..., Any]) -> None:
    for job in _plan(stepgauge, "--cluster", ABCI, "--device", "cpu", "--dtypes", "fp32,bf16")["jobs"]:
        assert set(job["commands"]) == {"srun", "torchrun", "mpirun"}
        for line in [*job["commands"].values(), job["collect"]]:
            words = shlex.split(line)
            arguments = words[words.index("stepgauge") + 1 :]
            ran = stepgauge(*arguments, "--help")
            assert ran.code == 0, ran.err
            options = {word for word in arguments if word.startswith("--")}
            assert options <= set(ran.out.split()), line


def test_scripts_are_shell_and_hold_what_a_queue_needs(stepgauge: Callable[..., Any], tmp_path: Path) -> None:
    evil = _cluster(
        tmp_path,
        {"name": "node", "devices": 2},
        {"name": "r\nrm -rf $HOME", "nodes": 4},
        {"name": "all", "nodes": 64},
        name="a b\n$(touch hacked)",
    )
    plan = _plan(stepgauge, "--cluster", evil, "--sbatch", tmp_path / "m.sbatch")
    assert [Path(script).name for script in plan["scripts"]] == ["m.sbatch", "m-all.sbatch"]
    for script in plan["scripts"]:
        text = Path(script).read_text()
        subprocess.run(["bash", "-n", script], check=True)
        assert {"#SBATCH --requeue", "#SBATCH --open-mode=append"} <= set(text.splitlines())
        assert "#SBATCH --time=00:" in text
        assert "--resume" in text
        commands = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert [line.split()[0] for line in commands] == ["set", "export", "export", "srun"]
        assert "$(touch" not in text


@pytest.mark.parametrize(
    ("tiers", "said"),
    [
        ([{"name": "node"}], "no number of devices"),
        ([{"name": "node", "devices": 1}], "single device"),
    ],
)
def test_a_cluster_that_cannot_be_measured_is_refused(
    stepgauge: Callable[..., Any], tmp_path: Path, tiers: list[dict[str, Any]], said: str
) -> None:
    ran = stepgauge("plan-measurement", "--cluster", _cluster(tmp_path, *tiers))
    assert ran.code == 2
    assert said in ran.err


def test_planning_loads_no_torch() -> None:
    code = (
        f"import sys, cli\nsys.argv = ['stepgauge', 'plan-measurement', '--cluster', {str(ABCI)!r}]\n"
        "try:\n    cli.main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "assert not {'torch', 'scipy', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
