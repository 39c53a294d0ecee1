"""What the use cases that predict are asked, as values checked before anything is predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from oracle.errors import BadInput, OutOfRange
from oracle.execution import Execution
from oracle.units import parse_bytes
from service.figures import Rates


@dataclass(frozen=True)
class Target:
    """What is to be trained, how, on which machine; the part that predictions and advice share.

    Args:
        calibration: its name; None takes the newest.
        devices: device counts, one after the other.
        batch: the global batch, or batch_per_device: the samples on each device. Exactly one of the two.
        cluster: a YAML file, or link: `latency,bandwidth` such as `9us,50GB/s`.
        network: a stored network whose curves price the transfers; without a cluster its devices are of one tier.
        environment: which of the network's environments.
        memory_bytes: of one device; None takes what the cluster file or the calibration says.
        dataset_samples: samples per epoch; None takes the model's own.
    """

    calibration: str | None = None
    devices: tuple[int, ...] = (1,)
    batch: int | None = None
    batch_per_device: int | None = None
    cluster: Path | None = None
    link: str | None = None
    network: str | None = None
    environment: str | None = None
    memory_bytes: float | None = None
    dataset_samples: int | None = None
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        self._check_batch()
        self._check_devices()
        self._check_network()
        self._check_memory()

    def _check_batch(self) -> None:
        if self.batch is None and self.batch_per_device is None:
            raise BadInput("give a batch: --batch (over all devices) or --batch-per-device")
        if self.batch is not None and self.batch_per_device is not None:
            raise BadInput("give either --batch or --batch-per-device, not both")
        for what, batch in (("--batch", self.batch), ("--batch-per-device", self.batch_per_device)):
            if batch is not None and batch < 1:
                raise OutOfRange(f"{what} must be at least 1, not {batch}")

    def _check_devices(self) -> None:
        if not self.devices:
            raise BadInput("name at least one number of devices")
        for devices in self.devices:
            if devices < 1:
                raise OutOfRange(f"--devices must be at least 1, not {devices}")

    def _check_network(self) -> None:
        if self.link is not None and (self.cluster is not None or self.network is not None):
            other = "--network" if self.cluster is None else "--cluster"
            raise BadInput(f"give either {other} or --link, not both")
        if self.environment is not None and self.network is None:
            raise BadInput("--environment chooses among those of a --network")
        named = (self.cluster, self.link, self.network)
        if max(self.devices) > 1 and all(network is None for network in named):
            raise BadInput(
                f"{max(self.devices)} devices need a network: --cluster FILE.yaml, --link LATENCY,BANDWIDTH "
                "(such as 9us,50GB/s), or a stored one, --network NAME"
            )

    def _check_memory(self) -> None:
        if self.memory_bytes is not None and not 0 < self.memory_bytes < math.inf:
            raise OutOfRange(f"--memory must be more than zero bytes, not {self.memory_bytes}")

    def global_batch(self, devices: int) -> int:
        """The global batch at a number of devices."""
        return self.batch if self.batch is not None else (self.batch_per_device or 0) * devices


@dataclass(frozen=True)
class PredictRequest(Target):
    """Predict training steps from a stored calibration.

    Args:
        models: what `service.models.find_model` reads.
        strategy: what `oracle.strategies.choices.parse_strategy` reads; None takes serial for one device and data for
            more.
    """

    models: tuple[str, ...] = ()
    strategy: str | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise BadInput("name at least one model")
        super().__post_init__()


@dataclass(frozen=True)
class PlanRequest(Target):
    """Compare strategies for a model, or explain one.

    Args:
        model: what `service.models.find_model` reads.
        strategies: what `oracle.strategies.choices.parse_strategy` reads; none takes all, or the default one.
        rates: what the devices cost.
    """

    model: str = ""
    strategies: tuple[str, ...] = ()
    rates: Rates = field(default_factory=Rates)


def parse_devices(text: str) -> tuple[int, ...]:
    """Read `1,2,4`, or `1..1024` for the first number, twice that, and so on up to the last.

    Raises:
        BadInput: anything but whole numbers between commas or two dots.

    >>> parse_devices("1,2,4"), parse_devices("3..20")
    ((1, 2, 4), (3, 6, 12, 20))
    """
    parts = text.split(",")
    try:
        return tuple(dict.fromkeys(chain.from_iterable(_doubling(*map(int, p.split("..", 1))) for p in parts)))
    except ValueError:
        raise BadInput(
            f"--devices takes whole numbers between commas, such as 1,2,4, or 1..1024, not '{text}'"
        ) from None


def _doubling(first: int, last: int | None = None) -> Iterator[int]:
    if last is None:
        yield first
        return
    if not 1 <= first <= last:
        raise OutOfRange(f"--devices goes from at least 1 up, not from {first} to {last}")
    while first < last:
        yield first
        first *= 2
    yield last


def parse_memory(text: str | None) -> float | None:
    """Read `--memory 16GiB`; None where nothing was given."""
    return None if text is None else parse_bytes(text)


def parse_model_batch(text: str) -> tuple[str, int]:
    """Read `resnet50:8`: a model and the samples of one step.

    Raises:
        BadInput: no `:`, or no whole number behind it.

    >>> parse_model_batch("resnet50:8")
    ('resnet50', 8)
    """
    model, colon, batch = text.rpartition(":")
    if not colon or not model or not (batch.isascii() and batch.isdecimal()) or len(batch) > 15:
        raise BadInput(f"write a model and a batch, such as resnet50:8, not '{text}'")
    if int(batch) < 1:
        raise OutOfRange(f"the batch of {model} must be at least 1, not {batch}")
    return model, int(batch)
