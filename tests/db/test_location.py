"""Where the database lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.location import NETWORK_FILE_SYSTEMS, default_url, network_file_system

MOUNTS = r"""
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
srv:/home /home nfs4 rw,vers=4.2 0 0
tmpfs /home/ann/scratch tmpfs rw 0 0
srv:/with\040blank /mnt/with\040blank cifs rw 0 0
/dev/sdb1 /data xfs rw 0 0
o2ib:/fs /data lustre rw 0 0
none /guest 9p rw,trans=virtio 0 0
broken line
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/var/lib/x.sqlite", None),
        ("/home/ann/x.sqlite", "nfs4"),
        ("/home/ann/scratch/x.sqlite", None),  # the longest mount point wins
        ("/homework/x.sqlite", None),  # a common beginning is not a common folder
        ("/mnt/with blank/x.sqlite", "cifs"),
        ("/data/x.sqlite", "lustre"),  # the later mount lies on top
        ("/guest/x.sqlite", None),  # see the module
    ],
)
def test_the_innermost_and_latest_mount_decides(path: str, found: str | None) -> None:
    assert network_file_system(Path(path), MOUNTS) == found


@pytest.mark.parametrize("kind", sorted(NETWORK_FILE_SYSTEMS))
def test_every_network_file_system_is_found(kind: str) -> None:
    assert network_file_system(Path("/a/b"), f"/dev/sda / ext4 rw 0 0\nsrv:/a /a {kind} rw 0 0\n") == kind


def test_no_mounts_means_no_network() -> None:
    assert network_file_system(Path("/a/b"), "") is None


def test_the_default_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("STEPGAUGE_DB", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_url() == "/home/ann/.local/share/stepgauge/stepgauge.sqlite"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert default_url() == "/home/ann/.local/share/stepgauge/stepgauge.sqlite"
    monkeypatch.setenv("XDG_DATA_HOME", "/data/ann")
    assert default_url() == "/data/ann/stepgauge/stepgauge.sqlite"
    monkeypatch.setenv("STEPGAUGE_DB", "postgresql://db/stepgauge")
    assert default_url() == "postgresql://db/stepgauge"
    monkeypatch.setenv("STEPGAUGE_DB", "")
    assert default_url() == "/data/ann/stepgauge/stepgauge.sqlite"
