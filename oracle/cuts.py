"""Where to cut a model into consecutive parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.errors import OutOfRange


def balanced_cuts(weights: Sequence[float], parts: int) -> tuple[int, ...]:
    """Cut a sequence into consecutive parts, none empty, so that the heaviest part is as light as possible.

    The lightest possible heaviest part is found by dynamic programming over the number of parts: with i items in k - 1
    parts and the rest up to j in the last one, the heavier of the two falls and then rises as i grows, so the best i is
    where they cross, which a binary search finds: O(parts n log n). The cuts then fill one part after another up to it.

    Args:
        weights: of each item, not negative.
        parts: from 1 to the number of items.

    Returns:
        The index of the first item of every part but the first.

    Raises:
        OutOfRange: more parts than items, or none.

    >>> balanced_cuts([1, 2, 3, 4, 5], 2)
    (3,)
    """
    count = len(weights)
    if not 1 <= parts <= count:
        raise OutOfRange(f"{count} layers can be cut into 1 to {count} parts, not {parts}")
    before = np.concatenate(([0.0], np.cumsum(np.asarray(weights, dtype=np.float64))))
    heaviest = before.copy()
    for part in range(2, parts + 1):
        crossing = np.searchsorted(heaviest + before, before)
        options = [np.clip(crossing + shift, part - 1, None) for shift in (-1, 0)]
        options = [np.minimum(option, np.maximum(np.arange(count + 1) - 1, 0)) for option in options]
        heaviest = np.minimum(*(np.maximum(heaviest[i], before - before[i]) for i in options))
    return _filled(before, float(heaviest[count]), parts)


def _filled(before: np.ndarray[tuple[int], np.dtype[np.float64]], most: float, parts: int) -> tuple[int, ...]:
    """Cuts that fill every part up to `most`, leaving an item at least for each part that follows."""
    cuts: list[int] = []
    count, start, room = len(before) - 1, 0, most * (1 + 1e-12)
    for left in range(parts - 1, 0, -1):
        end = int(np.searchsorted(before, before[start] + room, side="right")) - 1
        start = max(start + 1, min(end, count - left))
        cuts.append(start)
    return tuple(cuts)
