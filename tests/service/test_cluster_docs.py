"""docs/cluster.md shows commands that exist, and the script that `plan-measurement` writes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def _check(stepgauge: Callable[..., Any], words: list[str]) -> None:
    """A command line has a command and only options that it knows."""
    arguments = words[words.index("stepgauge") + 1 :]
    ran = stepgauge(arguments[0], "--help")
    assert ran.code == 0, arguments
    known = set(re.findall(r"--[a-z-]+", ran.out))
    assert {word for word in arguments if word.startswith("--")} <= known, arguments


def test_every_command_of_the_document_exists(stepgauge: Callable[..., Any]) -> None:
    lines = [shlex.split(line) for block in _blocks("sh") for line in block.splitlines()]
    ours = [words for words in lines if "stepgauge" in words]
    assert {words[words.index("stepgauge") + 1] for words in ours} >= {"plan-measurement", "collect", "measure"}
    for words in ours:
        _check(stepgauge, words)
    jobs = [part for block in _blocks("yaml") for part in yaml.safe_load_all(block) if part["kind"] == "Job"]
    for job in jobs:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        _check(stepgauge, container["command"])


def test_the_script_of_the_document_is_the_one_that_is_written(stepgauge: Callable[..., Any], tmp_path: Path) -> None:
    (line,) = (line for block in _blocks("sh") for line in block.splitlines() if "plan-measurement" in line)
    words = shlex.split(line)[1:]
    words[words.index("--sbatch") + 1] = str(tmp_path / "measure.sbatch")
    words[words.index("--cluster") + 1] = str(ROOT / words[words.index("--cluster") + 1])
    assert stepgauge(*words).code == 0
    assert _blocks("bash") == [(tmp_path / "measure.sbatch").read_text()]
    # The document collects what the scripts leave.
    folders = set(re.findall(r"stepgauge collect (\S+)", TEXT))
    for script in tmp_path.glob("*.sbatch"):
        assert set(re.findall(r"stepgauge collect (\S+)", script.read_text())) <= folders
