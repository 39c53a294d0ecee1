"""What the fit of a kernel family says of calls: constants that add up, or a roofline with a residual. NumPy only.

The draws of constants are joint, those of a residual are functions of the shape; how far a shape lies from its
family's line is drawn beside them (the held-out residual). Both are wider where a call lies outside what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.call_quantities import call_quantities
from calibration.draws import MOST_DRAWN_SD, unit_mean_factors
from calibration.features import coefficients, features, quantities, seconds
from calibration.stored_model import StoredModel, read_model
from oracle.constants import KernelFit
from oracle.estimate import Floats
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.pricing import LayerCall

MARGIN = 1.5
"""How far outside the measured range of work a shape still counts as inside it, as a factor."""

EXTRAPOLATED_SPREAD = 2.0
"""By how much the residual of a family is widened outside the range that was measured."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit says of n calls: middles (n,), draws (n, DRAWS), and which lie inside what was measured (n,)."""

    middle_s: Floats
    draws_s: Floats
    inside: NDArray[np.bool_]

    def take(self, rows: slice) -> Fitted:
        """The same of some of the calls."""
        return Fitted(self.middle_s[rows], self.draws_s[rows], self.inside[rows])


def joined(parts: Sequence[Fitted]) -> Fitted:
    """The calls of several fits, one after the other."""
    return Fitted(
        np.concatenate([part.middle_s for part in parts]),
        np.concatenate([part.draws_s for part in parts]),
        np.concatenate([part.inside for part in parts]),
    )


class FamilyPrices:
    """Evaluates fits; what it takes to read one is done once.

    Args:
        execution: how the model is trained.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._models: dict[tuple[str, Phase, str], StoredModel] = {}
        self._per_unit: dict[tuple[str, Phase, str], tuple[Floats, Floats]] = {}

    def of(self, fit: KernelFit, name: str, calls: Sequence[LayerCall], rows: Floats) -> Fitted:
        """Means and draws of calls of one family in one phase.

        Args:
            fit: of that family, or of one that stands in for it, which is an extrapolation.
            name: of the calls' own family.
            calls: n calls.
            rows: standard normal draws of each call's own deviation, shape (n, DRAWS).

        Raises:
            BadInput: the fit's residual model is damaged.
        """
        if fit.arrays:
            return self._modelled(fit, name, calls, rows)
        return self._added_up(fit, name, calls, rows)

    def seconds_per_unit(self, fit: KernelFit) -> tuple[Floats, Floats]:
        """The constants of a fit that add up; see `calibration.features.coefficients`."""
        if fit.key not in self._per_unit:
            self._per_unit[fit.key] = coefficients(fit.constants)
        return self._per_unit[fit.key]

    def _added_up(self, fit: KernelFit, name: str, calls: Sequence[LayerCall], rows: Floats) -> Fitted:
        table = features(calls, self._execution)
        values, draws = self.seconds_per_unit(fit)
        inside = _inside(fit, name, calls[0], table)
        spread = np.minimum(np.where(inside, 1.0, EXTRAPOLATED_SPREAD) * fit.residual_sd, MOST_DRAWN_SD)
        return Fitted(seconds(table, values), seconds(table, draws) * unit_mean_factors(spread[:, None] * rows), inside)

    def _modelled(self, fit: KernelFit, name: str, calls: Sequence[LayerCall], rows: Floats) -> Fitted:
        if fit.key not in self._models:
            self._models[fit.key] = read_model(fit)
        known = self._models[fit.key]
        kernels = call_quantities(calls, self._execution, known.processor)
        prediction, draws = known.predict_with_draws(kernels, rows)
        return Fitted(prediction.mean_s, draws, ~prediction.extrapolated & (name == fit.family))


def _inside(fit: KernelFit, name: str, first: LayerCall, table: Floats) -> NDArray[np.bool_]:
    """Which calls lie in the measured range of their own family, in every quantity that their time depends on.

    An update walks over its tensors, so more of them, as large as those that were measured, are more of the same.

    Args:
        fit: of a family.
        name: of the calls' own family; first: one of the calls.
        first: whose kind and phase are those of all.
        table: features of the calls.
    """
    inside = np.full(len(table), name == fit.family)
    launches, flop, moved, _ = table.T
    inside &= (fit.bytes_lo / MARGIN <= moved) & (moved <= fit.bytes_hi * MARGIN * launches)
    if "flop_per_s" in quantities(first.layer, first.phase):
        inside &= (fit.flop_lo / MARGIN <= flop) & (flop <= fit.flop_hi * MARGIN)
    return inside
