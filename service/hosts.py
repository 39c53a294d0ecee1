"""Names of hosts: kept with measurements only as a digest under a key of this user's own.

The key (`host-key`) and the table of names by digest (`host-names.jsonl`) lie beside the default database, readable by
this user alone. Neither is in the database or in anything that is exported: whoever reads those cannot try names
against a digest, and the user can still look up which node was slow.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from db.location import home_path
from oracle.errors import StoreError

KEY_BYTES = 32


def key_path() -> Path:
    """Where the key is."""
    return home_path().with_name("host-key")


def names_path() -> Path:
    """Where the table of names is: a JSON object a line, with `host` (the digest) and `name`."""
    return home_path().with_name("host-names.jsonl")


def host_key() -> bytes:
    """This user's key of the digests of host names; made at its first use.

    Raises:
        StoreError: the data folder cannot be written.
    """
    path = key_path()
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Written aside and linked, so that two first uses at once agree on one key.
            own = path.with_name(f"host-key.{secrets.token_hex(4)}")
            own.touch(mode=0o600)
            own.write_bytes(secrets.token_bytes(KEY_BYTES))
            try:
                os.link(own, path)
            except FileExistsError:
                pass
            finally:
                own.unlink()
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot keep the key of host names in {path}: {error.strerror}") from None


def remember_hosts(names: Mapping[str, str]) -> None:
    """Add hosts to the table of names, those that it lacks.

    Args:
        names: by digest.

    Raises:
        StoreError: the table cannot be written.
    """
    path = names_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        known = path.read_text(encoding="utf-8")
        lines = [json.dumps({"host": digest, "name": name}) for digest, name in names.items()]
        with path.open("a", encoding="utf-8") as table:
            table.write("".join(f"{line}\n" for line in lines if line not in known))
    except OSError as error:
        raise StoreError(f"cannot keep the names of hosts in {path}: {error.strerror}") from None
