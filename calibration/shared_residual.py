"""The residual over the roofline that devices have in common, evaluated by NumPy alone.

Boosted trees and a Gaussian process, as for a device's own residual; `calibration.device_prior` learns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.gaussian_process import GaussianProcess
from calibration.trees import Trees
from oracle.estimate import Floats

_PROCESS = "process."


@dataclass(frozen=True, eq=False)
class SharedResidual:
    """A residual in ln seconds that was learnt on other devices.

    Args:
        trees: over the kernels of all sources; process: over some of them, or None.
        process: weighs `process_share`, the trees have the rest.
    """

    trees: Trees
    process: GaussianProcess | None = None
    process_share: float = 0.0

    def predict(self, columns: Floats) -> Floats:
        """ln(seconds / roofline), shape (m,), of kernels with these columns, shape (m, d)."""
        stepped = self.trees.predict(columns)
        if self.process is None:
            return stepped
        return self.process_share * self.process.median(columns) + (1 - self.process_share) * stepped

    def to_arrays(self) -> dict[str, Any]:
        """Plain arrays; `from_arrays` reads them back."""
        found = self.trees.to_arrays()
        if self.process is not None:
            found |= {f"{_PROCESS}{key}": value for key, value in self.process.to_arrays().items()}
            found["process_share"] = np.array([self.process_share])
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> SharedResidual:
        """Read `to_arrays` back, and what was stored when there were trees only."""
        process = {key.removeprefix(_PROCESS): value for key, value in arrays.items() if key.startswith(_PROCESS)}
        if not process:
            return cls(Trees.from_arrays(arrays))
        (share,) = arrays["process_share"]
        return cls(Trees.from_arrays(arrays), GaussianProcess.from_arrays(process), float(share))
