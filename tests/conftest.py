"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No test is held to a time: machines that share their cores pause.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real measurements beside the checkout; tests that need it skip where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("STEPGAUGE_SHARED", beside))
    if not (folder / "data").is_dir():
        pytest.skip(f"real measurements are not at hand: no folder {folder}")
    return folder
