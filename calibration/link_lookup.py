"""Read a network at the very curve that a row names, else as a plan would. NumPy only.

A row of a table says its ranks, nodes and job, a transfer of a plan only its group and tier. Where the row's own curve
was measured, that curve answers, with its job and data type; else the series of its layout (`LinkTimer.at`).
"""

from __future__ import annotations

from dataclasses import replace

from calibration.link_pricing import LinkTimer
from calibration.link_series import Answer, LinkSeries
from calibration.link_values import CurveKey, LinkCalibration
from oracle.errors import NotCalibrated
from oracle.estimate import Floats


class LinkLookup:
    """Answers of one network for rows of many curves.

    Args:
        known: the network.
        environment: for rows that name none, where there are several.
    """

    def __init__(self, known: LinkCalibration, environment: str | None = None) -> None:
        self.known = known
        self._default = environment or (known.environments[0] if len(known.environments) == 1 else None)
        self._curves = {curve.key: curve for curve in known.curves}
        self._timers: dict[tuple[str, str], LinkTimer] = {}

    def placed(self, key: CurveKey) -> CurveKey:
        """The key in an environment of the network.

        A row whose environment the network does not have may carry in it what the fit took for the mark of a job.

        Raises:
            NotCalibrated: its environment is none of the network's.
        """
        if key.environment in self.known.environments:
            return key
        if not key.environment and self._default is not None:
            return replace(key, environment=self._default)
        if self.known.environments == ("",):
            return replace(key, environment="", job=key.environment)
        what = key.environment or "no environment, and there are several"
        raise NotCalibrated(f"the network '{self.known.name}' was not measured in the row's environment ({what})")

    def read(self, key: CurveKey, sizes_bytes: Floats) -> Answer:
        """The answer for n sizes of one key; its environment is one of the network's.

        Raises:
            NotCalibrated: nothing is known of this collective at this place.
        """
        curve = self._curves.get(key)
        if curve is not None:
            return LinkSeries([curve], None, self.known.spread).read(key.ranks, sizes_bytes)
        where = key.environment, key.dtype
        if where not in self._timers:
            self._timers[where] = LinkTimer(self.known, *where)
        return self._timers[where].at(key.collective, key.ranks, key.nodes, sizes_bytes)
