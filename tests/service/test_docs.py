"""What the documents show works as they show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def _block(document: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_model_of_the_documents_is_predicted(stepgauge: Callable[..., Any], store: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(_block("docs/models.md", "json"))
    ran = stepgauge("predict", tmp_path / "tiny.json", "--batch", 64, "--db", store)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[1].startswith("tiny")


def test_the_cluster_of_the_readme_is_read(stepgauge: Callable[..., Any], store: Path, tmp_path: Path) -> None:
    (tmp_path / "two-racks.yaml").write_text(_block("README.md", "yaml"))
    predict = ("predict", "resnet50", "--batch-per-device", 64, "--devices", "4,64,136", "--db", store)
    ran = stepgauge(*predict, "--cluster", tmp_path / "two-racks.yaml")
    assert ran.code == 0, ran.err
    assert ran.out.count("resnet50  data") == 3
