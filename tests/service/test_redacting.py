"""Nothing that is given away with --redact says whose it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.link_rows import LinkRow
from calibration.link_values import CurveKey, LinkCalibration, Measured, Overlap
from calibration.links import fit_links
from db.store import Store
from oracle.constants import Calibration
from service.networks import stored_form
from service.redacting import HARDWARE, KEPT, Redaction, redacted_network

NODE, SECRET, SITE = "gpu17.cluster.example.org", "hunter2-token", "Example-Lab"
HOW = Redaction(b"a key of this test")


def _network(environment: str, job: str = "", label: str = "") -> LinkCalibration:
    key = CurveKey("all_reduce", 4, 2, "fp32", environment, job)
    rows = [LinkRow(key, 2.0**step, (1e-5 + 2.0**step * 1e-9,), algorithm=label) for step in range(5, 16)]
    return fit_links(rows, f"{SITE} network", f"Some GPU, {SITE}, {NODE}")


def _overlaps(environment: str) -> tuple[Overlap, ...]:
    factor = Measured(1.2, 1.1, 1.3, 9)
    kernels = ("matmul 256", f"{SITE} kernel")
    return tuple(Overlap("all_reduce", 4, 2, environment, kernel, factor, factor) for kernel in kernels)


def test_what_is_in_our_own_words_stays() -> None:
    ours = "pattern=ring, spacing=conv2d 1x32x28x28"
    assert HOW.form(ours) == ours
    assert HOW.form("api=cupy") == "api=cupy"
    assert HOW.kernel("copy 2097152") == "copy 2097152"
    assert SITE.lower() not in HOW.form(f"pattern={SITE.lower()}")


def test_a_planted_name_is_nowhere_in_a_redacted_network(
    stepgauge: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    environment = (
        f"NCCL_SOCKET_IFNAME={NODE}, NCCL_TOPO_FILE=/home/{SECRET}/x.xml, nccl=2.21.5, owner={SITE}, tag={NODE}"
    )
    known = _network(environment, f"node_set={NODE}, world_ranks=4", f"RING/{SECRET}")
    known = replace(known, notes=(f"measured on {NODE}",), overlap=_overlaps(environment))
    db = tmp_path / "store.sqlite"
    with Store.open(str(db)) as store:
        store.add_network(stored_form(known, "2026-01-02T03:04:05+00:00"), [])
    plain = stepgauge("export", known.name, "--db", db)
    assert NODE in plain.out
    ran = stepgauge("export", known.name, "--redact", "--as", "some network", "--db", db)
    assert ran.code == 0, ran.err
    for planted in (NODE, SECRET, SITE, "gpu17", "/home"):
        assert planted not in ran.out
    # What is no name stays, and the file can be loaded and priced with.
    (tmp_path / "given.json").write_text(ran.out)
    assert "nccl=2.21.5" in ran.out
    assert stepgauge("load", tmp_path / "given.json", "--db", tmp_path / "other.sqlite").code == 0
    assert json.loads(ran.out)["curves"][0]["seconds"] == list(known.curves[0].seconds)


def test_a_planted_name_is_nowhere_in_a_redacted_calibration(
    stepgauge: Callable[..., Any],
    make_calibration: Callable[..., Calibration],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    environment = {"LD_PRELOAD": f"/opt/{SITE}/lib.so", "torch": f"2.6.0+{SITE}", "python": "3.11.7", NODE: SECRET}
    known = make_calibration(f"{SITE} node", environment=environment, notes=(f"{NODE} was not idle",))
    db = tmp_path / "store.sqlite"
    with Store.open(str(db)) as store:
        store.add_calibration(known, [])
    ran = stepgauge("export", known.name, "--redact", "--db", db)
    assert ran.code == 0, ran.err
    for planted in (NODE, SECRET, SITE, known.validity_key):
        assert planted not in ran.out
    assert json.loads(ran.out)["environment"]["python"] == "3.11.7"
    refused = stepgauge("export", known.name, "--as", "x", "--db", db)
    assert refused.code == 2
    assert "--redact" in refused.err


def test_environments_that_differ_stay_apart() -> None:
    rows = [
        LinkRow(CurveKey("all_reduce", 4, 2, "fp32", f"NCCL_NET_PLUGIN=/opt/{kind}"), size, (1e-5 + size * 1e-9,))
        for kind in ("a", "b")
        for size in (32.0, 64.0, 128.0, 256.0)
    ]
    given_away = redacted_network(fit_links(rows, "n", "GPU"), HOW)
    assert len(given_away.environments) == 2


@given(st.text(min_size=1).filter(lambda name: name not in KEPT | HARDWARE), st.text(min_size=1))
def test_only_listed_names_with_plain_values_pass(name: str, value: str) -> None:
    kept_name, kept_value = HOW.setting(name, value)
    assert kept_name.startswith("redacted-")
    assert kept_value.startswith("redacted-")


@pytest.mark.parametrize("value", ["10.141.0.17", "node17", "2.6.0+site", "Linux 5.14.0-site.x86_64", "/opt/x"])
def test_values_that_are_no_version_become_digests(value: str) -> None:
    assert HOW.setting("torch", value)[1].startswith("redacted-")
    # A value that pretends to be an entry of its own is judged as one.
    assert "node17" not in HOW.settings(f"tag=x, torch={value}, nccl=node17")
