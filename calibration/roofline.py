"""The soft roofline with wave quantisation: the named constants of a kernel family, and their seconds. NumPy only.

The form. seconds = call + launch x launches + (c^3 + m^3)^(1/3) with the memory time m = bytes x seconds per byte and
the compute time c = flop x seconds per FLOP x (ceil(w) / w)^g / fill^g x exp(u winograd). The hard roofline (Williams,
Waterman, Patterson, CACM 52(4), 2009) takes the larger of c and m; kernels near the ridge overlap the two
imperfectly, and the 3-norm rounds the corner by 26 % at most. g in [0, 1.5] says how much of the quantisation of
waves and tiles a family feels (0: a library that chooses tiles well; above 1: latency-bound last waves). The
constants are *effective*: a Winograd convolution needs fewer multiplications than its FLOP, so a rate above the data
sheet's peak is right and is never capped. What a call costs beside its launches can be told only of updates, whose
launches are their tensors; elsewhere it is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibration.quantities import Quantities
from oracle.errors import BadInput
from oracle.estimate import Floats

CONSTANTS = ("launch_s", "s_per_flop", "s_per_byte", "winograd_log_factor", "wave_exponent", "call_s")
"""The parameters in the order in which they are stored and in which a fit's covariance lists them."""


@dataclass(frozen=True)
class Roofline:
    """The constants of one kernel family; `s_per_flop` is 0 for families that are bound by memory throughout."""

    launch_s: float
    s_per_flop: float
    s_per_byte: float
    winograd_log_factor: float = 0.0
    wave_exponent: float = 0.0
    call_s: float = 0.0

    def __post_init__(self) -> None:
        times = (*self.values[:3], self.call_s)
        if not (all(map(math.isfinite, self.values)) and min(times) >= 0 and max(times) > 0):
            raise BadInput("a roofline needs a launch time and rates that are positive numbers")

    @property
    def values(self) -> tuple[float, ...]:
        """The constants in the order of `CONSTANTS`."""
        return tuple(getattr(self, name) for name in CONSTANTS)

    def seconds(self, kernels: Quantities) -> Floats:
        """Seconds of each kernel, shape (n,).

        >>> from calibration.quantities import Processor, matrix_products
        >>> one = matrix_products({"batch": 1, "m": [128], "n": [64], "k": [32]}, 4, Processor(1, 1e6))
        >>> Roofline(1e-6, 1e-12, 0.0).seconds(one).round(12).tolist()
        [1.524288e-06]
        """
        quantised = (kernels.wave_stretch / kernels.tile_efficiency) ** self.wave_exponent
        compute = self.s_per_flop * kernels.flop * quantised * np.exp(self.winograd_log_factor * kernels.winograd)
        memory = self.s_per_byte * kernels.bytes
        found: Floats = self.call_s + self.launch_s * kernels.launches + _three_norm(compute, memory)
        return found


def _three_norm(first: Floats, second: Floats) -> Floats:
    """(first^3 + second^3)^(1/3) of numbers from 0 whose cubes may be no floats, shape (n,)."""
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    ratio = np.divide(smaller, larger, out=np.zeros_like(larger), where=larger > 0)
    found: Floats = larger * np.cbrt(1 + ratio**3)
    return found
