from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calibration.holdout import FOLDS, folds


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(1e-6, 1.0)), min_size=1, max_size=40))
def test_folds_partition_the_rows_and_keep_siblings_together(rows: list[tuple[int, float]]) -> None:
    groups = [group for group, _ in rows]
    left_out = folds(groups, np.array([work for _, work in rows]))
    if len(set(groups)) < 2:
        assert left_out == []
        return
    assert sorted(np.concatenate(left_out).tolist()) == list(range(len(rows)))
    assert 2 <= len(left_out) <= FOLDS
    sides = [{groups[row] for row in fold} for fold in left_out]
    assert sum(len(side) for side in sides) == len(set(groups))


def test_every_fold_holds_small_and_large_work() -> None:
    # Ten layers in order of work, dealt to five folds: 0 and 5, 1 and 6, ...
    left_out = folds(list(range(10)), np.arange(10.0))
    assert [fold.tolist() for fold in left_out] == [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]]
