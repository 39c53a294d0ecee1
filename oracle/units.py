"""The only scale factors of the project: texts with a unit to SI values, and back.

GB is 1e9 bytes, GiB is 2**30; Gb is 1e9 bits. Seconds carry ns, us, ms, s, min or h.
"""

from __future__ import annotations

import math
import re

from oracle.errors import BadInput

_BYTES = {
    "B": 1.0,
    **{f"{p}B": 1e3**i for i, p in enumerate("kMGTP", start=1)},
    **{f"{p}iB": 1024.0**i for i, p in enumerate("KMGTP", start=1)},
    **{f"{p}b": 1e3**i / 8 for i, p in enumerate("kMGTP", start=1)},
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµμ]*)(/s)?")


def _parse(text: str, units: dict[str, float], what: str, *, per_second: bool) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units or bool(match[3]) != per_second:
        suffix = "/s" if per_second else ""
        known = ", ".join(f"{unit}{suffix}" for unit in units)
        raise BadInput(f"'{text}' is not {what}; write a number and one of {known}")
    try:
        value = float(match[1]) * units[match[2]]
    except ValueError:
        raise BadInput(f"'{text}' is not {what}: '{match[1]}' is no number") from None
    if not math.isfinite(value):
        raise BadInput(f"'{text}' is not a finite number")
    return value


def parse_bytes(text: str) -> float:
    """Read a number of bytes.

    Raises:
        BadInput: no number, or no unit of bytes.

    >>> parse_bytes("64MiB")
    67108864.0
    """
    return _parse(text, _BYTES, "a size", per_second=False)


def parse_seconds(text: str) -> float:
    """Read a duration in seconds.

    >>> parse_seconds("1.5ms")
    0.0015
    """
    return _parse(text, _SECONDS, "a duration", per_second=False)


def parse_bytes_per_s(text: str) -> float:
    """Read a bandwidth in bytes per second.

    >>> parse_bytes_per_s("100Gb/s")
    12500000000.0
    """
    return _parse(text, _BYTES, "a bandwidth", per_second=True)


def tera(value: float) -> float:
    """A number given in units of 1e12: TFLOP/s to FLOP/s.

    >>> tera(125.0)
    125000000000000.0
    """
    return value * 1e12


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    scale, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    scaled = value / scale
    # Three digits, but no exponent where the next unit is a little further off (1,023 MiB).
    return f"{scaled:.0f} {unit}" if 999.5 <= abs(scaled) < 1e6 else f"{scaled:.3g} {unit}"


_DECIMAL = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]


def format_seconds(seconds: float) -> str:
    """Write a duration with three significant digits.

    >>> format_seconds(0.00123)
    '1.23 ms'
    """
    steps = [(86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")]
    if seconds == 0:
        return "0 s"
    return _scaled(seconds, steps)


def format_bytes(size: float) -> str:
    """Write a number of bytes, in powers of two, with three significant digits.

    >>> format_bytes(3 * 2**30), format_bytes(1020 * 2**20)
    ('3 GiB', '1020 MiB')
    """
    steps = [(1024.0**i, f"{p}iB") for i, p in reversed(list(enumerate("KMGTP", start=1)))]
    return _scaled(size, [*steps, (1.0, "B")])


def format_number(value: float) -> str:
    """Write a number with four significant digits and, from a thousand on, commas instead of an exponent.

    >>> format_number(20437.2), format_number(2.1333), format_number(3.577e-7)
    ('20,440', '2.133', '3.577e-07')
    """
    short = f"{value:.4g}"
    return f"{float(short):,.0f}" if 1e3 <= abs(value) < 1e12 else short


def format_rate(value: float, unit: str) -> str:
    """Write a rate with a decimal prefix: `format_rate(2.5e12, "FLOP/s")`.

    >>> format_rate(2.5e12, "FLOP/s")
    '2.5 TFLOP/s'
    """
    return _scaled(value, [(scale, f"{prefix}{unit}") for scale, prefix in _DECIMAL])


def format_energy(energy_j: float) -> str:
    """Write an energy in kWh (3.6 MJ), or in J below a tenth of one.

    >>> format_energy(7.2e6), format_energy(1200.0), format_energy(2.07e11)
    ('2 kWh', '1.2 kJ', '57,500 kWh')
    """
    if energy_j >= 3.6e5:
        return f"{format_number(energy_j / 3.6e6)} kWh"
    return _scaled(energy_j, [(scale, f"{prefix}J") for scale, prefix in _DECIMAL])
