"""What every JSON reader of the project shares."""

from __future__ import annotations

from collections import Counter
from typing import Any

from oracle.errors import BadInput


def without_doubled_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` for which the last of two equal keys does not silently win.

    Raises:
        BadInput: a key occurs twice in one object.
    """
    values = dict(pairs)
    if len(values) != len(pairs):
        [(doubled, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise BadInput(f"the key {doubled[:80]!r} occurs twice in one object")
    return values
