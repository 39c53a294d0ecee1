"""Which devices of a store lend their residuals to which."""

from __future__ import annotations

import pytest

from calibration.sources import lenders
from oracle.constants import Calibration

GPU = {"multiprocessors": "108", "l2_bytes": "41943040"}
CPU = {"threads": "8"}
TABLE = {"device": "P100"}
SIMULATED = {"device": "simulated device", "law": "additive"}


def known(device: str, identity: dict[str, str]) -> Calibration:
    return Calibration(device, device, "2026-01-01T00:00:00Z", identity, "k", fits=(), shapes=(), common_sd=0.01)


STORE = [known("A100", GPU), known("P100", TABLE), known("a CPU", CPU), known("simulated device", SIMULATED)]


@pytest.mark.parametrize(
    ("device", "identity", "lend"),
    [
        ("V100", GPU, ["A100", "P100"]),
        ("V100", TABLE, ["A100", "P100"]),  # a table that names its device only is a GPU's
        ("A100", GPU, ["P100"]),  # not to itself
        ("another CPU", CPU, ["a CPU"]),
        ("another simulated device", SIMULATED, ["simulated device"]),
    ],
)
def test_devices_of_one_kind_lend_to_one_another(device: str, identity: dict[str, str], lend: list[str]) -> None:
    assert [other.device for other in lenders(device, identity, STORE)] == lend
