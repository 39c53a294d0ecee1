"""Where the database lies: the default, the path behind a URL, and whether SQLite can work there.

SQLite keeps the index of its write-ahead log in memory shared by the processes of one machine, and relies on file
locks; over a network file system neither holds, and two machines can damage the file (sqlite.org/wal.html,
sqlite.org/useovernet.html). So such a place is refused before anything is written. 9p and virtiofs are not on the list:
they pass a folder to a guest or a sandbox on the same machine, and a sandbox may have nothing else.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    [
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs"),
        *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "panfs", "pvfs2", "orangefs", "wekafs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse"),
    ]
)
"""Types in /proc/mounts whose files more than one machine can write."""

MOUNTS = Path("/proc/mounts")
"""Where Linux lists what is mounted."""

URL_VARIABLE = "STEPGAUGE_DB"
"""The environment variable that names the database where no `--db` does."""


def home_path() -> Path:
    """The database of a user who names none; follows the XDG base directory specification."""
    data = os.environ.get("XDG_DATA_HOME", "")
    folder = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"
    return folder / "stepgauge" / "stepgauge.sqlite"


def default_url() -> str:
    """The database to use where the user names none: `STEPGAUGE_DB`, else a file in the home folder."""
    return os.environ.get(URL_VARIABLE) or str(home_path())


def network_file_system(path: Path, mounts: str) -> str | None:
    r"""Say which network file system a path lies on, or None where it lies on this machine.

    Args:
        path: absolute, with links resolved.
        mounts: the text of /proc/mounts: device, mount point, type, options... on each line.

    >>> network_file_system(Path("/home/a/x.sqlite"), "/dev/sda / ext4 rw 0 0\nsrv:/h /home nfs4 rw 0 0\n")
    'nfs4'
    """
    found, longest = "", -1
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        # The kernel writes blanks, tabs, line ends and backslashes in a mount point as three octal digits.
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        # Of two mounts on one point the later one lies on top.
        if path.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = fields[2], len(point.parts)
    return found if found in NETWORK_FILE_SYSTEMS else None


def read_mounts() -> str:
    """The mounts of this process, or nothing where the system does not tell (other than Linux)."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
