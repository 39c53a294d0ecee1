"""What the use cases are asked, as values checked before anything is measured or predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from oracle.errors import BadInput, OutOfRange
from oracle.execution import Execution

Progress = Callable[[int, int, str], None]
"""Told how many of how many things are done, and what is being done now."""


def silent(done: int, total: int, text: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class CalibrateRequest:
    """Measure a device and fit its constants.

    Args:
        device: the kind of device, a name in `profiler.backends`.
        name: of the calibration; None makes one from the device and the date.
        budget_s: seconds of measuring; None takes the default of quick or full.
        quick: fewer cases.
        seed: orders the cases and draws the inputs.
    """

    device: str = "cpu"
    name: str | None = None
    budget_s: float | None = None
    quick: bool = False
    seed: int = 0
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        if self.budget_s is not None and not self.budget_s > 0:
            raise OutOfRange(f"a budget is a positive time, not {self.budget_s} s")
        if self.name is not None and not self.name.strip():
            raise BadInput("a calibration's name must not be empty")


@dataclass(frozen=True)
class PredictRequest:
    """Predict training steps from a stored calibration.

    Args:
        models: what `oracle.loading.load_model` reads.
        calibration: its name; None takes the newest.
        strategy: a name in `oracle.strategies`; None takes serial for one device and data for more.
        devices: device counts to predict, one after the other.
        batch: the global batch, or batch_per_device: the samples on each device. Exactly one of the two.
        cluster: a YAML file, or link: `latency,bandwidth` such as `9us,50GB/s`.
        dataset_samples: samples per epoch; None takes the model's own.
    """

    models: tuple[str, ...]
    calibration: str | None = None
    strategy: str | None = None
    devices: tuple[int, ...] = (1,)
    batch: int | None = None
    batch_per_device: int | None = None
    cluster: Path | None = None
    link: str | None = None
    dataset_samples: int | None = None
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        if not self.models:
            raise BadInput("name at least one model")
        if not self.devices:
            raise BadInput("name at least one number of devices")
        if (self.batch is None) == (self.batch_per_device is None):
            raise BadInput("give either --batch (global) or --batch-per-device")
        for what, batch in (("--batch", self.batch), ("--batch-per-device", self.batch_per_device)):
            if batch is not None and batch < 1:
                raise OutOfRange(f"{what} must be at least 1, not {batch}")
        for devices in self.devices:
            if devices < 1:
                raise OutOfRange(f"--devices must be at least 1, not {devices}")
        if self.cluster is not None and self.link is not None:
            raise BadInput("give either --cluster or --link, not both")
        if self.cluster is None and self.link is None and max(self.devices) > 1:
            raise BadInput(
                f"{max(self.devices)} devices need a network: --cluster FILE.yaml, or --link LATENCY,BANDWIDTH "
                "(such as 9us,50GB/s)"
            )

    def global_batch(self, devices: int) -> int:
        """The global batch at a number of devices."""
        return self.batch if self.batch is not None else (self.batch_per_device or 0) * devices


@dataclass(frozen=True)
class ValidateRequest:
    """Run real steps beside their prediction.

    Args:
        models: names and the samples of one step.
        calibration: its name; None takes the newest.
        device: the kind of device that they run on.
        budget_s: seconds of measuring for each model.
    """

    models: tuple[tuple[str, int], ...]
    calibration: str | None = None
    device: str = "cpu"
    budget_s: float = 20.0
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        if not self.models:
            raise BadInput("name at least one model with its batch, such as resnet50:8")
        if not self.budget_s > 0:
            raise OutOfRange(f"a budget is a positive time, not {self.budget_s} s")


def parse_devices(text: str) -> tuple[int, ...]:
    """Read `1,2,4`.

    Raises:
        BadInput: anything but whole numbers between commas.

    >>> parse_devices("1,2,4")
    (1, 2, 4)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"--devices takes whole numbers between commas, such as 1,2,4, not '{text}'") from None


def parse_model_batch(text: str) -> tuple[str, int]:
    """Read `resnet50:8`: a model and the samples of one step.

    Raises:
        BadInput: no `:`, or no whole number behind it.

    >>> parse_model_batch("resnet50:8")
    ('resnet50', 8)
    """
    model, colon, batch = text.rpartition(":")
    if not colon or not model or not batch.isdecimal():
        raise BadInput(f"write a model and a batch, such as resnet50:8, not '{text}'")
    if int(batch) < 1:
        raise OutOfRange(f"the batch of {model} must be at least 1, not {batch}")
    return model, int(batch)
